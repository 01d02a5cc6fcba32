"""Parquet files of Hugging Face's datasets, and img2dataset's: images and captions in one row."""

import argparse
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.counting.kept import KeptNumbers
from vlmill.pipelines.manifest.cleaning import notes_of, text_of, usable_id
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Picture, Reading
from vlmill.pipelines.manifest.reading.columns import (
    PICTURES,
    TEXTS,
    guessed,
    num_rows,
    parquet_rows,
    schema_of,
    split_column,
    text_columns,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import use_of
from vlmill.schemas.tables import PAIRS

FILE_NAMES = ("filename",)  # columns of images where none has a usual name
RAW = ("raw", "text", "caption")  # members of a caption that is a struct, as COCO's sentences are
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read. ``split_names`` are those of a split that is a class label.

    ``by_end``: paths of another machine are looked for by their ends, as --images says where.
    """

    texts: tuple[str, ...]
    image: str
    id: str | None
    split: str | None
    split_names: tuple[str, ...] = ()
    by_end: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Returns all columns, each once."""
        optional = [name for name in (self.id, self.split) if name is not None]
        return tuple(dict.fromkeys((*self.texts, self.image, *optional)))


@dataclass(kw_only=True)
class Ids:
    """What the rows so far have claimed of the ids of ``--id-column``, by their hashes: the
    content of each image, and the number of its captions.
    """

    contents: KeptNumbers = field(default_factory=KeptNumbers)
    captions: KeptNumbers = field(default_factory=KeptNumbers)

    def claim(self, image_id: str, content: bytes) -> Drop | None:
        """Returns why a row is dropped: its id is that of another image; else None."""
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
        help="captions: a column, or what numbered ones share, caption of caption_0, caption_1 "
        f"(default: the one of {', '.join(TEXTS)})",
    )
    p.add_argument("--image-column", metavar="C", help=f"default: the one of {', '.join(PICTURES)}")
    p.add_argument(
        "--id-column",
        metavar="C",
        help="image_id, verbatim, such as img_id, cocoid or filename "
        "(default: <source>/<file>/<row>)",
    )
    splits = p.add_mutually_exclusive_group()
    splits.add_argument(
        "--split-column",
        metavar="C",
        help="split of each row, verbatim (default: the column called split)",
    )
    splits.add_argument(
        "--no-split-column", action="store_true", help="do not read a column called split"
    )
    p.add_argument("--source", default="hf", metavar="NAME", help="source of pairs (default: hf)")
    p.add_argument(
        "--split",
        metavar="NAME",
        help="split of the rows whose split column is empty, or of all rows where there is no such "
        "column (default: the one in the file's name, or null)",
    )


def _paths(folder: Folder) -> list[Path]:
    """Returns the Parquet files of the folder, else of ``data/``, else those one or two folders
    below, as the hub converts data sets (``default/test/0000.parquet``).
    """
    if paths := folder.files(".parquet"):
        return paths
    below = _folders(folder.root)
    levels = ([folder.root / "data"], below, [one for path in below for one in _folders(path)])
    found = (sorted(p for one in level for p in one.glob("*.parquet")) for level in levels)
    return next((paths for paths in found if paths), [])


def _folders(path: Path) -> list[Path]:
    return [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]


def _source(folder: Folder, path: Path) -> Source:
    """Describes a file, which is named with the folders that it is in, ``data`` alone excepted."""
    name, parent = path.name, path.parent
    while parent not in (folder.root, folder.root / "data"):
        name, parent = f"{parent.name}/{name}", parent.parent
    return Source(path=path, name=name, size=path.stat().st_size)


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    sources = [_source(folder, path) for path in _paths(folder)]
    if not sources:
        raise folder.lacks("*.parquet")
    schemas = {source.name: schema_of(source) for source in sources}
    if len({tuple(sorted(schema.names)) for schema in schemas.values()}) > 1:
        raise InputError(f"--input {folder.root}: its Parquet files have different columns")
    found = _columns(schemas[sources[0].name], sources[0], args)
    columns = replace(found, by_end=bool(folder.images))
    if columns.split is None:
        splits = {s.name: args.split or split_of_name(s) for s in sources}
    else:
        splits = {s.name: args.split or _split_or_none(s) for s in sources}
    sources[0].remarks.check(schemas[sources[0].name].names, frozenset(columns.names))
    return Reading(
        sources=tuple(sources),
        entries=lambda: _entries(sources, columns, splits, args.source),
        expected={s.name: Expected(rows=num_rows(s), source="the file's footer") for s in sources},
        own_pictures=True,
        resolved=_resolved(columns),
        says=(_said(columns),),
    )


