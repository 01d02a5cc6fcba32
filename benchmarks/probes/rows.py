"""Questions as rows of a batch, by the functions that make training's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from probes.questions import Question
from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.regions import RegionReader
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import Source, StoredBatch
from vlmill.train.loading.boxes import overlapping, overlaps
from vlmill.train.loading.collate import plan
from vlmill.train.loading.features import assemble, source_of
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.pictures.crop import evaluation_picture
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample, SampledRegions, kept_tokens, sample_regions
from vlmill.train.recipes.spec import Feeding, Masking

NOTHING_MASKED = Masking(words=0.0, regions=0.0)
OVERLAP = 0.4  # above it a box shows the same thing, as in InterBERT's groups


class Shown(Protocol):
    """Where the pictures beside texts come from."""

    def sample(
        self, question: Question, tokens: MaskedTokens
    ) -> tuple[Sample, Source | None, dict[str, npt.NDArray[Any]]]:
        """The row of a question, where its features lie, and its pixels."""
        ...

    def has(self, image_id: str) -> bool:
        """Whether there is something to be seen of a picture."""
        ...

    @property
    def regions(self) -> RegionReader | None:
        """What features are read from."""
        ...

    @property
    def feeding(self) -> Feeding:
        """What the model is fed."""
        ...


class ShownRegions:
    """Regions, fed by ``feeding`` but never mirrored."""

    def __init__(self, regions: RegionReader, feeding: Feeding) -> None:
        self.regions, self.feeding = regions, replace(feeding, flip=0.0)

    def has(self, image_id: str) -> bool:
        """At least one box."""
        return image_id in self.regions and self.regions.num_boxes(image_id) > 0

    def sample(
        self, question: Question, tokens: MaskedTokens
    ) -> tuple[Sample, Source | None, dict[str, npt.NDArray[Any]]]:
        """With the asked region hidden, and all that show the same thing."""
        (number,) = self.regions.find([question.image_id]).tolist()
        group, within = self.regions.located(number)
        row, draws = group.row(within), Uniforms()  # nothing comes of them
        found, words = sample_regions(row, tokens, draws, self.feeding, NOTHING_MASKED)
        found = hiding(found, question.region)
        original = question.tokens
        if words < len(original):
            kept = kept_tokens(len(original), words)
            original = original[kept]
            tokens = MaskedTokens(tokens=tokens.tokens[kept], masked=tokens.masked[kept])
        source = source_of(group, within, found.count, found.order)
        return _row(question, original, tokens, found), source, {}


class ShownPixels:
    """Whole pictures as pixels."""

    regions: RegionReader | None = None

    def __init__(self, images: ImageReader, feeding: Feeding) -> None:
        self._images, self.feeding = images, feeding

    def has(self, image_id: str) -> bool:
        """A row of the table."""
        return image_id in self._images

    def sample(
        self, question: Question, tokens: MaskedTokens
    ) -> tuple[Sample, Source | None, dict[str, npt.NDArray[Any]]]:
        """With the picture of evaluation."""
        data, size = self._images[question.image_id], self.feeding.image_size
        pixels = evaluation_picture(data, question.image_id, size)
        return _row(question, question.tokens, tokens, None), None, {"pixels": pixels}


def _row(
    question: Question, original: Ids, tokens: MaskedTokens, regions: SampledRegions | None
) -> Sample:
    return Sample(
        pair_id=question.image_id, original=original, tokens=tokens, regions=regions, matching=True
    )


def hiding(found: SampledRegions, region: int | None) -> SampledRegions:
    """The regions with one to be guessed; its feature and those of the same thing are zeros."""
    if region is None:
        return found
    places = found.places(np.arange(found.count))
    asked = places == region
    hidden = overlapping(asked, overlaps(found.row.boxes[places]), threshold=OVERLAP)
    return replace(found, masks=MaskedRegions(masked=asked, zeroed=hidden))


def batches(
    questions: Sequence[Question], shown: Shown, mask_id: int, batch_size: int
) -> Iterator[StoredBatch]:
    """The questions as rows, in order, in host memory."""
    for start in range(0, len(questions), batch_size):
        made = []
        for question in questions[start : start + batch_size]:
            seen = np.where(question.masked, mask_id, question.tokens)
            made.append(shown.sample(question, MaskedTokens(tokens=seen, masked=question.masked)))
        planned = plan(
            [sample for sample, _, _ in made],
            [source for _, source, _ in made if source is not None],
            shown.feeding,
            mismatched_words=True,
            mismatched_regions=True,
            pixels=[pixels for _, _, pixels in made if pixels],
        )
        yield assemble(planned, shown.regions)
