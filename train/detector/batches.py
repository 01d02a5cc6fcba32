"""Builds a run's batches of images and their boxes, the same for any number of workers.

The order, the mirroring and the size of an image follow from (seed, epoch, image) alone, so a run
that continues forms the batches that it would have formed.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import Pixels, decode
from vlmill.extract.images.resize import network_input
from vlmill.models.detector.config import DetectorConfig
from vlmill.runtime.processes import process_context
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.train.detector.examples import Example
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.step import Batch, Truth
from vlmill.train.detector.targets import Draw
from vlmill.train.loading.undecodable import Undecodable

MIRROR, SIZE, ORDER, DRAW = 1, 2, 3, 4  # the purposes of random numbers
MOST_FURTHER = 100  # images that are tried where none of a step's can be used


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Holds an example's index, and how its image is changed."""

    example: int
    short_side: int
    mirrored: bool


@dataclass(frozen=True, kw_only=True)
class LoadedImage:
    """Holds an image as the network takes it, or the reason why it has none."""

    image_id: str
    image: Float[Tensor, "3 H W"] | None
    truth: Truth | None
    scale: float = 1.0
    reject: tuple[Reason, str] | None = None  # why, and the details


def padded_batch(
    image_ids: Sequence[str],
    images: Sequence[Float[Tensor, "3 H W"]],
    truths: Sequence[Truth],
    scales: Sequence[float],
    config: DetectorConfig,
) -> Batch:
    """Puts images of several sizes into one tensor; ``scales`` are their resize factors."""
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    padded = [F.pad(p, (0, width - p.shape[2], 0, height - p.shape[1])) for p in images]
    return Batch(
        image_ids=tuple(image_ids),
        images=torch.stack(padded),
        sizes=tuple(sizes),
        min_sides=torch.tensor([config.min_input_size(scale) for scale in scales]),
        truths=tuple(truths),
    )


def make_generator(*numbers: int) -> np.random.Generator:
    """Returns random numbers that depend only on these numbers."""
    return np.random.default_rng(numbers)


def epoch_order(wide: Sequence[bool], seed: int, epoch: int, batch_size: int) -> list[list[int]]:
    """Groups an epoch's examples into steps of only wide or only tall images, in random order.

    Batches of such groups need little padding (Detectron2's aspect ratio grouping). The remaining
    examples of both groups at the end of an epoch fill one mixed step; the others wait for other
    epochs.
    """
    order = make_generator(seed, ORDER, epoch).permutation(len(wide)).tolist()
    open_groups: dict[bool, list[int]] = {True: [], False: []}
    steps = []
    for example in order:
        group = open_groups[wide[example]]
        group.append(example)
        if len(group) == batch_size:
            steps.append(group.copy())
            group.clear()
    left = open_groups[True] + open_groups[False]
    steps += [left[start : start + batch_size] for start in range(0, len(left), batch_size)]
    full = [step for step in steps if len(step) == batch_size]
    # Fewer examples than a step has fill it several times.
    return full or [[order[index % len(order)] for index in range(batch_size)]]


def visits_from(
    wide: Sequence[bool], settings: TrainingSettings, done: int
) -> Iterator[list[Visit]]:
    """Yields the visits of the steps after ``done``, for an endless series of epochs."""
    step, epoch = 0, 0
    while True:
        groups = epoch_order(wide, settings.seed, epoch, settings.batch_size)
        for group in groups[max(done - step, 0) :]:
            yield [make_visit(example, epoch, settings) for example in group]
        step, epoch = step + len(groups), epoch + 1


def make_visit(example: int, epoch: int, settings: TrainingSettings) -> Visit:
    """Returns random settings for an example's image in an epoch."""
    side = make_generator(settings.seed, SIZE, epoch, example).integers(len(settings.short_sides))
    mirrored = make_generator(settings.seed, MIRROR, epoch, example).random() < settings.flip
    return Visit(
        example=example, short_side=settings.short_sides[int(side)], mirrored=bool(mirrored)
    )


def decode_example(example: Example, data: bytes | None, limits: InputLimits) -> Pixels:
    """Decodes an example's image; raises Rejected if it is missing or has another size."""
    if data is None:
        raise Rejected(Reason.NO_IMAGE, "the table of images has no bytes for this image")
    pixels = decode(data, limits)
    height, width = pixels.shape[:2]
    if (width, height) != (example.width, example.height):
        raise Rejected(
            Reason.BAD_BOXES,
            f"the image is {width} x {height}, its boxes are of {example.width} x {example.height}",
        )
    return pixels


