"""Joins pairs with their images and regions, which are the inputs of a scorer's features."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vlmill.pipelines.filters.region_features import ClassNames
from vlmill.pipelines.filters.scorer import ImageFile, PairFacts, measure_file
from vlmill.pipelines.filters.statistics import MAX_PIXELS
from vlmill.runtime.readers.class_names import read_names, require_number
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError

COLUMNS = ("pair_id", "image_id", "text", "language", "text_source", "page_url", "image_url")
CACHED_IMAGES = 256  # cached images: pairs of an image are near each other


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Holds the tables in addition to the pairs, and the class names; None if not given."""

    images: ImageReader | None = None
    regions: RegionReader | None = None
    classes: ClassNames | None = None
    attributes: ClassNames | None = None


def open_sources(
    images: str | Path | None, regions: str | None, classes: str | None, attributes: str | None
) -> Sources:
    """Opens the tables and lists of the flags.

    Raises InputError for invalid files, and for regions without ``--classes``, because the class
    names are compared with the texts.
    """
    if regions is None:
        if classes is not None or attributes is not None:
            flag = "--attributes" if classes is None else "--classes"
            raise InputError(f"{flag} gives the names of region classes; give --regions, too")
        return Sources(images=None if images is None else ImageReader(images))
    if classes is None:
        raise InputError("--regions needs --classes FILE, the names of its classes, one per line")
    reader = RegionReader(regions)
    names: dict[str, ClassNames] = {}
    for what, path in (("classes", classes), ("attributes", attributes)):
        if path is not None:
            name_lists = read_names(path, f"--{what}")
            require_number(
                name_lists, reader.producer, what, flag=f"--{what}", regions=f"--regions {regions}"
            )
            names[what] = ClassNames.from_names(name_lists)
    return Sources(images=None if images is None else ImageReader(images), regions=reader, **names)


class FactsReader:
    """Yields pairs with the facts about their images; memory: the indices of the tables."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._measure = lru_cache(maxsize=CACHED_IMAGES)(self._measure_row)
        self._joins: dict[str, Join] = {}
        for flag, reader in (("--images", sources.images), ("--regions", sources.regions)):
            if reader is not None:
                self._joins[flag] = Join(reader.index, asking="--pairs", holding=flag)
        self.met = dict.fromkeys(self._joins, 0)  # number of pairs with a row there

    def facts(self, pairs: Sequence[Mapping[str, Any]]) -> Iterator[PairFacts]:
        """Yields the facts of rows of ``pairs``, in order. Raises InputError for damaged tables."""
        ids = [pair["image_id"] or "" for pair in pairs]
        rows = {flag: join.find(ids).tolist() for flag, join in self._joins.items()}
        for flag, numbers in rows.items():
            self.met[flag] += sum(number != ABSENT for number in numbers)
        none = [ABSENT] * len(ids)
        numbered = zip(pairs, rows.get("--images", none), rows.get("--regions", none), strict=True)
        for pair, image, region in numbered:
            yield PairFacts(
                pair=pair,
                image=None if image == ABSENT else self._measure(image),
                regions=None if region == ABSENT else self._regions(region),
            )

    def _measure_row(self, row: int) -> ImageFile | None:
        assert self._sources.images is not None
        data = self._sources.images.read_bytes(row)
        return None if data is None else measure_file(data, max_pixels=MAX_PIXELS)

    def _regions(self, row: int) -> RegionRow:
        assert self._sources.regions is not None
        return self._sources.regions.row(row)

    def summary(self, pairs: int) -> str:
        """Returns how many pairs have a row in each table."""
        parts = [f"{count} in {flag}" for flag, count in self.met.items()]
        return f"of {pairs} pairs' images {' and '.join(parts)}" if parts else ""
