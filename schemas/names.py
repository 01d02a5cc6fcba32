"""Compares ids of one image in different files: 46.jpg and 46, coco/132417 and 000000132417.

Two ids may name the same image if only one of them has a part that the other lacks: an image
extension, leading folders, or what COCO puts before a number (its prefix, zeros). So 46 may be
46.jpg and train/46; 46.jpg is never 46.png, and train/46 never val/46. Letters with marks may be
one character or several (macOS decomposes file names): both spell the same id.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import IntEnum

IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
    *(".jfif", ".jpe", ".avif", ".heic", ".heif"),
)
# COCO's file names: the number is the image's, and the same in all of its annotations.
_COCO = re.compile(r"COCO_((?:train|val|test)\d{4})_(\d+)", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)


class Difference(IntEnum):
    """The part in which two ids of an image differ, from the smallest difference to the largest."""

    SPELLING = 1
    ENDING = 2
    FOLDERS = 3
    NUMBER = 4

    def __str__(self) -> str:
        kinds = ("the Unicode form", "an ending", "folders", "COCO's prefix or zeros")
        return kinds[self - 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Name:
    folders: tuple[str, ...]
    text: str  # of the last part, without its ending
    ending: str  # in lower case; empty without
    core: str  # what ids of the same image have in common
    split: str  # of COCO, if the name has it


def without_ending(image_id: str) -> str:
    """Returns an id without the ending of an image's file."""
    return image_id[: len(image_id) - len(_ending(image_id))]


def compose_nfc(image_id: str) -> str:
    """Returns an id with each letter and its marks as one character (Unicode NFC)."""
    return unicodedata.normalize("NFC", image_id)


def spellings(name: str) -> tuple[str, ...]:
    """Returns a name as it is, composed, and decomposed as macOS does, without repetitions."""
    if name.isascii():
        return (name,)
    return tuple(dict.fromkeys((name, compose_nfc(name), unicodedata.normalize("NFD", name))))


def extract_core(image_id: str) -> str:
    """Returns what ids of the same image have in common: the last part without its ending, a
    number without zeros in front.
    """
    return _name(image_id).core


def difference(image_id: str, other: str) -> Difference | None:
    """Returns how two unequal ids differ; None if they are of different images."""
    if compose_nfc(image_id) == compose_nfc(other):
        return Difference.SPELLING
    a, b = _name(image_id), _name(other)
    shorter, longer = sorted((a.folders, b.folders), key=len)
    if a.core != b.core or longer[len(longer) - len(shorter) :] != shorter:
        return None
    if len({a.ending, b.ending} - {""}) > 1 or len({a.split, b.split} - {""}) > 1:
        return None
    if a.text != b.text:
        return Difference.NUMBER
    return Difference.ENDING if a.folders == b.folders else Difference.FOLDERS


def _ending(image_id: str) -> str:
    stem, dot, ending = image_id.rpartition(".")
    known = f".{ending}".lower() in IMAGE_ENDINGS and stem and not stem.endswith("/")
    return dot + ending if known else ""


def _name(image_id: str) -> _Name:
    image_id = compose_nfc(image_id)
    bare = without_ending(image_id)
    *folders, text = [part for part in bare.split("/") if part not in ("", ".")] or [bare]
    core, split = text, ""
    if coco := _COCO.fullmatch(text):
        # The prefix repeats the folder of such files: train2014/COCO_train2014_...
        folders, split, core = ["coco"], coco[1], coco[2]
    if _NUMBER.fullmatch(core):
        core = core.lstrip("0") or "0"
    return _Name(
        folders=tuple(folders), text=text, ending=_ending(image_id).lower(), core=core, split=split
    )
