"""Reads the folder of real photographs: captions.tsv, images/ and tasks/.

Every table is tab-separated UTF-8 with a header. An image_id is the path below the folder, without
a leading ``images/``: ``flickr8k/1000268201_693b08cb0e.jpg``, ``tasks/nlvr/images/dev-1-0-0.png``.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from vlmill.schemas.errors import InputError

CAPTIONS = "captions.tsv"
IMAGES, TASKS = "images", "tasks"
FLICKR8K = "flickr8k/"
SUFFIXES = (".jpg", ".png")
SMALL, FIRST, ALL = "400x1", "first", "all"  # the tests, by their captions
BASELINE_TRAIN, BASELINE_TEST = 1500, 400  # as tools/real_baseline.py samples them
Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a tab-separated file by the names of its header.

    Raises InputError for a missing file and for a line with another number of fields.
    """
    if not path.is_file():
        raise InputError(f"--data: {path} does not exist; give the folder of the photographs")
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = header.split("\t")
    rows = []
    for number, line in enumerate(lines, 2):
        values = line.split("\t")
        if len(values) != len(names):
            raise InputError(f"{path}, line {number}: {len(values)} fields, expected {len(names)}")
        rows.append(dict(zip(names, values, strict=True)))
    return rows


def find_images(folder: Path, root: str = IMAGES) -> list[tuple[str, Path]]:
    """Returns (image_id, path) of the images below ``images/`` or ``tasks/``, by their names.

    Raises InputError for none.
    """
    base = folder / root if root == IMAGES else folder
    paths = sorted(path for path in (folder / root).rglob("*") if path.suffix in SUFFIXES)
    if not paths:
        raise InputError(f"--data {folder}: no images below {root}/")
    return [(path.relative_to(base).as_posix(), path) for path in paths]


def flickr8k_captions(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Returns the captions of the Flickr8k images by (split, image_id), in the file's order."""
    captions: dict[tuple[str, str], list[str]] = {}
    for row in read_rows(folder / CAPTIONS):
        if row["image"].startswith(FLICKR8K):
            captions.setdefault((row["split"], row["image"]), []).append(row["caption"])
    return captions


def baseline_images(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the image_ids of the baseline's training and test sample, in its order.

    The sample is that of ``random.seed(0)``: first 1,500 of the training images, then 400 of the
    test images. The fewer test images there are, the fewer are returned.
    """
    keys = flickr8k_captions(folder)
    sampler = random.Random(0)
    train = sorted(key for key in keys if key[0] == "train")
    test = sorted(key for key in keys if key[0] == "test")
    chosen = sampler.sample(train, min(BASELINE_TRAIN, len(train)))
    tested = sampler.sample(test, min(BASELINE_TEST, len(test)))
    return [image for _, image in chosen], [image for _, image in tested]


def chunks(items: list[tuple[str, Path]], size: int) -> Iterator[list[tuple[str, Path]]]:
    """Yields consecutive parts of a list."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
