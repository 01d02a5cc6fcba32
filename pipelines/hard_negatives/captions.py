"""Reads captions once, from any table, and writes them for the workers.

The folder of :func:`stage` has ``texts-*.arrow`` in the order of the input, and small arrays for
all captions in the order of their ids, which defines their numbers: ``ids.arrow``,
``pictures.arrow``, ``images.npy``. ``numbers.npy`` maps each text to its caption, -1 for a reject.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import BATCH_ROWS, Source, batches, is_parquet
from vlmill.pipelines.hard_negatives.tokens import count_unspaced
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import atomic_folder, write_json
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject

JOB = "hard_negatives"
CHUNK_ROWS = 50_000  # captions that are in memory together
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Holds the counts of :func:`stage`: rows read, their captions, and possible problems."""

    rows: int
    captions: int
    chunks: int
    unspaced: int  # captions in scripts without spaces that the tokenizer does not split
    alone: int  # captions without an image


def stage(source: Source, folder: Path, rules: NegativeRules, limit: int | None = None) -> Staged:
    """Reads captions, at most the first ``limit`` rows, and writes them to ``folder``.

    Memory: the ids of all captions and of their images. The folder appears when it is complete.
    """
    with atomic_folder(folder, replace=True) as temporary:
        ids, images, has_text, unspaced = _copy_texts(source, temporary, rules, limit)
        staged = _number(temporary, ids, images, has_text, unspaced)
        write_json(temporary / "staged.json", staged.__dict__)
    return staged


def _copy_texts(
    source: Source, folder: Path, rules: NegativeRules, limit: int | None
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, npt.NDArray[np.bool_], int]:
    ids, images, has_text, unspaced, rows = [], [], [], 0, 0
    with Progress(total=None, unit="caption", label="reading") as progress:
        for number, batch in enumerate(_chunks(source, limit)):
            texts = batch.column("text").cast(pa.string())
            has_text.append(np.asarray(pc.is_valid(texts)))
            unspaced += count_unspaced(texts, rules)
            ids.append(_column(batch, "id", np.arange(rows, rows + batch.num_rows)))
            images.append(_column(batch, "image", None))
            write_arrow(folder / f"texts-{number:05d}.arrow", pa.table({"text": texts}))
            rows += batch.num_rows
            progress.advance(batch.num_rows)
    kinds = {array.type for array in ids}
    if len(kinds) > 1:
        raise InputError(
            f"--pairs {source.argument}: ids are numbers in one file and texts in another"
        )
    all_ids = pa.chunked_array(ids, kinds.pop() if kinds else pa.string())
    images = [image.cast(pa.string()) for image in images]
    flags = np.concatenate(has_text) if has_text else np.zeros(0, np.bool_)
    return _numeric(source, all_ids), pa.chunked_array(images, pa.string()), flags, unspaced


