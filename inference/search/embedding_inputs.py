"""Opens the inputs of ``train-vl embed``, and divides them into parts, one for each shard."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vlmill.inference.search.table import IMAGE, PAIR, TEXT
from vlmill.models import VARIANTS
from vlmill.models.registry import get_variant
from vlmill.runtime.files.digests import file_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.vocabulary import Texts, encode_texts
from vlmill.train.run.lineage import checkpoint_input
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.candidates import LoadedPairs, read_pairs
from vlmill.train.tasks.retrieval.checks import (
    find_feeding,
    longest_text,
    notes_on_regions,
)
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages
from vlmill.train.tasks.retrieval.job import FED

EmbeddingMode = Literal["dual", "pair", "text"]  # separate texts and images, pairs, only texts


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Holds the options of ``train-vl embed``; tables are folders, files or globs."""

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
    """Holds the range of images, texts or pairs of a shard, from ``start`` to ``stop``."""

    kind: str
    start: int
    stop: int


@dataclass(kw_only=True)
class EmbeddingSetup:
    """Holds the opened and compatible inputs of an embedding.

    ``image_ids`` are the images that are encoded separately; ``loaded_pairs`` and ``texts`` the
    pairs, None without ``--pairs``; the rows ``repeated`` have an earlier row's pair_id.
    """

    options: EmbedOptions
    device: torch.device
    loaded: LoadedCheckpoint
    weights_sha256: str
    mode: EmbeddingMode
    feeding: Feeding
    regions: RegionReader | None
    images: ImageReader | None
    image_ids: list[str]
    loaded_pairs: LoadedPairs | None
    texts: Texts | None
    repeated: frozenset[int]
    notes: list[str]

    def image_inputs(self) -> RegionImages | PixelImages:
        """Returns the model's inputs for images."""
        if self.regions is not None:
            return RegionImages(
                self.regions, self.feeding, global_features=self.loaded.takes_global_features
            )
        assert self.images is not None
        return PixelImages(self.images, self.feeding)

    def parts(self) -> list[Part]:
        """Returns images first, then texts or pairs, split at ``vectors_per_shard``."""
        num_pairs = 0 if self.loaded_pairs is None else len(self.loaded_pairs.pairs)
        sizes = [(IMAGE, len(self.image_ids)), (PAIR if self.mode == "pair" else TEXT, num_pairs)]
        return [part for kind, count in sizes for part in self._split_parts(kind, count)]

    def _split_parts(self, kind: str, count: int) -> Iterator[Part]:
        size = self.options.vectors_per_shard
        for start in range(0, count, size):
            yield Part(kind=kind, start=start, stop=min(start + size, count))


def find_embedding_mode(loaded: LoadedCheckpoint) -> EmbeddingMode:
    """Returns the kinds of vectors that the model computes. Raises InputError for a model without
    any.
    """
    who = f"--checkpoint {loaded.path} is {with_article(loaded.variant)}"
    config = loaded.body
    variant = get_variant(loaded.variant)
    if variant.contrasts and config.contrast:
        return "dual"
    if variant.kind == "text":
        return "text"
    pairs = loaded.feeding is None or loaded.feeding.kind in ("regions", "pixels")
    fits = not variant.makes_features and not variant.kind and pairs
    body = variant.get_body(loaded.model)
    pools = getattr(config, "pooler", True) and hasattr(body, "encode")
    if not fits or not (pools or variant.contrasts):
        pair_models = [
            n for n, other in VARIANTS.items() if not (other.kind or other.makes_features)
        ]
        names = [*pair_models, *(n for n, other in VARIANTS.items() if other.kind == "text")]
        raise InputError(
            f"{who}, which has no vector for a text with an image; use one of {', '.join(names)}"
        )
    if getattr(config, "num_tasks", 0):
        raise InputError(f"{who} that needs a task token, which embedding does not provide")
    return "pair"


def weights_digest(loaded: LoadedCheckpoint) -> str:
    """Returns the SHA-256 of a checkpoint's weights: vectors and queries of different weights are
    not compared.
    """
    digest = file_input("--checkpoint", loaded.path / MODEL).digest
    assert digest is not None
    return digest


