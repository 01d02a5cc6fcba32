"""Makes batches by number: batch ``i`` of a stage is a pure function of the tables and the seed."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from vlmill.runtime.readers.images import Images
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.regions import Regions
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Arrays, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import read_features
from vlmill.train.loading.images.boxed import boxed_image
from vlmill.train.loading.images.crop import UndecodableImage, decode, training_images
from vlmill.train.loading.masking.patches import BlockMasking
from vlmill.train.loading.mixture import ROUND_EPOCH
from vlmill.train.loading.order import AlternatingOrder, PairOrder, Visit, order_pairs, stage_rows
from vlmill.train.loading.pairing import StagePairs
from vlmill.train.loading.random import Uniforms, streams
from vlmill.train.loading.sample import Sample, SampledRegions, fit_together, list_columns
from vlmill.train.loading.store.splits import Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Tolerance, Undecodable
from vlmill.train.settings.spec import TrainingStage

PATCH_SIZE = 16
Rows = tuple[Sample, ...]  # of one visit, consecutive in a batch


@dataclass(kw_only=True)
class StageBatches(Dataset[HostBatch], ABC):
    """Makes the batches of a stage, counted from 0.

    Steps are cut into ``accumulation`` times ``processes`` batches. The pairs of all epochs form
    one endless list: an epoch's last batch is completed with pairs of the next epoch.
    ``batches[i]`` plans a batch; :meth:`assembled` reads its features too. Files are opened when
    the first batch is requested, so that the object can be sent to worker processes. The subclass
    turns a visit into samples: pretraining's masked pairs, or a task's examples.
    """

    samples: Path | SampleTable  # the folder of the prepared pairs, or the pairs
    stage: TrainingStage
    stage_number: int
    seed: int
    splits: Splits | None = None  # of the samples; None: rows of all splits
    processes: int = 1
    regions: Regions | None = None
    images: Images | None = None
    longest: int = 512  # maximum number of the model's tokens
    global_features: bool = False  # whether the model takes features of full images
    tolerance: Tolerance | None = None  # for undecodable images; None: any number
    asking: str = "--pairs"  # the option that names the table of the samples

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def table(self) -> SampleTable:
        """Returns the prepared pairs."""
        samples = self.samples
        return samples if isinstance(samples, SampleTable) else SampleTable.open(samples)

    @cached_property
    def parts(self) -> int:
        """Returns the number of batches in a step."""
        return self.stage.accumulation * self.processes

    @cached_property
    def size(self) -> int:
        """Returns the number of pairs in a batch."""
        return self.stage.batch_size // self.parts

    @cached_property
    def max_tokens(self) -> int:
        """Returns the maximum number of a text's tokens."""
        return min(self.stage.feeding.max_tokens or self.longest, self.longest)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns of the regions table that are read in addition to the boxes."""
        return list_columns(self.stage.feeding, global_features=self.global_features)

    @cached_property
    def order(self) -> PairOrder | AlternatingOrder:
        """Returns the order in which the stage visits its pairs."""
        rows = stage_rows(self.table, self.stage, self.splits)
        turns = [group for group in self.in_turns(rows) if len(group)]
        return order_pairs(
            self.table,
            turns if len(turns) > 1 else [rows],
            self.stage,
            number=self.stage_number,
            seed=self.seed,
            size=self.size,
            parts=self.parts,
        )

    def in_turns(self, rows: Ids) -> Sequence[Ids]:
        """Returns the groups of rows that steps alternate between; one, unless a subclass has
        more.
        """
        return (rows,)

    @cached_property
    def pairs(self) -> StagePairs:
        """Returns the stage's pairs, from which negatives are sampled."""
        visited = np.zeros(len(self.table), dtype=np.bool_)
        visited[self.order.rows] = True
        return StagePairs(table=self.table, visited=visited)

    def draws(self, visits: Sequence[Visit], stage: int) -> list[Uniforms]:
        """Returns random numbers for each visit."""
        keys = self.table.pair_keys[[visit.row for visit in visits]]
        epochs = [visit.epoch + visit.repeat * ROUND_EPOCH for visit in visits]
        return streams(self.seed, stage, epochs, keys)

    @abstractmethod
    def make_samples(self, visits: Sequence[Visit]) -> list[Rows | Undecodable]:
        """Samples each of the visits, or returns its undecodable image."""

    @abstractmethod
    def collate_samples(self, index: int, samples: list[Sample]) -> HostBatch:
        """Collates batch ``index`` of these samples, which its visits produced."""

    def __getitem__(self, index: int) -> HostBatch:
        """Makes batch number ``index`` of the stage; its features stay in their files."""
        samples, undecodable = list[Sample](), list[Undecodable]()
        for slot, rows in enumerate(self.make_samples(self.order.batch(index))):
            if isinstance(rows, Undecodable):
                rows = self._replace(rows, index, slot, undecodable)
            samples += rows
        batch = self.collate_samples(index, samples)
        return dataclasses.replace(batch, undecodable=tuple(undecodable)) if undecodable else batch

    def _replace(
        self, rows: Rows | Undecodable, index: int, slot: int, undecodable: list[Undecodable]
    ) -> Rows:
        """Returns other samples for an undecodable image, which it adds to ``undecodable``.

        They depend only on the order and the images, for any number of workers and in a resumed
        run. Raises InputError if the ``tolerance`` is exceeded, and if no decodable image remains.
        """
        spares = self.order.spares(index, slot, self.parts)
        while isinstance(rows, Undecodable):
            undecodable.append(rows)
            if self.tolerance is not None:
                self.tolerance.check({fault.image_id: None for fault in undecodable})
            spare = next(spares, None)
            if spare is None:
                raise InputError(
                    f"--images: no image of stage {self.stage.name} can be decoded "
                    f"({rows.image_id}: {rows.why}); give other images"
                )
            (rows,) = self.make_samples([spare])
        return rows

    def assembled(self, index: int) -> HostBatch:
        """Makes batch number ``index`` with its features.

        Raises InputError with the images' ids if the features are not finite: no later step checks
        them.
        """
        return read_features(self[index], self.regions).require_finite()

    def imaged(
        self, sample: Sample, row: int, draws: Uniforms, *, second: bool = False
    ) -> Sample | Undecodable:
        """Returns a text with the image of a row of the table, or with the ``second`` one; an
        `Undecodable` if it cannot be decoded.
        """
        table, feeding = self.table, self.stage.feeding
        row_number, image_key = int(table.image_rows[row]), table.image_key(row)
        id_column = "image_id"
        if second:
            row_number, id_column = table.value("second_row", row), "second_image_id"
        text, regions, pixels = sample.text, None, Arrays()
        try:
            if feeding.kind in ("regions", "picture-regions"):
                from_pixels = feeding.kind == "picture-regions"
                image = self._decode(table.value(id_column, row)) if from_pixels else None
                if image is not None and feeding.boxes == "examples":
                    regions = self._example_regions(row, image.size, draws)
                else:
                    regions = self._regions(row_number, draws)
                if feeding.max_elements is not None:
                    whole = feeding.whole_image != "none"
                    text, regions = fit_together(
                        text, regions, feeding.max_elements, has_whole_image=whole
                    )
                if image is not None:
                    pixels = self._boxed(image, regions)
            elif feeding.kind in ("pixels", "pictures"):
                pixels = self._pixels(row_number, table.value(id_column, row), draws)
        except UndecodableImage as error:
            return Undecodable(
                pair_id=table.pair_id(row),
                image_id=error.image_id,
                reason=error.cause.reason,
                why=error.cause.detail,
            )
        return dataclasses.replace(
            sample, text=text, regions=regions, pixels=pixels, image_key=image_key
        )

    @abstractmethod
    def _regions(self, row_number: int, draws: Uniforms) -> SampledRegions:
        """Reads the regions of a row of their table."""

    def _example_regions(self, row: int, size: tuple[int, int], draws: Uniforms) -> SampledRegions:
        """Returns boxes stored in a row of the samples, with the image's width and height."""
        raise InputError(
            f"stages.{self.stage_number}.feeding.boxes=examples: {self.asking} has no boxes; set "
            "it to detected"
        )

    @cached_property
    def _join(self) -> Join:
        assert self.images is not None
        return Join(self.images.index, asking=self.asking, holding="--images")

    def _decode(self, image_id: str) -> Image.Image:
        """Returns an image of the stage, RGB and upright. Raises UndecodableImage."""
        assert self.images is not None
        (row_number,) = self._join.find([image_id])
        return decode(self.images.read_bytes(int(row_number)), image_id)

    def _boxed(self, image: Image.Image, regions: SampledRegions) -> Arrays:
        """Returns the image with the boxes of its regions, as the model takes them."""
        return boxed_image(image, regions, self.stage.feeding)

    def _pixels(self, row_number: int, image_id: str, draws: Uniforms) -> Arrays:
        assert self.images is not None
        content, feeding = self.images.read_bytes(row_number), self.stage.feeding
        pixels, small = training_images(content, image_id, draws, feeding)
        if small is None:
            return {"pixels": pixels}
        mask = BlockMasking.for_grid(feeding.image_size // PATCH_SIZE).draw(draws)
        return {"pixels": pixels, "token_pixels": small, "patch_mask": mask}
