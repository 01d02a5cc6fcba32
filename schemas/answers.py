"""Processes VQA's answers and computes their soft scores from ten annotators.

The processing is that of the official scorer, including its quirks. VLMo's code and the tool for
ViLBERT's labels have the same rules.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
DIGIT_COMMA = re.compile(r"\d,\d", re.ASCII)
PERIOD = re.compile(r"\.(?!\d)", re.ASCII)
MAX_PERIODS = 32  # the 33rd stays: the official code passes a flag as the count by mistake
ARTICLES = {"a", "an", "the"}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER_WORDS = {"none": "0"} | {word: str(i) for i, word in enumerate(NUMBERS)}

# Restored from the spelling without any apostrophe.
SINGLE = """ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd
he's how'd how'll how's isn't it'd it'll ma'am mightn't might've mustn't must've needn't
not've o'clock oughtn't shan't should've shouldn't somebody'll somebody's someone'd
someone'll someone's something'd something'll that's there'd there're there's they'd
they'll they're they've 'twas wasn't we've weren't what'll what're what's what've when's
where'd where's where've who'd who'll who's who've why'll why're why's won't would've
wouldn't y'all you'd you'll you're you've"""
# Restored from every spelling that lacks one of its apostrophes, not from the one without any.
DOUBLE = """couldn't've hadn't've he'd've it'd've mightn't've she'd've shouldn't've somebody'd've
someone'd've something'd've there'd've they'd've we'd've who'd've wouldn't've y'all'll y'all'd've
you'd've 'ow's'at"""


def _drop_one_apostrophe(word: str) -> list[str]:
    positions = accumulate((len(part) + 1 for part in word.split("'")), initial=-1)
    return [word[:position] + word[position + 1 :] for position in list(positions)[1:-1]]


CONTRACTIONS = (
    {word.replace("'", ""): word for word in SINGLE.split()}
    | {spelling: word for word in DOUBLE.split() for spelling in _drop_one_apostrophe(word)}
    | {"somebody'd": "somebodyd"}  # swapped in the official table
)


def clean_answer(text: str) -> str:
    """Cleans an answer like the official scorer: line breaks and tabs become spaces."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def process_answer(text: str) -> str:
    """Returns an answer in the form for comparison and labels: steps 2 to 5 of the official scorer.

    Punctuation is removed or becomes a space, periods are removed unless before a digit, number
    words become digits, articles are removed, and contractions get their apostrophes back.
    """
    words = (NUMBER_WORDS.get(word, word) for word in without_marks(text).lower().split())
    content_words = (word for word in words if word not in ARTICLES)
    return " ".join(CONTRACTIONS.get(word, word) for word in content_words)


def without_marks(text: str) -> str:
    """Returns an answer after the steps of punctuation and periods.

    A mark next to a space anywhere is removed everywhere, and so are all marks in a text with
    "1,000".
    """
    out, goes = text, bool(DIGIT_COMMA.search(text))
    for mark in PUNCTUATION:
        touches_space = f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if goes or touches_space else " ")
    return PERIOD.sub("", out, count=MAX_PERIODS)


def soft_score(votes: int) -> float:
    """Returns the score, 0 to 1, of an answer that ``votes`` of the ten annotators typed.

    It is the mean of the official accuracy over the annotators, leaving each one out in turn.
    """
    if votes < 0:
        raise ValueError(f"votes={votes}: expected at least 0")
    return min(1.0, 3 * votes / 10)


MIN_QUESTIONS = 9  # answers of fewer questions are not labels: gives the 3,129 labels of VQA v2


def make_label(answer: str) -> str:
    """Returns the label of an answer: processed, and without remaining commas."""
    return process_answer(answer).replace(",", "")


def collect_labels(answers: Iterable[str], *, min_questions: int = MIN_QUESTIONS) -> list[str]:
    """Returns the labels: ``answers`` of at least ``min_questions``, one answer per question.

    They are in the order of their first occurrence, as in VLMo's code; the published lists have the
    order of an old interpreter's dictionary. The empty string may be a label.
    """
    counts = Counter(make_label(answer) for answer in answers)
    return [label for label, count in counts.items() if count >= min_questions]


def soft_labels(
    answers: Sequence[str], numbers: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    """Returns the sorted numbers of the annotators' labels, and the score of each.

    ``answers`` are compared unchanged with the keys of ``numbers``. Answers that are not keys are
    ignored, so a question may have no label.
    """
    votes = Counter(answer for answer in answers if answer in numbers)
    scores = sorted((numbers[answer], soft_score(count)) for answer, count in votes.items())
    return [number for number, _ in scores], [score for _, score in scores]


NUM_ANNOTATORS = 10  # of VQA, VizWiz and OK-VQA: the official scores are made for ten answers


def score_answers(answers: Sequence[str]) -> dict[str, float]:
    """Returns the score, 0 to 1, of each label among the answers to a question of any source.

    Answers are compared as labels (:func:`make_label`). Ten answers are the votes of annotators and
    scored like VQA's. Any other number: the most frequent label scores 1, the others their share of
    its votes, so one answer, or each of several accepted ones, scores 1.
    """
    votes = Counter(map(make_label, answers))
    if len(answers) == NUM_ANNOTATORS:
        return {label: soft_score(count) for label, count in votes.items()}
    top_votes = max(votes.values(), default=0)
    return {label: count / top_votes for label, count in votes.items()}


def number_scores(
    scores: Mapping[str, float], numbers: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    """Returns the sorted numbers of the labels that have one, and the score of each."""
    pairs = sorted((numbers[label], score) for label, score in scores.items() if label in numbers)
    return [number for number, _ in pairs], [score for _, score in pairs]


TYPED_SOURCES = (None, "vqa1", "vqa2")  # the official code compares answers as they were typed
EXACT_SOURCES = ("gqa",)  # one answer, which is compared unchanged


def label_answers(
    source: str | None, answers: Sequence[str], numbers: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    """Returns the sorted numbers of the labels among a question's answers, and the score of each,
    by the rule of the question's source.
    """
    if source in TYPED_SOURCES:
        return soft_labels(answers, numbers)
    if source in EXACT_SOURCES:
        return number_scores(dict.fromkeys(answers, 1.0), numbers)
    return number_scores(score_answers(answers), numbers)
