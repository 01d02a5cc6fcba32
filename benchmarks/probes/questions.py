"""Makes questions to a trained model, about one word or one thing each. T tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.sample import select_tokens


@dataclass(frozen=True, kw_only=True)
class Question:
    """Holds a text [T] beside an image. To be guessed are the ``masked`` [T] tokens, which the
    model sees as [MASK], or the class of ``region``, hidden with all that overlap with it.
    """

    group: str
    tokens: Ids
    masked: Flags
    image_id: str
    region: int | None = None


def word_questions(
    tokenizer: Tokenizer,
    text: str,
    image_id: str,
    groups: Mapping[str, frozenset[str]],
    longest: int,
) -> list[Question]:
    """Makes a question for each word of a text that is of a group, all its pieces masked.

    ``groups`` has lower-case words by name. Of a text of more than ``longest`` tokens the first
    ones, [SEP] kept, are shown and asked.
    """
    encoded = tokenizer.encode(text)
    words: dict[int, list[int]] = {}
    for at, word in enumerate(encoded.word_ids):
        if word is not None:
            words.setdefault(word, []).append(at)
    tokens = np.array(encoded.ids, dtype=np.int64)
    fitting = select_tokens(len(tokens), longest) if len(tokens) > longest else slice(None)
    questions = []
    for places in words.values():
        start, end = encoded.offsets[places[0]][0], encoded.offsets[places[-1]][1]
        masked = np.zeros(len(tokens), dtype=np.bool_)
        masked[places] = True
        for group, members in groups.items():
            if text[start:end].lower() in members and masked[fitting].sum() == len(places):
                questions.append(
                    Question(
                        group=group,
                        tokens=tokens[fitting],
                        masked=masked[fitting],
                        image_id=image_id,
                    )
                )
    return questions


def region_questions(
    class_ids: npt.NDArray[Any] | None, tokens: Ids, image_id: str, group: str = "class"
) -> list[Question]:
    """Makes a question for each region of an image that has a class."""
    known = [] if class_ids is None else np.flatnonzero(np.asarray(class_ids) >= 0).tolist()
    nothing = np.zeros(len(tokens), dtype=np.bool_)
    return [
        Question(group=group, tokens=tokens, masked=nothing, image_id=image_id, region=at)
        for at in known
    ]


def other_of(names: Sequence[str]) -> dict[str, str]:
    """Returns another name for each name: the next, and for the last the first.

    Raises ValueError for less than two different ones.
    """
    different = list(dict.fromkeys(names))
    if len(different) < 2:
        raise ValueError(f"{len(different)} different images: expected at least 2")
    return dict(zip(different, different[1:] + different[:1], strict=True))


def beside(questions: Sequence[Question], images: Mapping[str, str]) -> list[Question]:
    """Puts questions beside the images that ``images`` names for their own."""
    return [replace(question, image_id=images[question.image_id]) for question in questions]


def told(questions: Sequence[Question], texts: Mapping[str, Ids]) -> list[Question]:
    """Gives questions about regions the text [T] of their image in ``texts``."""
    changed = []
    for question in questions:
        tokens = texts[question.image_id]
        nothing = np.zeros(len(tokens), dtype=np.bool_)
        changed.append(replace(question, tokens=tokens, masked=nothing))
    return changed
