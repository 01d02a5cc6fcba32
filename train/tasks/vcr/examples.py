"""Turns a row of choices into the texts that a model reads: a question with each of its choices.

C choices, T tokens of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.arrays import Array, Flags, Ids
from vlmill.train.loading.sample import Sample, SampledRegions
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.vocabulary import CLS, MASK, SEP
from vlmill.train.tasks.vcr.outlines import Outline, parse_outlines
from vlmill.train.tasks.vcr.settings import VcrSettings
from vlmill.train.tasks.vcr.texts import (
    BETWEEN,
    Piece,
    Words,
    choice_texts,
    cut_with_answer,
    draw_names,
    name_objects,
    names_in_turn,
    split_at_mark,
    split_pieces,
    tagged_words,
)
from vlmill.train.tasks.vlbert_texts import SpecialIds, vcr_text

NUM_CHOICES = 4  # of answers, and of rationales
COLUMNS = (
    *("task", "label", "question", "choices", "object_names", "boxes"),
    *("question_tags", "choice_tags"),
)
SEGMS = "segms"  # the column of outlines, which only models on pixels read
OUTSIDE_PX = 1.0  # a box that reaches further out of its image is another image's
NEAR_PX = 2.0  # corners of an object's box and of the region matched to it


@dataclass(frozen=True, kw_only=True)
class Question:
    """Holds a row of choices; ``boxes`` [objects * 4] in pixels."""

    example_id: str
    task: str
    label: int
    question: str
    choices: Sequence[str]
    object_names: Sequence[str]
    boxes: Sequence[float]
    question_tags: Sequence[Sequence[int]]
    choice_tags: Sequence[Sequence[Sequence[int]]]
    segms: str | None = None

    @staticmethod
    def from_row(table: SampleTable, row: int, *, outlined: bool = False) -> "Question":
        """Reads a prepared row, ``outlined`` with its objects' outlines."""
        columns = (*COLUMNS, SEGMS) if outlined else COLUMNS
        values = {name: table.value(name, row) for name in columns}
        return Question(example_id=table.pair_id(row), **values)

    @property
    def box_rows(self) -> Array:
        """Returns the objects' boxes [R, 4]."""
        return np.array(self.boxes, dtype=np.float32).reshape(-1, 4)

    def outlines(self) -> list[Outline]:
        """Returns the objects' outlines. Raises ValueError for invalid polygons."""
        return parse_outlines(self.segms, len(self.object_names))

    @property
    def key(self) -> str:
        """Returns the shared key of the rows of one question: ``vcr/val-9`` of
        ``vcr/val-9/qa2r``.
        """
        return question_key(self.example_id, self.task)

    def words(self) -> tuple[Words, list[Words]]:
        """Returns the question's and each choice's words. Raises ValueError for tags of other
        words.
        """
        choices = zip(self.choices, self.choice_tags, strict=True)
        return (
            tagged_words(self.question, self.question_tags),
            [tagged_words(choice, tags) for choice, tags in choices],
        )


def question_key(example_id: str, task: str) -> str:
    """Returns the id that the rows of a question share."""
    return example_id.partition(f"/{task}")[0]


def find_fault(question: Question) -> tuple[Reason, str] | None:
    """Returns the fault of a row; a shifted choice, label or tag would teach nonsense."""
    counts = len(question.choices), len(question.choice_tags)
    if counts != (NUM_CHOICES, NUM_CHOICES):
        expected = f"expected {NUM_CHOICES}"
        return Reason.BAD_ROW, f"{counts[0]} choices and tags of {counts[1]}, {expected}"
    if not -1 <= question.label < NUM_CHOICES:
        return Reason.LABEL_UNKNOWN, f"label {question.label} of {NUM_CHOICES} choices"
    if len(question.boxes) != 4 * len(question.object_names):
        return (
            Reason.BAD_ROW,
            f"{len(question.object_names)} objects and {len(question.boxes) / 4:g} boxes",
        )
    try:
        first, choices = question.words()
        question.outlines()
    except ValueError as error:
        return Reason.BAD_ROW, str(error)
    tags = [word for words in (first, *choices) for word in words if not isinstance(word, str)]
    if not all(tags):
        return Reason.BAD_REFERENCE, "a tag is not an object number; expected -1 for a plain word"
    numbers = [number for tag in tags for number in tag]
    if beyond := [n for n in numbers if not 0 <= n < len(question.object_names)]:
        return (
            Reason.BAD_REFERENCE,
            f"tag {beyond[0]} names none of {len(question.object_names)} objects",
        )
    return None


def find_box_fault(question: Question, size: tuple[int, int]) -> tuple[Reason, str] | None:
    """Returns which object's box extends beyond its image of ``size``, or has no area."""
    for name, box in zip(question.object_names, question.box_rows.tolist(), strict=True):
        beyond = max(-box[0], -box[1], box[2] - size[0], box[3] - size[1])
        if not beyond <= OUTSIDE_PX or not (box[0] < box[2] and box[1] < box[3]):
            return (
                Reason.EMPTY_BOX,
                f"the box {box} of the {name} is not of an image of {size[0]} x {size[1]}",
            )
    return None


