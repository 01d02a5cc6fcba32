"""Reads Conceptual Captions, 3M and 12M: lines of captions and URLs.

Images are named by one of the published tools: the decimal CRC-32 of the URL (ViLBERT), the row's
number in eight digits (VL-BERT), or that number in folders of a thousand (ViLT, VLMo). Sharma et
al. 2018; Changpinyo et al. 2021.
"""

import argparse
import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from vlmill.pipelines.manifest.cleaning import clean_text, flickr_id, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

MAX_URL = 8_192
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
TRAIN = ("Train_GCC-training.tsv", "GCC-training.tsv", "Train%2FGCC-training.tsv")
VALIDATION = ("Validation_GCC-1.1.0-Validation.tsv", "GCC-1.1.0-Validation.tsv")
LABELS = ("Image_Labels_Subset_Train_GCC-Labels-training.tsv",)
FOLDERS = ("training", "validation", "train_image", "val_image", "images_train", "images_val")
FIELDS = ("caption", "url")
PAGE = "ai.google.com/research/ConceptualCaptions"


@dataclass(frozen=True, kw_only=True)
class ListFile:
    """Holds a file of captions and URLs; ``images``: some exist, under one of the names."""

    name: str
    split: str
    source: Source
    images: bool


def _open_3m(folder: Folder, _: argparse.Namespace) -> Reading:
    sources_by_split = {"train": folder.find(*TRAIN, *LABELS), "val": folder.find(*VALIDATION)}
    there = {split: source for split, source in sources_by_split.items() if source is not None}
    if not there:
        raise folder.lacks(f"{TRAIN[0]} or {VALIDATION[0]}")
    published = {
        **dict.fromkeys(TRAIN, 3_318_333),
        **dict.fromkeys(VALIDATION, 15_840),
        **dict.fromkeys(LABELS, 2_007_090),
    }
    files = [
        ListFile(name="cc", split=split, source=s, images=folder.has_images(FOLDERS))
        for split, s in there.items()
    ]
    missing = [
        names[0] for split, names in (("train", TRAIN), ("val", VALIDATION)) if split not in there
    ]
    return Reading(
        sources=tuple(there.values()),
        entries=lambda: (e for file in files for e in _entries_3m(file)),
        expected={s.name: Expected(rows=published[s.name], source=PAGE) for s in there.values()},
        image_folders=FOLDERS,
        messages=tuple(f"note: {name} does not exist; its split is missing" for name in missing),
    )


def _entries_3m(file: ListFile) -> Iterator[Entry]:
    source = file.source
    num_fields = 5 if source.name in LABELS else 2
    for number, line in read_lines(source):
        fields = line if isinstance(line, Drop) else line.split("\t")
        if not isinstance(fields, Drop) and len(fields) != num_fields:
            fields = Drop(Reason.BAD_ROW, f"{len(fields)} fields, expected {num_fields}")
        if isinstance(fields, Drop):
            yield Entry(key=f"{source.name}:{number}", group=source.name, rows=fields)
            continue
        yield _entry(file, number, fields[0], fields[1])


def _open_12m(folder: Folder, _: argparse.Namespace) -> Reading:
    source = folder.require("cc12m.tsv")
    there = folder.has_images(("images",))
    file = ListFile(name="cc12m", split="train", source=source, images=there)
    return Reading(
        sources=(source,),
        entries=lambda: _entries_12m(file),
        expected={source.name: Expected(rows=12_423_374, source=PAGE)},
        image_folders=("images",),
    )


def _entries_12m(file: ListFile) -> Iterator[Entry]:
    """Yields entries of 12M: the URL is the first field, and a caption may contain tabs."""
    source = file.source
    for number, line in read_lines(source):
        url, tab, text = ("", "", "") if isinstance(line, Drop) else line.partition("\t")
        drop = (
            line if isinstance(line, Drop) else Drop(Reason.BAD_ROW, "no tab") if not tab else None
        )
        if drop is not None:
            yield Entry(key=f"{source.name}:{number}", group=source.name, rows=drop)
            continue
        yield _entry(file, number, text, url)


def _entry(file: ListFile, number: int, published: str, url: str) -> Entry:
    name, split, source = file.name, file.split, file.source
    key = f"{source.name}:{number}"
    text, url = validate_text(published), url.strip()
    if number == 0 and (clean_text(published).lower(), url.lower()) in (FIELDS, FIELDS[::-1]):
        text = Drop(Reason.BAD_ROW, "a header, which the published file does not have")
    elif not is_url(url):  # columns of CC3M, whose order CC12M reverses
        text = Drop(Reason.BAD_ROW, f"no URL: {url[:200]!a}")
    if isinstance(text, Drop):
        return Entry(key=key, group=source.name, rows=text)
    numbered = f"{number:08d}"
    image_id = f"cc/{split}/{numbered}" if name == "cc" else f"{name}/{numbered}"
    pair = {
        "pair_id": f"{image_id}#0",
        "image_id": image_id,
        "text": text,
        "language": "en",
        "source": name,
        "split": split,
        "text_source": "alt",
        "image_url": url,
    }
    image = ListedImage(
        image_id=image_id,
        paths=_paths(name, split, number, url) if file.images else (),
        url=url,
        aliases=url_aliases(url),
        alone=True,
    )
    return Entry(
        key=key,
        group=source.name,
        rows=((PAIRS, pair),),
        images=(image,),
        notes=note_repairs(text, published),
    )


def is_url(text: str) -> bool:
    """Returns whether a text may be the URL of a published image."""
    return len(text) <= MAX_URL and text.isprintable() and _SCHEME.match(text) is not None


def url_aliases(url: str) -> tuple[str, ...]:
    """Returns the names of this URL's image in other lists."""
    digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
    photo = flickr_id(url) if "flickr" in url else None
    return (f"url-sha256/{digest}", *((f"flickr/{photo}",) if photo else ()))


def _paths(name: str, split: str, number: int, url: str) -> tuple[str, ...]:
    folder = "training" if split == "train" else "validation"
    crc = zlib.crc32(url.encode("utf-8", "surrogatepass"))
    if name != "cc":
        return (f"images/{number:08d}", f"images/{crc}")
    return (
        f"{folder}/{crc}",
        f"{split}_image/{number:08d}.jpg",
        f"images_{split}/{number // 1000:04d}/{number:07d}",
    )


PAPERS = (
    ("InterBERT, pretraining data", "3.3M train, 14K validation"),
    ("ViLBERT, released code", "3,136,161 pairs of images that could still be downloaded"),
    ("12-in-1, released code", "3,119,449"),
)
CC3M = DataSet(
    about="""\
Conceptual Captions (Sharma et al. 2018) as pairs: Train_GCC-training.tsv and
Validation_GCC-1.1.0-Validation.tsv, from ai.google.com/research/ConceptualCaptions (free for any
purpose; the images belong to their owners). Downloaded images have the names of ViLBERT's,
VL-BERT's or ViLT's tools; for images downloaded by img2dataset use `webdataset`.
image_id is cc/<split>/<row from 0, eight digits>.""",
    tables=(PAIRS,),
    open=_open_3m,
    papers=PAPERS,
)
CC12M = DataSet(
    about="""\
Conceptual 12M (Changpinyo et al. 2021) as pairs: cc12m.tsv, lines of URL and caption, from
github.com/google-research-datasets/conceptual-12m (free for any purpose; the images belong to
their owners). <PERSON> in captions is kept. image_id is cc12m/<row from 0, eight digits>.""",
    tables=(PAIRS,),
    open=_open_12m,
)
