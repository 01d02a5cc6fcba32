"""Reads splits of published files to exclude their images: ``--exclude-split NAME:val,test``."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vlmill.pipelines.manifest.cleaning import coco_id
from vlmill.pipelines.manifest.published.overlaps import IdList
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64

MAX_DIGITS = 12  # of an image's number
Names = Iterator[tuple[str, str]]  # (split, an image's name)


def _coco_karpathy(folder: Folder) -> Names:
    for image in _karpathy_images(folder, "dataset_coco.json"):
        name = coco_id(image["cocoid"])
        if name is None:
            raise InputError(f"dataset_coco.json: cocoid {image['cocoid']!a:.80} is not a number")
        yield str(image.get("split")), name


def _flickr30k(folder: Folder) -> Names:
    for image in _karpathy_images(folder, "dataset_flickr30k.json"):
        photo = str(image["filename"]).rpartition(".")[0]
        for name in (f"flickr30k/{photo}", f"flickr/{photo}"):
            yield str(image.get("split")), name


def _karpathy_images(folder: Folder, name: str) -> Iterator[dict[str, Any]]:
    source = folder.require(name)
    for number, image in enumerate(JsonLists(source=source).elements("images")):
        keys = {"filename"} | ({"cocoid"} if "coco" in name else set())
        if not isinstance(image, dict) or not keys <= image.keys():
            raise InputError(
                f"{source.display_name}: image {number} lacks {' or '.join(sorted(keys))}"
            )
        yield image


def _vg_detector(folder: Folder) -> Names:
    for number, split in detector_splits(folder):
        yield split, f"vg/{number}"


def detector_splits(folder: Folder) -> Iterator[tuple[int, str]]:
    """Yields the images of the splits of bottom-up attention's detector, whose lines begin like
    ``VG_100K_2/2415417.jpg``. Raises InputError for other lines.
    """
    for split in ("train", "val", "test"):
        source = folder.require(f"{split}.txt")
        for row, line in read_lines(source):
            words = [] if isinstance(line, Drop) else line.split()
            stem = words[0].rpartition("/")[2].partition(".")[0] if words else ""
            if words and not (stem.isascii() and stem.isdecimal() and len(stem) <= MAX_DIGITS):
                raise InputError(
                    f"{source.display_name}: line {row} begins with no <folder>/<number>.jpg"
                )
            if words:
                yield int(stem), split


READERS: dict[str, Callable[[Folder], Names]] = {
    "coco-karpathy": _coco_karpathy,
    "flickr30k": _flickr30k,
    "vg-detector": _vg_detector,
}


def add_excluded_splits(parser: argparse.ArgumentParser) -> None:
    """Adds ``--exclude-split``."""
    parser.add_argument(
        "--exclude-split",
        action="append",
        default=[],
        metavar="NAME:SPLITS",
        help="drop rows about the images of a published split, such as "
        f"coco-karpathy:val,test, whose file is in --input: {', '.join(READERS)} "
        "(repeatable)",
    )


def split_lists(folder: Folder, specs: Sequence[str]) -> list[IdList]:
    """Returns the images of each ``NAME:SPLITS``. Raises InputError for unknown or empty splits."""
    return [_split_list(folder, spec) for spec in specs]


def _split_list(folder: Folder, spec: str) -> IdList:
    name, _, splits_text = spec.partition(":")
    if name not in READERS or not splits_text:
        known = ", ".join(READERS)
        raise InputError(f"--exclude-split {spec}: expected NAME:SPLIT,SPLIT with NAME of {known}")
    names = set(splits_text.split(","))
    keys, splits = set[int](), set[str]()
    for split, image in READERS[name](folder):
        splits.add(split)
        if split in names:
            keys.add(key64(image))
    if missing := names - splits:
        raise InputError(
            f"--exclude-split {spec}: the split {', '.join(sorted(missing))} does not "
            "exist; there are "
            f"{', '.join(sorted(splits)) or 'none'}"
        )
    return IdList(name=spec, keys=frozenset(keys), excludes=True)
