"""Opens what ``train-vl embed`` reads, and cuts it into parts, each of which becomes a shard."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vlmill.models import VARIANTS
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.files.digests import file_input, table_input
from vlmill.schemas.files.inputs import Input
from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.regions import RegionReader
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.features import global_widths_of
from vlmill.train.recipes.parts import Feeding
from vlmill.train.recipes.variants import training_of
from vlmill.train.run.lineage import checkpoint_input
from vlmill.train.tasks.retrieval.candidates import PairsRead, Texts, encode_texts, read_pairs
from vlmill.train.tasks.retrieval.checks import (
    body_config,
    feeding_of,
    longest_text,
    notes_on_regions,
)
from vlmill.train.tasks.retrieval.inputs import PixelPictures, RegionPictures
from vlmill.train.tasks.retrieval.job import FED
from vlmill.train.tasks.search.kinds import IMAGE, PAIR, TEXT

Way = Literal["dual", "pair", "text"]  # texts and pictures by themselves, pairs, texts alone


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Holds what ``train-vl embed`` is told; tables are folders, files or globs."""

    checkpoint: Path
    output: Path
    pairs: str | None = None
    regions: str | None = None
    images: str | None = None
    device: str = "cpu"
    batch_size: int = 64
    vectors_per_shard: int = 10_000
    max_regions: int | None = None
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """Holds which pictures, texts or pairs, from ``start`` to ``stop``, a shard has."""

    kind: str
    start: int
    stop: int


@dataclass(kw_only=True)
class Embedded:
    """Holds the inputs of an embedding, opened and found to fit together.

    ``image_ids`` are the pictures that are embedded by themselves; ``read`` and ``texts`` the
    pairs, None without ``--pairs``, of which the rows ``repeated`` have an earlier one's pair_id.
    """

    options: EmbedOptions
    device: torch.device
    loaded: LoadedCheckpoint
    weights_sha256: str
    way: Way
    feeding: Feeding
    regions: RegionReader | None
    images: ImageReader | None
    image_ids: list[str]
    read: PairsRead | None
    texts: Texts | None
    repeated: frozenset[int]
    notes: list[str]

    def pictures(self) -> RegionPictures | PixelPictures:
        """Makes what the model reads of pictures."""
        if self.regions is not None:
            whole = bool(global_widths_of(body_config(self.loaded)))
            return RegionPictures(self.regions, self.feeding, global_features=whole)
        assert self.images is not None
        return PixelPictures(self.images, self.feeding)

    def parts(self) -> list[Part]:
        """Returns pictures first, then texts or pairs, cut at ``vectors_per_shard``."""
        num_pairs = 0 if self.read is None else len(self.read.pairs)
        sizes = [(IMAGE, len(self.image_ids)), (PAIR if self.way == "pair" else TEXT, num_pairs)]
        return [part for kind, count in sizes for part in self._cut(kind, count)]

    def _cut(self, kind: str, count: int) -> Iterator[Part]:
        size = self.options.vectors_per_shard
        for start in range(0, count, size):
            yield Part(kind=kind, start=start, stop=min(start + size, count))


def way_of(loaded: LoadedCheckpoint) -> Way:
    """Says what the model gives vectors of. Raises InputError for one that gives none."""
    who = f"--checkpoint {loaded.path} is {with_article(loaded.variant)}"
    config = body_config(loaded)
    if loaded.variant == "vlmo" and config.contrast:
        return "dual"
    if loaded.variant == "bert":
        return "text"
    training = training_of(loaded.variant)
    pairs = loaded.feeding is None or loaded.feeding.kind in ("regions", "pixels")
    fits = not training.makes_features and not training.kind and pairs
    body = training.body_of(loaded.model)
    pools = getattr(config, "pooler", True) and hasattr(body, "encode")
    if not fits or not (pools or loaded.variant == "vlmo"):
        others = {name: training_of(name) for name in VARIANTS}
        names = [name for name, of in others.items() if not (of.kind or of.makes_features)]
        names.append("bert")
        raise InputError(
            f"{who}, which gives no vector of a text with a picture; embed with one of "
            f"{', '.join(names)}"
        )
    if getattr(config, "num_tasks", 0):
        raise InputError(f"{who} that wants a task's token, which embedding does not feed it")
    return "pair"


