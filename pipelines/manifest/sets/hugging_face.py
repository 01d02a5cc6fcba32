"""Reads Parquet files of Hugging Face and of img2dataset: images and captions in one row."""

import argparse
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import note_repairs, usable_id, validate_text
from vlmill.pipelines.manifest.entries import FOOTER, DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.flags import add_source, add_split_columns
from vlmill.pipelines.manifest.layouts.hub_columns import (
    Columns,
    find_columns,
    format_columns,
    resolved_options,
    split_of_name,
    split_or_none,
)
from vlmill.pipelines.manifest.reading.columns import IMAGES, TEXTS, num_rows, parquet_rows
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.runtime.files.contract import read_parquet_schema
from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

RAW = ("raw", "text", "caption")  # of a caption that is a struct, like COCO's
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(kw_only=True)
class Ids:
    """Stores the claims of the rows so far on ids of ``--id-column``, by hash: the content of each
    image, and the number of its captions.
    """

    contents: NumberStore = field(default_factory=NumberStore)
    captions: NumberStore = field(default_factory=NumberStore)

    def claim(self, image_id: str, content: bytes) -> Drop | None:
        """Returns why a row is dropped if its id is another image's, else None."""
        mark = zlib.crc32(content)
        if self.contents.claim(key64(image_id), mark) in (None, mark):
            return None
        return Drop(Reason.ID_CONFLICT, f"{image_id[:200]} came earlier with another image")

    def number(self, image_id: str, captions: int) -> int:
        """Returns the number of the image's captions before these."""
        key = key64(image_id)
        before = self.captions.get(key) or 0
        self.captions.put(key, before + captions)
        return before


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--text-column",
        metavar="C",
        help="column of captions, or the common prefix of numbered ones, such as caption "
        f"for caption_0, caption_1 (default: the first of {', '.join(TEXTS)})",
    )
    p.add_argument(
        "--image-column",
        metavar="C",
        help=f"column of images (default: the first of {', '.join(IMAGES)})",
    )
    p.add_argument(
        "--id-column",
        metavar="C",
        help="column of image_id, kept unchanged, such as img_id, cocoid or filename "
        "(default: <source>/<file>/<row>)",
    )
    add_split_columns(p)
    add_source(p, "hf")
    p.add_argument(
        "--split",
        metavar="NAME",
        help="split of rows without one (default: from the file's name, or null)",
    )


def _paths(folder: Folder) -> list[Path]:
    """Returns the Parquet files of the folder, else of ``data/``, else of folders one or two levels
    below, like the hub's conversions (``default/test/0000.parquet``).
    """
    if paths := folder.files(".parquet"):
        return paths
    below = _folders(folder.root)
    levels = (
        [folder.root / "data"],
        below,
        [subfolder for path in below for subfolder in _folders(path)],
    )
    files_by_level = (
        sorted(p for subfolder in level for p in subfolder.glob("*.parquet")) for level in levels
    )
    return next((paths for paths in files_by_level if paths), [])