def _columns(schema: pa.Schema, source: Source, args: argparse.Namespace) -> Columns:
    """Returns the columns that the flags name, or that have usual names. Raises InputError."""
    names, said = schema.names, source.said
    texts = text_columns(names, args.text_column, said)
    usual = PICTURES if any(name in names for name in PICTURES) else FILE_NAMES
    if args.image_column is None and not any(name in names for name in usual):
        usual = PICTURES  # whose names the message gives
    image = guessed(names, usual, args.image_column, "--image-column", said)
    if args.id_column is not None:
        guessed(names, (), args.id_column, "--id-column", said)
        _check_type(schema, args.id_column, "--id-column", said, numbers=True)
    split = None
    if not args.no_split_column:
        others = [*texts, image, *([args.id_column] if args.id_column else [])]
        split = split_column(names, args.split_column, others, said)
    labels = () if split is None else _label_names(schema, split)
    if split is not None:
        _check_type(schema, split, "--split-column", said, numbers=bool(labels))
        if args.split is not None and args.split_column is None:
            raise InputError(
                f"--split {args.split}: {said} has the column {split}, which gives each row's "
                f"split; add --split-column {split} (then only rows where it is empty are "
                f"{args.split}) or --no-split-column (then all are)"
            )
    return Columns(texts=texts, image=image, id=args.id_column, split=split, split_names=labels)


def _check_type(schema: pa.Schema, name: str, flag: str, said: str, *, numbers: bool) -> None:
    kind = schema.field(name).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string(inner) or pa.types.is_large_string(inner)
    if not texts and not (numbers and pa.types.is_integer(inner)):
        wanted = "text or whole numbers" if numbers else "text, or a class label with its names"
        remedy = " or --no-split-column" if flag == "--split-column" else ""
        raise InputError(
            f"{said}: the column {name} is {kind}; want {wanted}: name another one, {flag} NAME"
            f"{remedy}"
        )


def _label_names(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Returns the names of a class label, which the schema's metadata holds; none for others."""
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][name]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _resolved(columns: Columns) -> dict[str, Any]:
    return {
        "text_column": list(columns.texts),
        "image_column": columns.image,
        "id_column": columns.id,
        "split_column": columns.split,
    }


def _said(columns: Columns) -> str:
    listed = {"captions": ", ".join(columns.texts), "images": columns.image}
    listed |= {"image_id": columns.id or "", "splits": columns.split or "the files' names"}
    return f"columns: {'; '.join(f'{what}: {name}' for what, name in listed.items() if name)}"


def split_of_name(source: Source) -> str | None:
    """Returns the split that the name of a file or of its folders has as a word: test of
    ``test-00000-of-00001.parquet``. Raises InputError where it has several.
    """
    words = re.split(r"[^A-Za-z0-9]+", source.name.rpartition(".")[0])
    known = [w if use_of(w) else w.rstrip("0123456789") for w in words if w]
    splits = {word.lower(): word for word in known if word and use_of(word) is not None}
    if len(splits) > 1:
        raise InputError(
            f"{source.said}: its name has the splits {' and '.join(splits.values())}; say which "
            "its rows are of, --split NAME, or name a column, --split-column NAME"
        )
    return next(iter(splits.values()), None)


def _split_or_none(source: Source) -> str | None:
    """Returns the split of a file's name, for rows whose own is empty; None for several."""
    try:
        return split_of_name(source)
    except InputError:
        return None


def _entries(
    sources: Sequence[Source], columns: Columns, splits: Mapping[str, str | None], name: str
) -> Iterator[Entry]:
    ids = Ids()
    for source in sources:
        stem = source.name.rpartition(".")[0]
        for number, row in enumerate(parquet_rows(source, columns.names)):
            key = f"{source.name}:{number}"
            made = _picture(row, columns, ids, f"{name}/{stem}/{number}")
            split = made if isinstance(made, Drop) else _split(row, columns, splits[source.name])
            if isinstance(made, Drop) or isinstance(split, Drop):
                assert isinstance(split, Drop)
                yield Entry(key=key, group=source.name, rows=split)
                continue
            pair = {
                "image_id": made.image_id,
                "source": name,
                "split": split,
                "image_url": made.url,
            }
            yield from _row_entries(key, source.name, made, pair, row, columns, ids)