def open_embedding(options: EmbedOptions) -> EmbeddingSetup:
    """Opens all inputs. Raises InputError for incompatible ones."""
    for flag, value in (
        ("--batch-size", options.batch_size),
        ("--vectors-per-shard", options.vectors_per_shard),
    ):
        if value < 1:
            raise InputError(f"{flag} {value}: expected at least 1")
    device = device_named(options.device)
    loaded = load_checkpoint(options.checkpoint)
    mode, feeding = find_embedding_mode(loaded), find_feeding(loaded, options.max_regions)
    regions, images, notes = _open_images(options, loaded, mode, feeding)
    loaded_pairs = None if options.pairs is None else read_pairs(options.pairs)
    longest = longest_text(loaded, feeding)
    captions = [] if loaded_pairs is None else [pair.text for pair in loaded_pairs.pairs]
    return EmbeddingSetup(
        options=options,
        device=device,
        loaded=loaded,
        weights_sha256=weights_digest(loaded),
        mode=mode,
        feeding=feeding,
        regions=regions,
        images=images,
        image_ids=images.image_ids if mode == "dual" and images is not None else [],
        loaded_pairs=loaded_pairs,
        texts=None if loaded_pairs is None else encode_texts(loaded.tokenizer, captions, longest),
        repeated=frozenset() if loaded_pairs is None else frozenset(_find_repeated(loaded_pairs)),
        notes=notes,
    )


def _find_repeated(loaded_pairs: LoadedPairs) -> Iterator[int]:
    previous_ids = set[str]()
    for index, pair in enumerate(loaded_pairs.pairs):
        if pair.pair_id in previous_ids:
            yield index
        previous_ids.add(pair.pair_id)


def _open_images(
    options: EmbedOptions, loaded: LoadedCheckpoint, mode: EmbeddingMode, feeding: Feeding
) -> tuple[RegionReader | None, ImageReader | None, list[str]]:
    """Opens the table of images, and prints notes about it."""
    who = with_article(loaded.variant)
    if mode == "dual":
        if options.pairs is None and options.images is None:
            raise InputError(f"--pairs and --images are missing: {who} embeds texts and images")
        return None, None if options.images is None else ImageReader(options.images), []
    if options.pairs is None:
        what = "texts alone" if mode == "text" else "a text with its image"
        raise InputError(f"--pairs is missing: {who} embeds {what}")
    if mode == "text":
        return None, None, []
    if feeding.kind == "pixels":
        if options.images is None:
            raise InputError(f"--images is missing: {who} reads images")
        return None, ImageReader(options.images), []
    if options.regions is None:
        raise InputError(f"--regions is missing: {who} reads regions")
    regions = RegionReader(options.regions)
    return regions, None, notes_on_regions(loaded, regions, feeding)


def make_producer(setup: EmbeddingSetup) -> dict[str, Any]:
    """Returns the producer metadata of the shards: queries must be encoded the same way."""
    feeding, loaded = setup.feeding, setup.loaded
    return {
        "checkpoint": str(setup.options.checkpoint),
        "weights_sha256": setup.weights_sha256,
        "variant": loaded.variant,
        "way": setup.mode,
        **{f"feeding.{name}": getattr(feeding, name) for name in FED[feeding.kind]},
    }


def collect_settings(setup: EmbeddingSetup, inputs: list[Input]) -> Mapping[str, Any]:
    """Returns the settings that determine the rows, including digests of contents."""
    options = setup.options
    return {
        **make_producer(setup),
        "device": setup.device.type,
        "batch_size": options.batch_size,
        "vectors_per_shard": options.vectors_per_shard,
        "inputs": {entry.flag.removeprefix("--"): entry.digest for entry in inputs},
    }


def collect_inputs(setup: EmbeddingSetup) -> list[Input]:
    """Records the inputs of an embedding for its manifest."""
    options = setup.options
    read_images = options.images if setup.images is not None else None
    read_regions = options.regions if setup.regions is not None else None
    tables = (
        ("--pairs", options.pairs, PAIRS),
        ("--regions", read_regions, REGIONS),
        ("--images", read_images, IMAGES),
    )
    return [
        checkpoint_input("--checkpoint", setup.loaded.path),
        *(table_input(flag, path, table) for flag, path, table in tables if path is not None),
    ]
