"""Reads SBU captioned photos (Ordonez et al. 2011): a million Flickr photos with their titles.

The new file is one object of three lists of equal length; the two old text files are parallel, line
by line. Ids are Flickr's photo ids, and photos are repeated with other texts.
"""

import argparse
from collections.abc import Iterator
from itertools import zip_longest

from vlmill.pipelines.manifest.cleaning import flickr_id, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.pipelines.manifest.sets.conceptual_captions import MAX_URL
from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

NEW, VILT = "sbu-captions-all.json", "annot.json"
OLD = "SBU_captioned_photo_dataset_urls.txt", "SBU_captioned_photo_dataset_captions.txt"
LISTS, USERS = ("image_urls", "captions"), "user_ids"
KNOWN = {"": frozenset((*LISTS, USERS))}
PUBLISHED = 1_000_000

Fields = tuple[object, object]  # URL or path, caption; a Drop if a line is unreadable


def _open(folder: Folder, _: argparse.Namespace) -> Reading:
    new, vilt = folder.find(NEW), folder.find(VILT)
    urls, captions = (folder.find(f"dataset/{name}") for name in OLD)
    if new is not None:
        sources: tuple[Source, ...] = (new,)
        check_columns(new)
        name = NEW
    elif urls is not None and captions is not None:
        sources, name = (urls, captions), OLD[1]
        check_lines(urls, captions)
    elif vilt is not None:
        sources, name = (vilt,), VILT
    else:
        raise folder.lacks(f"{NEW}, or {OLD[0]} and {OLD[1]}")
    return Reading(
        sources=sources,
        entries=lambda: _entries(sources, name),
        expected={
            name: Expected(rows=PUBLISHED, source="www.cs.virginia.edu/~vicente/sbucaptions")
        },
        image_folders=("images", "sbu_images", "images_train", "dataset", "0000"),
        repeated_bytes=True,
    )


def check_columns(source: Source) -> None:
    """Raises InputError if the lists of the new file are of different length."""
    file = JsonLists(source=source)
    if file.is_list():
        raise InputError(
            f"{source.display_name} is a list of objects; the published file is one object with "
            "the lists "
            f"{', '.join(LISTS)} (a list made for img2dataset: read its output by `webdataset`)"
        )
    names = (*LISTS, *(name for name in file.members() if name == USERS))
    counts = {name: sum(1 for _ in file.elements(name)) for name in names}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(
            f"{source.display_name}: its lists differ in length ({lengths}); fetch it again"
        )


def check_lines(urls: Source, captions: Source) -> None:
    """Raises InputError if the two text files have different numbers of lines."""
    counts = [sum(1 for _ in read_lines(source)) for source in (urls, captions)]
    if counts[0] != counts[1]:
        raise InputError(
            f"{urls.display_name} has {counts[0]} lines and {captions.display_name} {counts[1]}: "
            "line i of one no "
            "longer belongs to line i of the other; fetch both again"
        )


def _entries(sources: tuple[Source, ...], name: str) -> Iterator[Entry]:
    photo_counts = NumberStore()
    for number, (location, caption) in enumerate(_rows(sources, name)):
        yield _entry(name, number, location, caption, photo_counts)


def _rows(sources: tuple[Source, ...], name: str) -> Iterator[Fields]:
    if name == NEW:
        file = JsonLists(source=sources[0], known=KNOWN)
        yield from zip_longest(*(file.elements(column) for column in LISTS))
    elif name == VILT:
        for row in JsonLists(source=sources[0]).elements():
            pair = isinstance(row, list) and len(row) == 2
            yield (row[0], row[1]) if pair else (Drop(Reason.BAD_ROW, "no [path, caption]"), "")
    else:
        columns = (read_lines(source) for source in sources)
        yield from ((url, text) for (_, url), (_, text) in zip(*columns, strict=True))


def _entry(
    name: str, number: int, location: object, caption: object, photo_counts: NumberStore
) -> Entry:
    key = f"{name}:{number}"
    text = caption if isinstance(caption, Drop) else validate_text(caption)
    if isinstance(location, Drop):
        text = location
    elif not isinstance(location, str) or not 0 < len(location.strip()) <= MAX_URL:
        text = Drop(Reason.BAD_ROW, "no URL")
    elif not location.strip().isprintable():
        text = Drop(Reason.BAD_ROW, f"no URL: {location[:200]!a}")
    if isinstance(text, Drop):
        return Entry(key=key, group=name, rows=text)
    assert isinstance(location, str)
    location = location.strip()
    photo = flickr_id(location)
    image_id = f"sbu/{photo}" if photo else f"sbu/row-{number}"
    url = None if name == VILT else location
    pair = {
        "pair_id": f"{image_id}#{_count(photo_counts, photo)}",
        "image_id": image_id,
        "text": text,
        "language": "en",
        "source": "sbu",
        "split": "train",
        "text_source": "title",
        "image_url": url,
    }
    image = ListedImage(
        image_id=image_id,
        paths=_paths(location, number),
        url=url,
        aliases=(f"flickr/{photo}",) if photo else (),
        alone=not photo,
    )
    notes = note_repairs(text, str(caption))
    return Entry(key=key, group=name, rows=((PAIRS, pair),), images=(image,), notes=notes)


def _count(photo_counts: NumberStore, photo: str | None) -> int:
    """Returns how often the photo occurred before, used as the number of this caption."""
    if photo is None:
        return 0
    number = photo_counts.get(int(photo)) or 0
    photo_counts.put(int(photo), number + 1)
    return number


def _paths(location: str, number: int) -> tuple[str, ...]:
    stem = location.rpartition("/")[2].split("?")[0] or "none"
    return (
        f"images/{stem}",
        f"sbu_images/{stem}",
        f"dataset/{stem}",
        f"images_train/{number // 1000:04d}/{number:07d}",
        f"{number // 1000:04d}/{number % 1000:03d}.jpg",
    )


SBU = DataSet(
    about="""\
SBU Captions (Ordonez et al. 2011) as pairs: sbu-captions-all.json, or the two .txt of the older
archive (SBUCaptionedPhotoDataset.tar.gz), from www.cs.virginia.edu/~vicente/sbucaptions (no
licence is stated; Flickr's terms). Images have the last part of their URL as name. image_id is
sbu/<photo id of Flickr>. Equal bytes under more than 20 ids are Flickr's "photo unavailable":
`placeholder`.""",
    tables=(PAIRS,),
    open=_open,
    papers=(
        ("InterBERT, pretraining data", "890K train, 10K validation (not stated in the paper)"),
    ),
)
