"""Builds VCR's texts as each paper does: names objects, and cuts questions and choices together.

T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from vlmill.schemas.ids import key64

WHOLE = 0  # the number of the full image
PERSON = "person"
# COCO's 80 categories in order, as VCR writes them (without spaces).
COCO = """
person bicycle car motorcycle airplane bus train truck boat trafficlight firehydrant stopsign
parkingmeter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella
handbag tie suitcase frisbee skis snowboard sportsball kite baseballbat baseballglove skateboard
surfboard tennisracket bottle wineglass cup fork knife spoon bowl banana apple sandwich orange
broccoli carrot hotdog pizza donut cake chair couch pottedplant bed diningtable toilet tv laptop
mouse remote keyboard cellphone microwave oven toaster sink refrigerator book clock vase scissors
teddybear hairdrier toothbrush
"""
NUMBERS = {name: number for number, name in enumerate(COCO.split(), 1)}
# Names that any person may have (VL-BERT's code).
UNISEX = """
Casey Riley Jessie Jackie Avery Jaime Peyton Kerry Jody Kendall Frankie Pat Quinn
"""
PERSON_NAMES = tuple(UNISEX.split())


def find_category(name: str) -> int | None:
    """Returns the number of a category, with or without spaces; None if COCO does not have it."""
    return NUMBERS.get(name.replace(" ", "").lower())


Words = Sequence[str | Sequence[int]]

CLS, SEP = "[CLS]", "[SEP]"
MARK = "[MARK]"  # in a table of choices, between a question and the answer that it is about
NO_OBJECT = -1


class Piece(NamedTuple):
    """Holds a token, the number of the object that it names (-1: none), and its word's number."""

    token: str
    object_number: int = NO_OBJECT
    word: int = -1


FIRST, BETWEEN = Piece(CLS), Piece(SEP)


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """Holds two texts in one: ``pieces`` [T] with [CLS] and [SEP], ``segments`` [T] 0 or 1."""

    pieces: list[Piece]
    segments: list[int]


def tagged_words(text: str, tags: Sequence[Sequence[int]]) -> list[str | list[int]]:
    """Returns a table's text as words and lists of object numbers.

    Raises ValueError for tags that are not parallel to the words.
    """
    words = text.split(" ")
    if len(words) != len(tags):
        raise ValueError(f"{len(words)} words and {len(tags)} tags")
    return [
        word if list(numbers) == [NO_OBJECT] else list(numbers)
        for word, numbers in zip(words, tags, strict=True)
    ]


def name_objects(
    words: Words, names: Sequence[str], *, between: str | None = None
) -> list[tuple[str, int]]:
    """Returns words with the objects' names instead of references, which are lists of their
    numbers, each with the number of the object that it names; ``between`` (VL-BERT: "and")
    separates the names of one reference.
    """
    pairs: list[tuple[str, int]] = []
    for word in words:
        if isinstance(word, str):
            pairs.append((word, NO_OBJECT))
            continue
        for index, number in enumerate(word):
            if index and between is not None:
                pairs.append((between, NO_OBJECT))
            pairs.append((names[number], number))
    return pairs


def draw_names(objects: Sequence[str], key: str) -> list[str]:
    """Returns the objects' names; each person's name is sampled separately (ViLBERT's code).

    ``key`` decides: a question's names are the same in every epoch, and in all of its texts.
    """
    return [
        PERSON_NAMES[key64(f"{key}/{index}") % len(PERSON_NAMES)] if name == PERSON else name
        for index, name in enumerate(objects)
    ]


def names_in_turn(objects: Sequence[str], first: int) -> list[str]:
    """Returns the objects' names, persons' in their order from ``first`` on (VL-BERT's code, whose
    counter continues from question to question).
    """
    names, counter = list[str](), first
    for name in objects:
        names.append(PERSON_NAMES[counter % len(PERSON_NAMES)] if name == PERSON else name)
        counter += name == PERSON
    return names


def split_pieces(words: Sequence[tuple[str, int]], tokenizer: Tokenizer) -> list[Piece]:
    """Returns the tokens of words; each word is tokenised separately."""
    encoding = tokenizer.encode(
        [word for word, _ in words], is_pretokenized=True, add_special_tokens=False
    )
    return [
        Piece(token, words[number][1], number)
        for token, number in zip(encoding.tokens, encoding.word_ids, strict=True)
        if number is not None
    ]


def cut_pair(first: Sequence[object], second: Sequence[object], longest: int) -> tuple[int, int]:
    """Returns how many tokens remain of each, so that both have at most ``longest`` together.

    Tokens are removed from the end of the longer one, of the second where they are equal.
    """
    num_first, num_second = len(first), len(second)
    while num_first + num_second > max(longest, 0):
        if num_first > num_second:
            num_first -= 1
        else:
            num_second -= 1
    return num_first, num_second


def choice_texts(
    first: Sequence[Piece],
    choices: Sequence[Sequence[Piece]],
    *,
    max_tokens: int,
    shared_cut: bool = False,
) -> list[TextPair]:
    """Returns [CLS] first [SEP] choice [SEP] for each choice, at most ``max_tokens``.

    ``shared_cut``: tokens that are cut from the first text for one choice stay cut for the later
    ones, as in the released code, which shortens it in place.
    """
    texts: list[TextPair] = []
    for choice in choices:
        num_first, num_choice = cut_pair(first, choice, max_tokens - 3)
        if shared_cut:
            first = first[:num_first]
        pieces = [FIRST, *first[:num_first], BETWEEN, *choice[:num_choice], BETWEEN]
        texts.append(
            TextPair(pieces=pieces, segments=[0] * (num_first + 2) + [1] * (num_choice + 1))
        )
    return texts


def cut_with_answer(
    lengths: tuple[int, int], choices: Sequence[int], longest: int
) -> tuple[tuple[int, int], list[int]]:
    """Returns how many tokens remain of a question, of the answer after it (0: none) and of each
    choice, so that every choice has at most ``longest`` with them (VL-BERT's code).

    The choice is cut while it is longer than both before it; then the question, to one token, then
    the answer. These two are shared: tokens that one choice cuts off stay cut off for all.
    """
    question, answer = lengths
    cut = []
    for choice in choices:
        while question + answer + choice > longest:
            if choice > question + answer:
                choice -= 1
            elif question > 1 or not answer:
                question -= 1
            else:
                answer -= 1
        cut.append(choice)
    return (question, answer), cut


def split_at_mark(words: Words) -> tuple[Words, Words]:
    """Returns the words of a question, and the words of the answer after it, if there is one."""
    if MARK not in words:
        return words, []
    index = list(words).index(MARK)
    return words[:index], words[index + 1 :]