def _row_entries(
    key: str,
    group: str,
    picture: Picture,
    pair: dict[str, Any],
    row: Mapping[str, Any],
    columns: Columns,
    ids: Ids,
) -> Iterator[Entry]:
    """Yields the pairs of a row as one entry, and of each caption that is dropped another."""
    published = [caption for name in columns.texts for caption in _captions(row[name])]
    texts = [_text(caption) for caption in published]
    before = 0 if columns.id is None else ids.number(picture.image_id, len(texts))
    rows = [
        (PAIRS, {**pair, "pair_id": f"{picture.image_id}#{before + k}", "text": text})
        for k, text in enumerate(texts)
        if isinstance(text, str)
    ]
    if not rows:
        dropped = next((t for t in texts if isinstance(t, Drop)), None)
        drop = dropped or Drop(Reason.EMPTY_TEXT, "an empty list of captions")
        yield Entry(key=key, group=group, rows=drop)
        return
    both = zip(texts, published, strict=True)
    notes = tuple(n for t, p in both if isinstance(t, str) for n in notes_of(t, str(p)))
    yield Entry(key=key, group=group, rows=tuple(rows), pictures=(picture,), notes=notes)
    for k, text in enumerate(texts):
        if isinstance(text, Drop):
            yield Entry(key=f"{key}.{k}", group="", rows=text)


def _captions(value: object) -> list[object]:
    """Returns the captions of a cell: a text or a struct, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [_raw(one) if isinstance(one, Mapping) else one for one in values]


def _raw(caption: Mapping[str, Any]) -> object:
    return next((caption[name] for name in RAW if name in caption), None)


def _text(caption: object) -> str | Drop:
    return Drop(Reason.EMPTY_TEXT, "no caption") if caption is None else text_of(caption)


def _split(row: Mapping[str, Any], columns: Columns, otherwise: str | None) -> str | Drop | None:
    """Returns a row's split: its own word, or that of its file where it has none."""
    value = None if columns.split is None else row[columns.split]
    if isinstance(value, int):
        if not 0 <= value < len(columns.split_names):  # -1: no label
            return Drop(Reason.LABEL_UNKNOWN, f"{columns.split} {value} has no name")
        value = columns.split_names[value]
    return (value or "").strip() or otherwise


def _picture(row: Mapping[str, Any], columns: Columns, ids: Ids, image_id: str) -> Picture | Drop:
    """Returns the image of a row by its bytes, or by a path under DIR where the file has none."""
    content, paths, url = _content(row[columns.image], by_end=columns.by_end)
    if columns.id is None:
        own: str | Drop = image_id
    else:
        value = row[columns.id]
        own = usable_id(None if value is None else str(value), columns.id)
    if isinstance(own, Drop):
        return own
    if columns.id is not None:
        mark = content if content is not None else (url or "".join(paths)).encode()
        if (conflict := ids.claim(own, mark)) is not None:
            return conflict
    alone = columns.id is None
    return Picture(image_id=own, content=content, paths=paths, url=url, alone=alone)


def _content(value: object, *, by_end: bool) -> tuple[bytes | None, tuple[str, ...], str | None]:
    """Returns an image's bytes, the paths where it may be, and its URL."""
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
    ends = ("/".join(parts[place:]) for place in range(1, len(parts)))
    return None, tuple(ends) if by_end else (), None


HUGGING_FACE = DataSet(
    title="Parquet files with images and captions",
    about="""\
Parquet files as Hugging Face's datasets and img2dataset write them: a column of images (struct of
bytes and path, bytes, or a path below DIR; of an absolute path the end, below --images) and one of captions (text, a list of texts, or a column
for each: caption_0, caption_1, ...). The columns are found by their usual names, or named. image_id
is <source>/<file>/<row from 0>, or the value of --id-column: rows with one id are of one image.
A column called split gives each row's split, as in `manifest own`, whatever the file's name is.
Without it, the split is the word train, val, test, ... in the name of the file or its folder.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("text_column", "image_column", "id_column", "split_column", "source", "split"),
)
