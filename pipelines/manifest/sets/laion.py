"""Reads LAION's lists: Parquet files of URLs and alt texts, without images."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from vlmill.pipelines.manifest.cleaning import note_repairs, validate_text
from vlmill.pipelines.manifest.entries import FOOTER, DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.columns import TEXTS, guess_column, num_rows, parquet_rows
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.pipelines.manifest.sets.conceptual_captions import is_url, url_aliases
from vlmill.runtime.files.contract import read_parquet_schema
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

URLS = ("URL", "url", "image_url")
SCORES = ("similarity", "SIMILARITY")
# Further columns of the published lists; the user's list may have any.
OTHERS = frozenset(
    (
        *("SAMPLE_ID", "HEIGHT", "WIDTH", "LICENSE", "NSFW", "hash", "key", "status", "punsafe"),
        *("pwatermark", "aesthetic", "AESTHETIC_SCORE", "error_message", "exif", "md5"),
    )
)
LANGUAGES = ("LANGUAGE", "language", "lang")


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--text-column",
        metavar="C",
        help=f"column of captions (default: the first of {', '.join(TEXTS)})",
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    sources = list(map(file_source, folder.files(".parquet")))
    if not sources:
        raise folder.lacks("*.parquet with the columns URL and TEXT")
    columns = {source.name: _columns(source, args.text_column) for source in sources}
    return Reading(
        sources=tuple(sources),
        entries=lambda: (e for s in sources for e in _entries(s, columns[s.name])),
        expected={s.name: Expected(rows=num_rows(s), source=FOOTER) for s in sources},
        image_folders=("images",),
    )


def _columns(source: Source, text: str | None) -> dict[str, str]:
    """Returns the file's names of the columns to read."""
    schema: pa.Schema = read_parquet_schema(source.path)
    columns = {
        "text": guess_column(schema.names, TEXTS, text, "--text-column", source.display_name),
        "url": guess_column(schema.names, URLS, None, None, source.display_name),
    }
    for name, usual in (("score", SCORES), ("language", LANGUAGES)):
        there = [column for column in usual if column in schema.names]
        columns |= {name: there[0]} if there else {}
    source.remarks.check(schema.names, OTHERS.union(columns.values()))
    return columns


def _entries(source: Source, columns: Mapping[str, str]) -> Iterator[Entry]:
    stem = source.name.rpartition(".")[0]
    for number, row in enumerate(parquet_rows(source, tuple(columns.values()))):
        values = {name: row[column] for name, column in columns.items()}
        image_id = f"laion/{stem}/{number}"
        pair = _pair(image_id, values)
        key = f"{source.name}:{number}"
        if isinstance(pair, Drop):
            yield Entry(key=key, group=source.name, rows=pair)
            continue
        url = pair["image_url"]
        image = ListedImage(
            image_id=image_id,
            paths=(f"images/{stem}/{number}", f"images/{number:09d}.jpg"),
            url=url,
            aliases=url_aliases(url),
            alone=True,
        )
        notes = note_repairs(pair["text"], str(values["text"]))
        yield Entry(key=key, group=source.name, rows=((PAIRS, pair),), images=(image,), notes=notes)


def _pair(image_id: str, values: Mapping[str, Any]) -> dict[str, Any] | Drop:
    url, score, language = values["url"], values.get("score"), values.get("language")
    text = Drop(Reason.EMPTY_TEXT) if values["text"] is None else validate_text(values["text"])
    if not isinstance(url, str) or not is_url(url):
        return Drop(Reason.BAD_ROW, "no URL")
    if isinstance(text, Drop):
        return text
    return {
        "pair_id": f"{image_id}#0",
        "image_id": image_id,
        "text": text,
        "language": language if isinstance(language, str) and language else None,
        "source": "laion",
        "split": "train",
        "text_source": "alt",
        # Some files have NaN for values that were not measured.
        "score": score if isinstance(score, float) and score == score else None,
        "image_url": url,
    }


LAION = DataSet(
    about="""\
LAION's metadata (Schuhmann et al. 2022) as pairs: Parquet files with URL, TEXT and, optionally,
similarity (-> score) and LANGUAGE, from laion.ai (CC BY 4.0; the images belong to their owners).
image_id is laion/<file>/<row from 0>. For images downloaded by img2dataset use `webdataset`.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("text_column",),
)