def _chunks(source: Source, limit: int | None) -> Iterator[pa.Table]:
    """Yields tables of CHUNK_ROWS rows."""
    batches_of_chunk: list[pa.RecordBatch] = []
    stream = batches(source)
    if limit is not None:
        stream = islice(stream, -(-limit // BATCH_ROWS))
    for batch in stream:
        batches_of_chunk.append(batch)
        if sum(b.num_rows for b in batches_of_chunk) >= CHUNK_ROWS:
            yield pa.Table.from_batches(batches_of_chunk)
            batches_of_chunk = []
    if batches_of_chunk:
        yield pa.Table.from_batches(batches_of_chunk)


def _column(table: pa.Table, name: str, default: npt.NDArray[Any] | None) -> pa.Array:
    if name in table.column_names:
        return table.column(name).combine_chunks()
    return pa.nulls(table.num_rows, pa.string()) if default is None else pa.array(default)


def _numeric(source: Source, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts ids of a TSV to numbers if all are whole numbers in their usual form."""
    if source.is_pairs or not pa.types.is_string(ids.type):
        return ids
    if any(is_parquet(path) for path in source.require()):
        return ids
    if pc.all(pc.match_substring_regex(ids, INTEGER)).as_py():
        with suppress(pa.ArrowInvalid):
            return ids.cast(pa.int64())
    return ids


def _number(
    folder: Path,
    ids: pa.ChunkedArray,
    images: pa.ChunkedArray,
    has_text: npt.NDArray[np.bool_],
    unspaced: int,
) -> Staged:
    """Writes ids, images and numbers of captions; only the first row of an id counts."""
    rows = len(ids)
    table = pa.table({"id": ids, "row": np.arange(rows, dtype=np.int64)})
    order = pc.sort_indices(table, [("id", "ascending"), ("row", "ascending")])
    ordered = ids.take(order)
    if isinstance(ordered, pa.ChunkedArray):
        ordered = ordered.combine_chunks()
    row_numbers = np.asarray(order).astype(np.int64)
    repeats = np.zeros(rows, np.bool_)
    if rows > 1:
        repeats[1:] = np.asarray(pc.fill_null(pc.equal(ordered[1:], ordered[:-1]), False))
    no_id = np.asarray(pc.is_null(ordered))
    no_text = ~has_text[row_numbers]
    bad = repeats | no_id | no_text
    _write_rejects(folder / "rejects.arrow", ordered, row_numbers, no_id, no_text, repeats)
    good = np.flatnonzero(~bad)
    numbers = np.full(rows, -1, np.int32)
    numbers[row_numbers[good]] = np.arange(good.size, dtype=np.int32)
    np.save(folder / "numbers.npy", numbers)
    write_arrow(
        folder / "ids.arrow", pa.table({"id": ordered.take(pa.array(good)).cast(pa.string())})
    )
    caption_images = images.take(pa.array(row_numbers[good]))
    write_arrow(folder / "pictures.arrow", pa.table({"image": caption_images}))
    codes = pc.dictionary_encode(caption_images)
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    codes = codes.indices if len(codes) else pa.array([], pa.int32())
    alone = np.asarray(codes.is_null())
    image = np.asarray(codes.fill_null(0)).astype(np.int32)
    image[alone] = image.max(initial=-1) + 1 + np.arange(alone.sum(), dtype=np.int32)
    np.save(folder / "images.npy", image)
    return Staged(
        rows=rows,
        captions=int(good.size),
        chunks=len(list(folder.glob("texts-*.arrow"))),
        unspaced=unspaced,
        alone=int(alone.sum()),
    )


def _write_rejects(
    path: Path,
    ids: pa.Array,
    row_numbers: npt.NDArray[np.int64],
    no_id: npt.NDArray[np.bool_],
    no_text: npt.NDArray[np.bool_],
    repeats: npt.NDArray[np.bool_],
) -> None:
    rows = []
    for k in np.flatnonzero(no_id | no_text | repeats):
        key = f"row {row_numbers[k] + 1}" if no_id[k] else str(ids[k].as_py())
        if no_id[k]:
            rows.append(reject(JOB, key, Reason.NO_ID, "the id is null"))
        elif repeats[k]:
            rows.append(reject(JOB, key, Reason.DUPLICATE, "an earlier pair has this id"))
        else:
            rows.append(reject(JOB, key, Reason.NO_TEXT, "the text is null"))
    names = ("stage", "key", "reason", "detail")
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in names}
    write_arrow(path, pa.table(columns))


def chunk_starts(folder: Path) -> npt.NDArray[np.int64]:
    """Returns the number of rows before each chunk of texts."""
    sizes = [read_arrow(path).num_rows for path in sorted(folder.glob("texts-*.arrow"))]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def write_arrow(path: Path, table: pa.Table) -> None:
    """Writes a table as a file that can be mapped."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_arrow(path: Path) -> pa.Table:
    """Maps a table; its memory is the disk's cache."""
    return pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()