def find_region_fault(
    question: Question, regions: SampledRegions, max_regions: int
) -> tuple[Reason, str] | None:
    """Returns a fault if the annotated regions have other boxes than the objects."""
    boxes = question.box_rows[:max_regions]
    size = np.array([regions.row.width, regions.row.height] * 2, dtype=np.float32)
    region_boxes = regions.stored_boxes[regions.first_annotated : regions.num_shown]
    same_number = len(region_boxes) == len(boxes)
    if same_number and np.abs(np.clip(boxes, 0, size) - region_boxes).max(initial=0) <= NEAR_PX:
        return None
    return (
        Reason.BAD_REFERENCE,
        f"--annotated-regions has {len(region_boxes)} regions, not at the boxes of the "
        f"{len(boxes)} "
        "objects; extract them with --boxes and this table",
    )


@dataclass(frozen=True, kw_only=True)
class ChoiceText:
    """Holds a question with a choice: ``tokens``, ``segments`` and ``objects`` [T], the number of
    the object that a token names plus one, 0 for none.

    ``original`` [T] are the tokens before masking; the ``masked`` [T] ones are predicted.
    """

    tokens: Ids
    original: Ids
    masked: Flags
    segments: Ids
    objects: Ids


@dataclass(frozen=True, kw_only=True)
class ChoiceSample(Sample):
    """Holds a question with its image, and the texts of its choices; its objects, as far as they
    are shown, have the numbers that the texts use.
    """

    question: Question
    texts: tuple[ChoiceText, ...]


def build_texts(
    question: Question, settings: VcrSettings, tokenizer: Tokenizer
) -> tuple[ChoiceText, ...]:
    """Returns the texts of a question's choices, as the settings specify."""
    has_answer = question.task == "qa2r"
    longest = settings.max_tokens_with_answer if has_answer else settings.max_tokens
    first, choices = question.words()
    if settings.texts == "tags":
        names = names_in_turn(question.object_names, key64(question.key))
        return tagged_texts(first, choices, names, longest, tokenizer)
    names = draw_names(question.object_names, question.key)
    return named_texts(first, choices, names, longest, settings, tokenizer)


def named_texts(
    first: Words,
    choices: Sequence[Words],
    names: Sequence[str],
    longest: int,
    settings: VcrSettings,
    tokenizer: Tokenizer,
) -> tuple[ChoiceText, ...]:
    """Returns ViLBERT's texts: [CLS] question ([SEP] answer) [SEP] choice [SEP]."""

    def pieces(words: Words) -> list[Piece]:
        return split_pieces(name_objects(words, names), tokenizer)

    question, answer = split_at_mark(first)
    before = pieces(question) + ([BETWEEN, *pieces(answer)] if answer else [])
    pairs = choice_texts(
        before,
        [pieces(choice) for choice in choices],
        max_tokens=longest,
        shared_cut=settings.shared_cut,
    )
    ids = tokenizer.get_vocab()
    return tuple(
        plain_text(
            [ids[piece.token] for piece in pair.pieces],
            pair.segments,
            [piece.object_number + 1 for piece in pair.pieces],
        )
        for pair in pairs
    )


def tagged_texts(
    first: Words,
    choices: Sequence[Words],
    names: Sequence[str],
    longest: int,
    tokenizer: Tokenizer,
) -> tuple[ChoiceText, ...]:
    """Returns VL-BERT's texts: [CLS] question answer [SEP] choice [SEP], tokens with objects."""
    before, cut = cut_pieces(first, choices, names, longest, tokenizer)
    ids = tokenizer.get_vocab()
    special = SpecialIds(cls=ids[CLS], sep=ids[SEP], mask=ids[MASK])

    def tagged(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        return [(ids[piece.token], piece.object_number + 1) for piece in pieces]

    text = vcr_text([(tagged(before), tagged(choice)) for choice in cut], special)
    rows = zip(text.tokens, text.segments, text.text_regions, text.token_mask, strict=True)
    return tuple(
        plain_text(tokens[real].tolist(), segments[real].tolist(), objects[real].tolist())
        for tokens, segments, objects, real in rows
    )


def cut_pieces(
    first: Words,
    choices: Sequence[Words],
    names: Sequence[str],
    longest: int,
    tokenizer: Tokenizer,
) -> tuple[list[Piece], list[list[Piece]]]:
    """Returns the tokens of question and answer, and of each choice, cut as in VL-BERT's code."""

    def pieces(words: Words) -> list[Piece]:
        return split_pieces(name_objects(words, names, between="and"), tokenizer)

    question, answer = (pieces(part) for part in split_at_mark(first))
    choice_pieces = [pieces(choice) for choice in choices]
    lengths, cut = cut_with_answer(
        (len(question), len(answer)), [len(choice) for choice in choice_pieces], longest
    )
    before = [*question[: lengths[0]], *answer[: lengths[1]]]
    return before, [choice[:length] for choice, length in zip(choice_pieces, cut, strict=True)]


def plain_text(tokens: list[int], segments: list[int], objects: list[int]) -> ChoiceText:
    """Returns a text without masked tokens."""
    ids, segment_ids, numbers = (
        np.array(values, dtype=np.int64) for values in (tokens, segments, objects)
    )
    none = np.zeros(len(ids), dtype=np.bool_)
    return ChoiceText(tokens=ids, original=ids, masked=none, segments=segment_ids, objects=numbers)
