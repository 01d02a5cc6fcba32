"""Turns questions into rows of a batch, by the functions that make training's and evaluation's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from probes.questions import Question
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.boxes import overlapping, overlaps
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.images.crop import evaluation_image
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.sample import (
    Sample,
    SampledRegions,
    fit_together,
    list_columns,
    take_regions,
)
from vlmill.train.settings.parts import Feeding

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
        text, regions = fit_together(text, hiding(regions, question.region), self.feeding)
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
