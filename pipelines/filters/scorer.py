"""Estimates the probability that a text describes its image, from some 300 named features.

LAIT (ImageBERT, arXiv:2001.07966, section 3) scores pairs in this manner: text alone, content of
the image, and both together. Missing inputs (images, regions) are NaN, which the trees can handle.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.filters import region_features, statistics, text_features
from vlmill.pipelines.filters.model_file import Model, read_model, require_features
from vlmill.pipelines.filters.region_features import ClassNames
from vlmill.pipelines.filters.statistics import image_statistics, shrunk
from vlmill.pipelines.web.texts.words import split_words
from vlmill.runtime.readers.region_rows import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds, check_size, open_image, to_rgb
from vlmill.schemas.rejects import Rejected

NAN = float("nan")
SCORER = "scorer"
FORMATS = ("jpeg", "png", "webp", "gif")
IMAGE = ("width", "height", "pixels", "aspect", "bytes_a_pixel", *(f"is_{n}" for n in FORMATS))
# Combinations of words and an image statistic: the statistic if a word occurs, else 0.
SAID_AND_SHOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "red": (("red", "crimson", "scarlet"), "red_share"),
    "orange": (("orange",), "orange_share"),
    "yellow": (("yellow", "golden", "gold"), "yellow_share"),
    "green": (("green",), "green_share"),
    "blue": (("blue",), "blue_share"),
    "purple": (("purple", "violet"), "purple_share"),
    "pink": (("pink",), "pink_share"),
    "black_and_white": (("monochrome", "black-and-white"), "grey_share"),
    "black": (("black", "dark", "night"), "dark_share"),
    "white": (("white", "snow", "snowy"), "light_share"),
    "colourful": (("colorful", "colourful", "rainbow"), "colourfulness"),
    "grass": (("grass", "forest", "field", "meadow", "garden", "tree", "trees"), "green_share"),
    "sky": (("sky", "sea", "ocean", "lake", "water"), "blue_share"),
    "sunset": (("sunset", "sunrise", "fire", "autumn"), "warm_share"),
    "people": (
        ("man", "woman", "people", "portrait", "face", "girl", "boy", "child", "person"),
        "skin_share",
    ),
    "drawing": (tuple(sorted(text_features.WORD_CLASSES["drawings"])), "first_colour_share"),
    "lettering": (("sign", "text", "poster", "cover", "screenshot", "page"), "lines_like_text"),
}
CROSS_IMAGE = tuple(f"said_and_shown_{name}" for name in SAID_AND_SHOWN)
GROUPS: dict[str, tuple[str, ...]] = {
    "text_form": text_features.FORM,
    "text_words": text_features.WORDS,
    "text_signs": text_features.SIGNS,
    "place": text_features.PLACE,
    "picture": (*IMAGE, *(f"picture_{name}" for name in statistics.NAMES)),
    "regions": tuple(f"regions_{name}" for name in region_features.CONTENT),
    "text_and_picture": CROSS_IMAGE,
    "text_and_regions": tuple(f"cross_{name}" for name in region_features.CROSS),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)

FREQUENCIES = "word_frequencies"  # the array in a scorer's file: float32 by a hash of the word
TABLE_SIZE = 1 << 17
MOST_WORDS = 50_000

Features = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """Holds facts of an image file: size in pixels and bytes, lower-case format, statistics."""

    width: int
    height: int
    format: str
    num_bytes: int
    statistics: Features


@dataclass(frozen=True, kw_only=True)
class PairFacts:
    """Holds a row of ``pairs`` and the facts about its image."""

    pair: Mapping[str, Any]
    image: ImageFile | None = None
    regions: RegionRow | None = None


@dataclass(frozen=True, kw_only=True)
class Vocabularies:
    """Holds the vocabularies for words: a detector's classes and attributes, shares of words."""

    classes: ClassNames | None = None
    attributes: ClassNames | None = None
    frequency: Mapping[str, float] | None = None


def pair_features(facts: PairFacts, vocabularies: Vocabularies) -> list[float]:
    """Returns the features of NAMES, in this order."""
    pair = facts.pair
    words = split_words(pair["text"], pair.get("language"))
    regions = region_features.region_features(
        facts.regions, words, vocabularies.classes, vocabularies.attributes
    )
    content = len(region_features.CONTENT)
    return [
        *text_features.text_features(pair["text"], words, vocabularies.frequency),
        *text_features.place_features(pair, words),
        *_image(facts.image),
        *regions[:content],
        *_compare_words_and_image(words, facts.image),
        *regions[content:],
    ]