def weights_digest(loaded: LoadedCheckpoint) -> str:
    """Returns the SHA-256 of a checkpoint's weights: vectors and queries of others do not meet."""
    digest = file_input("--checkpoint", loaded.path / MODEL).digest
    assert digest is not None
    return digest


def open_embedding(options: EmbedOptions) -> Embedded:
    """Opens everything that is read. Raises InputError for what does not fit together."""
    for flag, value in (
        ("--batch-size", options.batch_size),
        ("--vectors-per-shard", options.vectors_per_shard),
    ):
        if value < 1:
            raise InputError(f"{flag} {value}: want at least 1")
    device = device_named(options.device)
    loaded = load_checkpoint(options.checkpoint)
    way, feeding = way_of(loaded), feeding_of(loaded, options.max_regions)
    regions, images, notes = _open_pictures(options, loaded, way, feeding)
    read = None if options.pairs is None else read_pairs(options.pairs)
    longest = longest_text(loaded, feeding)
    captions = [] if read is None else [pair.text for pair in read.pairs]
    return Embedded(
        options=options,
        device=device,
        loaded=loaded,
        weights_sha256=weights_digest(loaded),
        way=way,
        feeding=feeding,
        regions=regions,
        images=images,
        image_ids=images.image_ids if way == "dual" and images is not None else [],
        read=read,
        texts=None if read is None else encode_texts(loaded.tokenizer, captions, longest),
        repeated=frozenset() if read is None else frozenset(_repeated(read)),
        notes=notes,
    )


def _repeated(read: PairsRead) -> Iterator[int]:
    seen = set[str]()
    for at, pair in enumerate(read.pairs):
        if pair.pair_id in seen:
            yield at
        seen.add(pair.pair_id)


def _open_pictures(
    options: EmbedOptions, loaded: LoadedCheckpoint, way: Way, feeding: Feeding
) -> tuple[RegionReader | None, ImageReader | None, list[str]]:
    """Opens the table of pictures, and says what is to be told of it."""
    who = with_article(loaded.variant)
    if way == "dual":
        if options.pairs is None and options.images is None:
            raise InputError(f"--pairs and --images are missing: {who} embeds texts and pictures")
        return None, None if options.images is None else ImageReader(options.images), []
    if options.pairs is None:
        what = "texts alone" if way == "text" else "a text with its picture"
        raise InputError(f"--pairs is missing: {who} embeds {what}")
    if way == "text":
        return None, None, []
    if feeding.kind == "pixels":
        if options.images is None:
            raise InputError(f"--images is missing: {who} reads pictures")
        return None, ImageReader(options.images), []
    if options.regions is None:
        raise InputError(f"--regions is missing: {who} reads regions")
    regions = RegionReader(options.regions)
    return regions, None, notes_on_regions(loaded, regions, feeding)


def producer_of(opened: Embedded) -> dict[str, Any]:
    """Returns what the shards say of their making: a query has to be embedded alike."""
    feeding, loaded = opened.feeding, opened.loaded
    return {
        "checkpoint": str(opened.options.checkpoint),
        "weights_sha256": opened.weights_sha256,
        "variant": loaded.variant,
        "way": opened.way,
        **{f"feeding.{name}": getattr(feeding, name) for name in FED[feeding.kind]},
    }


def settings_of(opened: Embedded, inputs: list[Input]) -> Mapping[str, Any]:
    """Returns what decides the rows, contents included."""
    options = opened.options
    return {
        **producer_of(opened),
        "device": opened.device.type,
        "batch_size": options.batch_size,
        "vectors_per_shard": options.vectors_per_shard,
        "inputs": {entry.flag.removeprefix("--"): entry.digest for entry in inputs},
    }


def inputs_of(opened: Embedded) -> list[Input]:
    """Records what an embedding reads, for its manifest."""
    options = opened.options
    read_images = options.images if opened.images is not None else None
    read_regions = options.regions if opened.regions is not None else None
    tables = (
        ("--pairs", options.pairs, PAIRS),
        ("--regions", read_regions, REGIONS),
        ("--images", read_images, IMAGES),
    )
    return [
        checkpoint_input("--checkpoint", opened.loaded.path),
        *(table_input(flag, path, table) for flag, path, table in tables if path is not None),
    ]
