"""Parquet files of Hugging Face's datasets, and img2dataset's: pictures and captions in one row."""

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.cleaning import notes_of, text_of
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Picture, Reading
from vlmill.pipelines.manifest.reading.columns import (
    PICTURES,
    TEXTS,
    guessed,
    num_rows,
    parquet_rows,
    schema_of,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def add_column_arguments(p: argparse.ArgumentParser) -> None:
    """Declares the flags of files whose columns anyone has named."""
    p.add_argument("--text-column", metavar="C", help=f"default: the one of {', '.join(TEXTS)}")
    p.add_argument("--image-column", metavar="C", help=f"default: the one of {', '.join(PICTURES)}")


def _add_arguments(p: argparse.ArgumentParser) -> None:
    add_column_arguments(p)
    p.add_argument("--source", default="hf", metavar="NAME", help="of the pairs (default: hf)")
    p.add_argument(
        "--split", metavar="NAME", help="of all rows (default: by a file's name, or null)"
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    paths = folder.files(".parquet") or sorted((folder.root / "data").glob("*.parquet"))
    sources = [Source(path=p, name=p.name, size=p.stat().st_size) for p in paths]
    if not sources:
        raise folder.lacks("*.parquet")
    schemas = {source.name: schema_of(source) for source in sources}
    if len({tuple(sorted(schema.names)) for schema in schemas.values()}) > 1:
        raise InputError(f"--input {folder.root}: its Parquet files have different columns")
    names, said = schemas[sources[0].name].names, sources[0].said
    text = guessed(names, TEXTS, args.text_column, "--text-column", said)
    image = guessed(names, PICTURES, args.image_column, "--image-column", said)
    sources[0].remarks.check(names, frozenset((text, image)))
    return Reading(
        sources=tuple(sources),
        entries=lambda: (e for s in sources for e in _entries(s, text, image, args)),
        expected={s.name: Expected(rows=num_rows(s), source="the file's footer") for s in sources},
        own_pictures=True,
    )


def _entries(source: Source, text: str, image: str, args: argparse.Namespace) -> Iterator[Entry]:
    stem = source.name.rpartition(".")[0]
    split = args.split or next(
        (s for s in ("train", "validation", "val", "test") if stem.startswith(s)), None
    )
    for number, row in enumerate(parquet_rows(source, (text, image))):
        key = f"{source.name}:{number}"
        image_id = f"{args.source}/{stem}/{number}"
        picture = _picture(image_id, row[image])
        captions = row[text] if isinstance(row[text], list) else [row[text]]
        rows = [
            _pair(f"{image_id}#{k}", image_id, text_of(caption), args.source, split)
            for k, caption in enumerate(captions)
        ]
        drop = (
            picture
            if isinstance(picture, Drop)
            else next((one for one in rows if isinstance(one, Drop)), None)
        )
        whole = [(PAIRS, one) for one in rows if not isinstance(one, Drop)]
        if isinstance(picture, Drop) or not whole:
            drop = drop or Drop(Reason.EMPTY_TEXT, "an empty list of captions")
            yield Entry(key=key, group=source.name, rows=drop)
            continue
        notes = tuple(n for c in captions if isinstance(c, str) for n in notes_of(c, c))
        notes += ("captions dropped",) * (len(rows) - len(whole))
        yield Entry(key=key, group=source.name, rows=tuple(whole), pictures=(picture,), notes=notes)


def _pair(
    pair_id: str, image_id: str, text: str | Drop, source: str, split: str | None
) -> dict[str, Any] | Drop:
    if isinstance(text, Drop):
        return text
    return {
        "pair_id": pair_id,
        "image_id": image_id,
        "text": text,
        "source": source,
        "split": split,
    }


def _picture(image_id: str, value: object) -> Picture | Drop:
    """A picture by its bytes, or by a path under DIR where the file has none."""
    content, path = (
        (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
    )
    if isinstance(content, str):
        content, path = None, content
    if isinstance(content, bytes) and content:
        return Picture(image_id=image_id, content=content, alone=True)
    if isinstance(path, str) and path:
        of_another_machine = path.startswith("/") or _DRIVE.match(path) is not None
        return Picture(image_id=image_id, paths=() if of_another_machine else (path,), alone=True)
    return Picture(image_id=image_id, alone=True)


HUGGING_FACE = DataSet(
    title="Parquet files with pictures and captions",
    about="""\
Parquet files as Hugging Face's datasets and img2dataset write them: a column of pictures (struct of
bytes and path, or bytes) and one of captions (text, or a list of texts). The columns are found by
their usual names, or named. image_id is <source>/<file>/<row from 0>.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("text_column", "image_column", "source", "split"),
)