def measure_file(data: bytes, *, max_pixels: int) -> ImageFile | None:
    """Measures an image's file; returns None if it cannot be decoded, so its features are NaN."""
    bounds = Bounds(max_pixels=max_pixels, max_bytes=None)
    try:
        with open_image(data, bounds) as image:
            check_size(image, bounds)
            width, height = image.size
            # A JPEG is decoded at a fraction of its size, in its stored orientation: a rotation
            # changes the statistics little.
            image.draft("RGB", (statistics.SIDE, statistics.SIDE))
            image.load()
            return ImageFile(
                width=width,
                height=height,
                format=str(image.format).lower(),
                num_bytes=len(data),
                statistics=image_statistics(shrunk(to_rgb(image))),
            )
    except Rejected:
        return None


def _image(image: ImageFile | None) -> list[float]:
    """Returns the features of ``image``; NaN for unknown facts."""
    if image is None:
        return [NAN] * (len(IMAGE) + len(statistics.NAMES))
    pixels = image.width * image.height
    return [
        image.width,
        image.height,
        pixels,
        image.width / image.height,
        image.num_bytes / pixels,
        *(float(image.format == name) for name in FORMATS),
        *image.statistics.tolist(),
    ]


def _compare_words_and_image(words: Sequence[str], image: ImageFile | None) -> list[float]:
    if image is None:
        return [NAN] * len(SAID_AND_SHOWN)
    mentioned_names = {name for word in words for name in _SAID.get(word.lower(), ())}
    return [
        float(image.statistics[index]) if name in mentioned_names else 0.0
        for name, index in _SHOWN_PLACES.items()
    ]


_SAID: dict[str, list[str]] = {}
for _name, (_words, _) in SAID_AND_SHOWN.items():
    for _word in _words:
        _SAID.setdefault(_word, []).append(_name)
_SHOWN_PLACES = {
    name: statistics.NAMES.index(statistic) for name, (_, statistic) in SAID_AND_SHOWN.items()
}


class HashedShares(Mapping[str, float]):
    """Holds words' shares in a corpus by the word's hash: a fixed-size table in a model's file.

    Two words may share an entry (one in four of 50,000 in 131,072): both then count as the more
    common one.
    """

    def __init__(self, table: Features) -> None:
        self._table = table

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[str, str | None]]) -> "HashedShares":
        """Counts the words of (text, language) and keeps the MOST_WORDS most frequent."""
        counts: Counter[str] = Counter()
        for text, language in texts:
            counts.update(word.lower() for word in split_words(text, language))
        total = max(1, counts.total())
        table = np.zeros(TABLE_SIZE, dtype=np.float32)
        for word, count in counts.most_common(MOST_WORDS):
            index = _table_index(word)
            table[index] = max(table[index], count / total)
        return cls(table)

    @property
    def table(self) -> Features:
        """Returns the shares by entry, float32 [TABLE_SIZE]."""
        return self._table

    def __getitem__(self, word: str) -> float:
        return float(self._table[_table_index(word)])

    def __iter__(self) -> Iterator[str]:
        raise TypeError("words are not kept")

    def __len__(self) -> int:
        return int(np.count_nonzero(self._table))


def _table_index(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % TABLE_SIZE


@dataclass(frozen=True)
class Scorer:
    """Applies a fitted scorer; can be sent to another process."""

    model: Model

    @classmethod
    def load(cls, path: str | Path, *, flag: str = "--scorer") -> "Scorer":
        """Reads the scorer of a file that fit_scorer wrote. Raises InputError for other files."""
        model = read_model(Path(path), kinds=(SCORER,), flag=flag, fitted_by="fit_scorer")
        require_features(model, NAMES, f"{flag} {path}")
        table = model.arrays.get(FREQUENCIES)
        if table is None or table.shape != (TABLE_SIZE,) or table.dtype != np.float32:
            raise InputError(f"{flag} {path} lacks its frequencies of words; fit it again")
        return cls(model)

    @property
    def threshold(self) -> float:
        """Returns the lowest score at which a text counts as describing its image."""
        return self.model.threshold

    @property
    def frequency(self) -> HashedShares:
        """Returns the shares of words in the texts of the fit."""
        return HashedShares(self.model.arrays[FREQUENCIES])

    def score(
        self,
        rows: Sequence[PairFacts],
        *,
        classes: ClassNames | None = None,
        attributes: ClassNames | None = None,
    ) -> Features:
        """Returns scores of N pairs, float32 [N] in 0..1: P(the text describes the image)."""
        words = Vocabularies(classes=classes, attributes=attributes, frequency=self.frequency)
        values = np.array([pair_features(facts, words) for facts in rows], dtype=np.float32)
        return self.model.trees.probabilities(values.reshape(len(rows), len(NAMES)))
