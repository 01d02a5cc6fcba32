"""Writes tables of random pairs, regions and images, through the project's own writers.

R regions of an image, K classes with background.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS
from vlmill.train.loading.vocabulary import SPECIAL
from vlmill.train.run.inputs import Inputs

Array = npt.NDArray[np.float16]

GROUP = 32  # images that are written at once
WIDTH_PX, HEIGHT_PX = 640, 480
# Rows to choose from: to draw every feature and distribution by itself takes a minute.
FEATURES_POOLED, DISTRIBUTIONS_POOLED = 1024, 256
# A share that continues a word: Conceptual Captions has about one piece in nine so.
CONTINUED = 0.12
CONTINUATIONS = 0.2  # of the vocabulary; BERT's has 5,828 of 30,522


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """Says how many pairs, and how large what belongs to each.

    ``regions`` are the fewest and the most of an image, none for tables of images alone.
    ``image_px`` is an image's side, None for tables of regions alone. ``texts`` come without
    an image, beside the pairs.
    """

    pairs: int
    texts: int = 0
    vocabulary: int = 30_522  # BERT's
    longest: int = 36  # tokens of a caption
    regions: tuple[int, int] | None = (10, 100)
    feature_dim: int = 2048
    classes: int = 1601  # with background
    image_px: int | None = None


def write_tables(folder: Path, sizes: TableSizes) -> Inputs:
    """Writes pairs of a caption and an image each, what is known of the images, and a
    vocabulary.
    """
    rng = np.random.default_rng(0)
    words = vocabulary(sizes.vocabulary)
    vocab = folder / "vocab.txt"
    vocab.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    names = [f"image-{number}" for number in range(sizes.pairs)]
    of_pairs = [*names, *[None] * sizes.texts]
    captions = [caption(words, rng, sizes.longest) for _ in of_pairs]
    write_pairs(folder / "pairs", of_pairs, captions)
    regions = images = None
    if sizes.regions is not None:
        regions = str(folder / "regions")
        write_regions(folder / "regions", names, sizes, rng)
    if sizes.image_px is not None:
        images = str(folder / "images")
        write_images(folder / "images", names, sizes.image_px, rng)
    return Inputs(pairs=str(folder / "pairs"), regions=regions, images=images, vocab=str(vocab))


def vocabulary(size: int) -> list[str]:
    """Returns as many tokens as ``size``: the special ones, words, and pieces that continue
    them.
    """
    pieces = int(size * CONTINUATIONS)
    words = size - pieces - len(SPECIAL)
    if words < 1 or pieces < 1:
        raise ValueError(
            f"a vocabulary of {size} has no room for words and pieces; expected 12 or more"
        )
    # Letters in between: else a word and its piece could be another word.
    return [
        *SPECIAL,
        *(f"w{number}" for number in range(words)),
        *(f"##p{number}" for number in range(pieces)),
    ]


def caption(words: list[str], rng: np.random.Generator, longest: int) -> str:
    """Draws words at random, as many pieces as :func:`caption_length` says."""
    pieces = int(len(words) * CONTINUATIONS)
    text = ""
    for number in range(caption_length(rng, longest) - 2):
        if number and rng.random() < CONTINUED:
            text += words[len(words) - 1 - int(rng.integers(pieces))].removeprefix("##")
        else:
            text += (
                f" {words[len(SPECIAL) + int(rng.integers(len(words) - pieces - len(SPECIAL)))]}"
            )
    return text.strip()


def caption_length(rng: np.random.Generator, longest: int) -> int:
    """Returns the number of tokens of a caption, [CLS] and [SEP] among them: about 14, as
    Conceptual Captions has.
    """
    return int(np.clip(round(2 + rng.lognormal(np.log(11.3), 0.4)), 5, longest))


def write_pairs(folder: Path, names: Sequence[str | None], captions: Sequence[str]) -> None:
    """Writes the pairs table, of no source and no split; texts alone have None for their
    image's.
    """
    empty = dict.fromkeys(PAIRS.schema.names)
    rows = [
        {**empty, "pair_id": compute_pair_id(name or "", text), "image_id": name, "text": text}
        for name, text in zip(names, captions, strict=True)
    ]
    write_shard(folder, PAIRS, rows)


def write_regions(
    folder: Path, names: list[str], sizes: TableSizes, rng: np.random.Generator
) -> None:
    """Writes the regions table, float16, with the whole distribution over classes."""
    arrays = region_arrays(
        dtype="float16", feature_dim=sizes.feature_dim, class_probs_dim=sizes.classes
    )
    rows = region_rows(names, sizes, rng)
    with ShardWriter(folder, REGIONS, 0, 1, arrays=arrays) as writer:
        while group := [row for _, row in zip(range(GROUP), rows, strict=False)]:
            writer.write(encode_regions(group, dtype="float16"))


def region_rows(
    names: list[str], sizes: TableSizes, rng: np.random.Generator
) -> Iterator[RegionRow]:
    """Yields boxes at random places, with features and distributions from a pool."""
    assert sizes.regions is not None
    fewest, most = sizes.regions
    features = pool_of_features(rng, sizes.feature_dim, most)
    distributions = pool_of_distributions(rng, sizes.classes, most)
    for name in names:
        count = int(rng.integers(fewest, most + 1))
        corners = rng.random((count, 2, 2)) * (WIDTH_PX, HEIGHT_PX)
        first, other = (int(rng.integers(len(pool) - count)) for pool in (features, distributions))
        probs = distributions[other : other + count]
        yield RegionRow(
            image_id=name,
            width=WIDTH_PX,
            height=HEIGHT_PX,
            boxes=np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32),
            features=features[first : first + count],
            class_ids=probs[:, 1:].argmax(1).astype(np.int16),
            class_probs=probs,
        )


def pool_of_features(rng: np.random.Generator, width: int, most: int) -> Array:
    """Draws rows as a detector's after its last ReLU: nothing below 0, many zeros."""
    drawn = rng.standard_normal((FEATURES_POOLED + most, width), dtype=np.float32) + 0.3
    features: Array = np.maximum(drawn, 0).astype(np.float16)
    return features


def pool_of_distributions(rng: np.random.Generator, classes: int, most: int) -> Array:
    """Draws softmaxes with a few likely classes each."""
    scores = 4 * rng.standard_normal((DISTRIBUTIONS_POOLED + most, classes), dtype=np.float32)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    distributions: Array = (shares / shares.sum(1, keepdims=True)).astype(np.float16)
    return distributions


def write_images(folder: Path, names: list[str], side: int, rng: np.random.Generator) -> None:
    """Writes the images table: small JPEGs of coloured patches."""
    empty = dict.fromkeys(IMAGES.schema.names)
    with ShardWriter(folder, IMAGES, 0, 1) as writer:
        for first in range(0, len(names), GROUP):
            group = names[first : first + GROUP]
            writer.write([{**empty, "image_id": name, "bytes": jpeg(rng, side)} for name in group])


def jpeg(rng: np.random.Generator, side: int) -> bytes:
    """Returns an image a third wider than high, of a few patches of colour with soft edges."""
    patches = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    written = io.BytesIO()
    patches.resize((side * 4 // 3, side), Image.Resampling.BICUBIC).save(written, "JPEG")
    return written.getvalue()