def _folders(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _source(folder: Folder, path: Path) -> Source:
    """Returns a file as a source, named with its folders, except for ``data`` alone."""
    name, parent = path.name, path.parent
    while parent not in (folder.root, folder.root / "data"):
        name, parent = f"{parent.name}/{name}", parent.parent
    return file_source(path, name)


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    sources = [_source(folder, path) for path in _paths(folder)]
    if not sources:
        raise folder.lacks("*.parquet")
    schemas = {source.name: read_parquet_schema(source.path) for source in sources}
    if len({tuple(sorted(schema.names)) for schema in schemas.values()}) > 1:
        raise InputError(f"--input {folder.root}: its Parquet files have different columns")
    base_columns = find_columns(schemas[sources[0].name], sources[0], args)
    columns = replace(base_columns, by_end=bool(folder.images))
    if columns.split is None:
        splits = {s.name: args.split or split_of_name(s) for s in sources}
    else:
        splits = {s.name: args.split or split_or_none(s) for s in sources}
    sources[0].remarks.check(schemas[sources[0].name].names, frozenset(columns.names))
    return Reading(
        sources=tuple(sources),
        entries=lambda: _entries(sources, columns, splits, args.source),
        expected={s.name: Expected(rows=num_rows(s), source=FOOTER) for s in sources},
        own_images=True,
        resolved=resolved_options(columns),
        messages=(format_columns(columns),),
    )


def _entries(
    sources: Sequence[Source], columns: Columns, splits: Mapping[str, str | None], name: str
) -> Iterator[Entry]:
    ids = Ids()
    for source in sources:
        stem = source.name.rpartition(".")[0]
        for number, row in enumerate(parquet_rows(source, columns.names)):
            key = f"{source.name}:{number}"
            listed_image = _image(row, columns, ids, f"{name}/{stem}/{number}")
            split = (
                listed_image
                if isinstance(listed_image, Drop)
                else _split(row, columns, splits[source.name])
            )
            if isinstance(listed_image, Drop) or isinstance(split, Drop):
                assert isinstance(split, Drop)
                yield Entry(key=key, group=source.name, rows=split)
                continue
            pair = {
                "image_id": listed_image.image_id,
                "source": name,
                "split": split,
                "image_url": listed_image.url,
            }
            yield from _row_entries(key, source.name, listed_image, pair, row, columns, ids)


def _row_entries(
    key: str,
    group: str,
    image: ListedImage,
    pair: dict[str, Any],
    row: Mapping[str, Any],
    columns: Columns,
    ids: Ids,
) -> Iterator[Entry]:
    """Yields the pairs of a row as one entry, and another entry for each dropped caption."""
    published = [caption for name in columns.texts for caption in _captions(row[name])]
    texts = [_text(caption) for caption in published]
    before = 0 if columns.id is None else ids.number(image.image_id, len(texts))
    rows = [
        (PAIRS, {**pair, "pair_id": f"{image.image_id}#{before + k}", "text": text})
        for k, text in enumerate(texts)
        if isinstance(text, str)
    ]
    if not rows:
        dropped = next((t for t in texts if isinstance(t, Drop)), None)
        drop = dropped or Drop(Reason.EMPTY_TEXT, "an empty list of captions")
        yield Entry(key=key, group=group, rows=drop)
        return
    both = zip(texts, published, strict=True)
    notes = tuple(n for t, p in both if isinstance(t, str) for n in note_repairs(t, str(p)))
    yield Entry(key=key, group=group, rows=tuple(rows), images=(image,), notes=notes)
    for k, text in enumerate(texts):
        if isinstance(text, Drop):
            yield Entry(key=f"{key}.{k}", group="", rows=text)


def _captions(value: object) -> list[object]:
    """Returns the captions of a cell: a text or a struct, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [
        next((c[name] for name in RAW if name in c), None) if isinstance(c, Mapping) else c
        for c in values
    ]


def _text(caption: object) -> str | Drop:
    return Drop(Reason.EMPTY_TEXT, "no caption") if caption is None else validate_text(caption)


def _split(row: Mapping[str, Any], columns: Columns, otherwise: str | None) -> str | Drop | None:
    """Returns a row's split: from its column, or from its file's name if the column is empty."""
    value = None if columns.split is None else row[columns.split]
    if isinstance(value, int):
        if not 0 <= value < len(columns.split_names):  # -1: no label
            return Drop(Reason.LABEL_UNKNOWN, f"{columns.split} {value} has no name")
        value = columns.split_names[value]
    return (value or "").strip() or otherwise


def _image(row: Mapping[str, Any], columns: Columns, ids: Ids, image_id: str) -> ListedImage | Drop:
    """Returns the image of a row by its bytes, or by a path under DIR if the row has no bytes."""
    content, paths, url = _content(row[columns.image], by_end=columns.by_end)
    if columns.id is None:
        row_id: str | Drop = image_id
    else:
        value = row[columns.id]
        row_id = usable_id(None if value is None else str(value), columns.id)
    if isinstance(row_id, Drop):
        return row_id
    if columns.id is not None:
        mark = content if content is not None else (url or "".join(paths)).encode()
        if (conflict := ids.claim(row_id, mark)) is not None:
            return conflict
    alone = columns.id is None
    return ListedImage(image_id=row_id, content=content, paths=paths, url=url, alone=alone)


def _content(value: object, *, by_end: bool) -> tuple[bytes | None, tuple[str, ...], str | None]:
    """Returns an image's bytes, its possible paths, and its URL."""
    content, path = (
        (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
    )
    if isinstance(content, str):
        content, path = None, content
    if isinstance(content, bytes) and content:
        return content, (), None
    if not isinstance(path, str) or not path:
        return None, (), None
    if path.startswith(("http://", "https://")):
        return None, (), path
    if not path.startswith("/") and _DRIVE.match(path) is None:
        return None, (path,), None
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return None, tuple(ends) if by_end else (), None


HUGGING_FACE = DataSet(
    about="""\
Parquet files as Hugging Face's datasets and img2dataset write them: a column of images (struct of
bytes and path, bytes, or a path below DIR; the end of an absolute path is searched below --images)
and one of captions (a string, a list, or numbered columns: caption_0, caption_1, ...). The columns
are found by their usual names, or set by flags. image_id is <source>/<file>/<row from 0>, or the
value of --id-column; rows with the same id belong to one image. A column named split gives each
row's split, as in `manifest own`, regardless of the file's name. Without it, the split is the word
train, val, test, ... in the name of the file or its folder.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("text_column", "image_column", "id_column", "split_column", "source", "split"),
)
