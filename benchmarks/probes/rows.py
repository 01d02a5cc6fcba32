"""Turns questions into rows of a batch, by the functions that make training's and evaluation's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.boxes import overlapping, overlaps
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.images.crop import evaluation_image
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens, select_tokens
from vlmill.train.loading.sample import (
    Sample,
    SampledRegions,
    fit_together,
    list_columns,
    take_regions,
)
from vlmill.train.settings.parts import Feeding


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


OVERLAP = 0.4  # above it a box shows the same thing, as in InterBERT's groups


class Shown(Protocol):
    """Says where the images beside texts come from."""

    def sample(self, question: Question, text: MaskedTokens) -> Sample:
        """Returns the row of a question."""
        ...

    def has(self, image_id: str) -> bool:
        """Says whether there is something to be seen of an image."""
        ...

    @property
    def regions(self) -> RegionReader | None:
        """Returns the reader that features are read from."""
        ...

    @property
    def feeding(self) -> Feeding:
        """Says what the model is fed."""
        ...


class ShownRegions:
    """Shows regions, fed by ``feeding`` but never mirrored."""

    def __init__(self, regions: RegionReader, feeding: Feeding) -> None:
        self.regions, self.feeding = regions, feeding

    def has(self, image_id: str) -> bool:
        """Says whether the image has at least one box."""
        return image_id in self.regions and self.regions.num_boxes(image_id) > 0

    def sample(self, question: Question, text: MaskedTokens) -> Sample:
        """Makes the row with the asked region hidden, and all that show the same thing."""
        (number,) = self.regions.find([question.image_id]).tolist()
        group, within = self.regions.locate_row(number)
        regions = take_regions(group, within, self.feeding, list_columns(self.feeding))
        regions = hiding(regions, question.region)
        if (longest := self.feeding.max_elements) is not None:
            whole = self.feeding.whole_image != "none"
            text, regions = fit_together(text, regions, longest, has_whole_image=whole)
        return Sample(pair_id=question.image_id, text=text, regions=regions)


class ShownPixels:
    """Shows full images as pixels."""

    regions: RegionReader | None = None

    def __init__(self, images: ImageReader, feeding: Feeding) -> None:
        self._images, self.feeding = images, feeding

    def has(self, image_id: str) -> bool:
        """Says whether the table has a row of the image."""
        return image_id in self._images

    def sample(self, question: Question, text: MaskedTokens) -> Sample:
        """Makes the row with the image of evaluation."""
        content, size = self._images[question.image_id], self.feeding.image_size
        pixels = evaluation_image(content, question.image_id, size)
        return Sample(pair_id=question.image_id, text=text, pixels={"pixels": pixels})


def hiding(regions: SampledRegions, asked: int | None) -> SampledRegions:
    """Returns the regions with that at the place ``asked`` of its row to be guessed; its feature
    and those of the same thing are zeros.
    """
    if asked is None:
        return regions
    places = regions.features.find_positions(np.arange(len(regions.boxes)))
    masked = places == asked
    zeroed = overlapping(masked, overlaps(regions.row.boxes[places]), threshold=OVERLAP)
    return replace(regions, masks=MaskedRegions(masked=masked, zeroed=zeroed))


def batches(
    questions: Sequence[Question], shown: Shown, mask_id: int, batch_size: int
) -> Iterator[HostBatch]:
    """Yields the questions as rows, in order, in host memory."""
    for start in range(0, len(questions), batch_size):
        samples = [
            shown.sample(question, masked_text(question, mask_id))
            for question in questions[start : start + batch_size]
        ]
        yield read_features(collate(samples, shown.feeding), shown.regions)


def masked_text(question: Question, mask_id: int) -> MaskedTokens:
    """Returns the question's text, [MASK] for each token that is asked."""
    seen = np.where(question.masked, mask_id, question.tokens)
    return MaskedTokens(original=question.tokens, tokens=seen, masked=question.masked)
