"""Reads SCAN's files of Flickr30k (Lee et al. 2018): captions in order, and a list of their images.

``train_caps.txt``, ``dev_caps.txt`` and ``test_caps.txt`` have five lines for each image and no
ids. ``train_ids.txt``, ... in the same folder name the image, once per image or once per line: by
its index in Karpathy's file (``id_mapping.json`` has the names), or by its file name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vlmill.pipelines.manifest.reading.json_text import parse_json
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import MAX_ELEMENT
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

SPLITS = ("train", "dev", "test")
MAPPING = "id_mapping.json"
NUM_CAPTIONS = 5  # of an image
NUM_PLACES = 31_014  # images of Karpathy's file; the lowest photo id is above


@dataclass(frozen=True, kw_only=True)
class ScanFile:
    """Holds a split's captions, and the file name of each image or why it is missing."""

    split: str
    captions: Source
    ids: Source
    names: Sequence[str | Drop]


def scan_files(folder: Folder) -> tuple[list[ScanFile], Source | None]:
    """Finds the existing splits, and the file of names if it exists.

    Raises InputError for captions without their list of images, or with one of another length.
    """
    captions = {split: folder.find(f"{split}_caps.txt") for split in SPLITS}
    there = {split: source for split, source in captions.items() if source is not None}
    mapping = folder.find(MAPPING) if there else None
    names = None if mapping is None else _names_by_position(mapping)
    return [_open_split(folder, split, source, names) for split, source in there.items()], mapping


def _open_split(
    folder: Folder, split: str, captions: Source, names: Mapping[str, str] | None
) -> ScanFile:
    ids = folder.find(f"{split}_ids.txt")
    if ids is None:
        raise InputError(
            f"{captions.display_name} has captions without ids; add {split}_ids.txt to "
            "the same folder, which names the image of every five lines"
        )
    id_lines = [line if isinstance(line, Drop) else line.strip() for _, line in read_lines(ids)]
    count = sum(1 for _ in read_lines(captions))
    if len(id_lines) == count:  # one for each caption
        if any(id_line != id_lines[i - i % NUM_CAPTIONS] for i, id_line in enumerate(id_lines)):
            raise InputError(
                f"{ids.display_name}: the lines of an image must be {NUM_CAPTIONS} in a row"
            )
        id_lines = id_lines[::NUM_CAPTIONS]
    if count != NUM_CAPTIONS * len(id_lines):
        raise InputError(
            f"{captions.display_name} has {count} lines and {ids.display_name} "
            f"{len(id_lines)} images; expected {NUM_CAPTIONS} lines for each: fetch both again"
        )
    image_names = [_name(id_line, names, ids) for id_line in id_lines]
    return ScanFile(split=split, captions=captions, ids=ids, names=image_names)


def _name(line: str | Drop, names: Mapping[str, str] | None, ids: Source) -> str | Drop:
    """Returns the file name of an image that a line of ``ids`` names."""
    if isinstance(line, Drop):
        return line
    if names is not None and line in names:
        return names[line]
    if not (line.isdecimal() and line.isascii()):
        return line
    if len(line) <= len(str(NUM_PLACES)) and int(line) < NUM_PLACES:
        if names is None:
            raise InputError(
                f"{ids.display_name}: {line} is an index into Karpathy's file; add "
                f"{MAPPING}, which has the names, or dataset_flickr30k.json to the folder"
            )
        return Drop(Reason.BAD_REFERENCE, f"image {line} is not in {MAPPING}")
    return f"{line}.jpg"


def _names_by_position(mapping: Source) -> dict[str, str]:
    """Returns the images' file names by their index in Karpathy's file. Raises InputError."""
    with mapping.open() as file:
        content = file.read(MAX_ELEMENT)
    try:
        names = parse_json(content, mapping.remarks)
    except ValueError as error:
        raise InputError(f"{mapping.display_name} is no JSON: {error}") from None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{mapping.display_name}: expected an object of indices and file names")
    return {position: name.rpartition("/")[2] for position, name in names.items()}


def scan_captions(file: ScanFile) -> Iterator[tuple[int, str | Drop, int, str | Drop]]:
    """Yields the captions of a split: line from 0, image's file name, its number, text."""
    for row, text in read_lines(file.captions):
        yield row, file.names[row // NUM_CAPTIONS], row % NUM_CAPTIONS, text