def load_example(
    example: Example, data: bytes | None, visit: Visit, settings: TrainingSettings
) -> LoadedImage:
    """Decodes, mirrors and resizes an image with its boxes; returns the reason if it cannot."""
    config = settings.detector
    limits = InputLimits(short_side=visit.short_side, long_side=settings.long_side)
    try:
        pixels = decode_example(example, data, limits)
        if visit.mirrored:
            pixels = np.ascontiguousarray(pixels[:, ::-1])
        resized = network_input(pixels, config, limits)
    except Rejected as why:
        return LoadedImage(
            image_id=example.image_id, image=None, truth=None, reject=(why.reason, str(why))
        )
    boxes = torch.from_numpy(example.boxes.copy())
    if visit.mirrored:
        boxes[:, [0, 2]] = example.width - boxes[:, [2, 0]]
    boxes = boxes * torch.tensor(resized.factors * 2)
    boxes[:, 2:] -= config.box_offset
    truth = Truth(
        boxes=boxes,
        classes=torch.from_numpy(example.classes),
        attributes=torch.from_numpy(example.attributes),
    )
    return LoadedImage(
        image_id=example.image_id, image=resized.tensor[0], truth=truth, scale=resized.scale
    )


class Images(Dataset[list[LoadedImage]]):
    """Loads the images of single steps; an index is a list of visits."""

    def __init__(
        self, examples: Sequence[Example], images: ImageReader, settings: TrainingSettings
    ) -> None:
        self.examples, self.images, self.settings = examples, images, settings

    def __getitem__(self, visits: list[Visit]) -> list[LoadedImage]:
        """Loads a step's images; if none of them is usable, further ones up to the first usable
        one: with one image per process, a run would otherwise end at a broken image.
        """
        loaded_images = [self.load(visit) for visit in visits]
        while not any(image.image is not None for image in loaded_images) and len(
            loaded_images
        ) < self.max_attempts(visits):
            following = (visits[-1].example + 1 + len(loaded_images) - len(visits)) % len(
                self.examples
            )
            loaded_images.append(self.load(dataclasses.replace(visits[-1], example=following)))
        return loaded_images

    def max_attempts(self, visits: Sequence[Visit]) -> int:
        """Returns how many images are tried at most for a step."""
        return len(visits) + min(MOST_FURTHER, len(self.examples) - 1)

    def load(self, visit: Visit) -> LoadedImage:
        example = self.examples[visit.example]
        return load_example(example, self.images.read_bytes(example.row), visit, self.settings)


def step_parts(
    images: Images, settings: TrainingSettings, *, done: int, rank: int = 0, processes: int = 1
) -> Iterator[Batch]:
    """Yields this process's parts of each step after ``done``.

    A step's images are dealt out one by one to the first parts of all processes, then to the second
    ones. Raises InputError where none of a part's images can be used.
    """
    wide = [example.width > example.height for example in images.examples]
    every = settings.accumulation * processes
    visits = (
        group[first::every]
        for group in visits_from(wide, settings, done)
        for first in range(rank, every, processes)
    )
    loaded_parts: Iterable[list[LoadedImage]] = map(images.__getitem__, visits)
    if settings.workers:
        loaded_parts = DataLoader(
            images,
            sampler=Endless(visits),
            batch_size=None,
            num_workers=settings.workers,
            multiprocessing_context=process_context(__name__),
            collate_fn=as_it_is,
        )
    for number, loaded_images in enumerate(loaded_parts, start=done * settings.accumulation + 1):
        batch = make_batch(loaded_images, settings)
        yield dataclasses.replace(batch, draw=drawing(settings.seed, number, rank))


def make_batch(loaded_images: Sequence[LoadedImage], settings: TrainingSettings) -> Batch:
    """Puts the usable images of a part together. Raises InputError if there are none."""
    usable = [
        (image.image_id, image.image, image.truth, image.scale)
        for image in loaded_images
        if image.image is not None and image.truth is not None
    ]
    if not usable:
        why = "; ".join(f"{image.image_id}: {image.reject}" for image in loaded_images[:4])
        raise InputError(
            f"--images: none of {len(loaded_images)} images of a step can be used ({why}); fix the "
            "table"
        )
    undecodable = tuple(
        Undecodable(
            pair_id=image.image_id,
            image_id=image.image_id,
            reason=image.reject[0],
            why=image.reject[1],
        )
        for image in loaded_images
        if image.reject is not None
    )
    image_ids, tensors, truths, scales = zip(*usable, strict=True)
    batch = padded_batch(image_ids, tensors, truths, scales, settings.detector)
    return dataclasses.replace(batch, undecodable=undecodable)


def drawing(seed: int, part: int, rank: int) -> Draw:
    """Returns the permutations of one part, counted from 1 over all steps, of one process; they
    depend only on these numbers.
    """
    mixed = torch.Generator().manual_seed(((seed * 1_000_003 + part) * 4_099 + rank) * 8 + DRAW)

    def draw(count: int) -> Int64[Tensor, " n"]:
        return torch.randperm(count, generator=mixed)

    return draw


class Endless:
    """Gives the indices of a stream to a loader."""

    def __init__(self, visits: Iterator[list[Visit]]) -> None:
        self.visits = visits

    def __iter__(self) -> Iterator[list[Visit]]:
        return self.visits


def as_it_is(loaded: list[LoadedImage]) -> list[LoadedImage]:
    """Returns a step's images unchanged."""
    return loaded
