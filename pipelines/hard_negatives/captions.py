"""Captions are read once, from any table, and laid out for the workers.

The folder that :func:`stage` makes holds ``texts-*.arrow`` in the order of the input, and what is
small for all captions in the order of their ids, which is their number: ``ids.arrow``,
``pictures.arrow``, ``images.npy``. ``numbers.npy`` says for each text which caption it is, -1 for a
reject.
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
import pyarrow.csv as pv
import pyarrow.ipc
import pyarrow.parquet as pq

from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.tokens import count_unspaced
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import atomic_folder, write_json
from vlmill.schemas.files.digests import path_input, table_input
from vlmill.schemas.files.inputs import Input
from vlmill.schemas.files.reading import find_shards, iter_batches
from vlmill.schemas.files.remote import matches, path_of, readable
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import PAIRS

JOB = "hard_negatives"
CHUNK_ROWS = 50_000  # captions that are in memory together
BATCH_ROWS = 10_000
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where captions are, and in which columns; all of them None is our own ``pairs`` table."""

    argument: str
    id_column: str | None = None
    image_column: str | None = None
    text_column: str | None = None

    @property
    def is_pairs(self) -> bool:
        """Whether this is a ``pairs`` table by its contract."""
        return self.text_column is None

    def columns(self) -> dict[str, str | None]:
        """What decides which captions these are, for the plan."""
        return {"id": self.id_column, "image": self.image_column, "text": self.text_column}

    def input(self) -> Input:
        """The record of what is read."""
        if self.is_pairs:
            return table_input("--pairs", self.argument, PAIRS)
        return path_input("--pairs", self.argument)

    def require(self) -> list[Path]:
        """The files to read. Raises InputError if there are none, or a column is missing."""
        if self.is_pairs:
            return find_shards(self.argument, PAIRS, "--pairs")
        paths = _files(self.argument)
        for path in paths:
            names = _column_names(path, self)
            for flag, name in self._flags():
                if names.count(name) != 1:
                    raise InputError(
                        f"{flag} {name}: {path} has {names.count(name)} columns of this name, must "
                        f"have one; its own are {', '.join(names)[:300]}"
                    )
        return paths

    def _flags(self) -> list[tuple[str, str]]:
        columns = (
            ("--id-column", self.id_column),
            ("--image-column", self.image_column),
            ("--text-column", self.text_column),
        )
        return [(flag, name) for flag, name in columns if name is not None]

    @property
    def has_header(self) -> bool:
        """Columns of a TSV that are numbers are places from 1 on, and its first line a row."""
        return not all(name.isdigit() for _, name in self._flags())


def source_of(
    argument: str, id_column: str | None, image_column: str | None, text_column: str | None
) -> Source:
    """A source from the flags. Raises InputError if they do not fit together."""
    if text_column is None and (id_column or image_column):
        raise InputError("--id-column and --image-column need --text-column, of the same table")
    return Source(
        argument=argument, id_column=id_column, image_column=image_column, text_column=text_column
    )


def _files(argument: str) -> list[Path]:
    path = path_of(argument)
    paths = [path] if path.is_file() else matches(argument)
    if path.is_dir():
        paths = sorted(p for p in path.iterdir() if p.suffix in (".parquet", ".tsv"))
    paths = [p for p in paths if p.is_file()]
    if not paths:
        raise InputError(f"--pairs {argument}: no such file; give Parquet or TSV, a folder, a glob")
    return paths


def _column_names(path: Path, source: Source) -> list[str]:
    if _is_parquet(path):
        try:
            return list(pq.read_schema(readable(path)).names)
        except (OSError, pa.ArrowException) as error:
            raise InputError(
                f"--pairs {path} is no Parquet: {str(error).splitlines()[0]}"
            ) from None
    with path.open("rb") as file:
        fields = file.readline().decode("utf-8", "replace").rstrip("\r\n").split("\t")
    if source.has_header:
        return fields
    return [str(place) for place in range(1, len(fields) + 1)]


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def batches(source: Source) -> Iterator[pa.RecordBatch]:
    """Yields batches of the columns id, image (both may lack) and text; memory is one of them."""
    if source.is_pairs:
        columns = ["pair_id", "image_id", "text"]
        for batch in iter_batches(
            source.argument, PAIRS, columns=columns, batch_rows=BATCH_ROWS, flag="--pairs"
        ):
            yield batch.rename_columns(["id", "image", "text"])
        return
    places = {"id": source.id_column, "image": source.image_column, "text": source.text_column}
    wanted = {name: column for name, column in places.items() if column is not None}
    for path in source.require():
        try:
            for batch in _foreign(path, source, list(wanted.values())):
                yield pa.RecordBatch.from_arrays(
                    [_plain(path, column, batch.column(column)) for column in wanted.values()],
                    list(wanted),
                )
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"--pairs {path} is damaged: {str(error).splitlines()[0]}") from None


def _foreign(path: Path, source: Source, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if _is_parquet(path):
        with pq.ParquetFile(readable(path)) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=columns)
        return
    names = _column_names(path, source)
    with pv.open_csv(
        readable(path),
        read_options=pv.ReadOptions(column_names=names, skip_rows=int(source.has_header)),
        parse_options=pv.ParseOptions(delimiter="\t", quote_char=False, newlines_in_values=False),
        convert_options=pv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=columns
        ),
    ) as reader:
        yield from reader


def _plain(path: Path, name: str, column: pa.Array) -> pa.Array:
    """Whole numbers or texts, and nothing else."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    raise InputError(
        f"--pairs {path}: the column {name} is {column.type}; must be text or whole numbers"
    )


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What :func:`stage` found: rows read, captions of these, and what may be wrong with them."""

    rows: int
    captions: int
    chunks: int
    unspaced: int  # captions of a script without spaces that the tokenizer does not cut
    alone: int  # captions without a picture


def stage(source: Source, folder: Path, rules: NegativeRules, limit: int | None = None) -> Staged:
    """Reads captions, the first ``limit`` rows of them, and lays them out in ``folder``.

    Memory: the ids of all captions and of their pictures. The folder appears whole.
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
    """Tables of CHUNK_ROWS rows."""
    held: list[pa.RecordBatch] = []
    stream = batches(source)
    if limit is not None:
        stream = islice(stream, -(-limit // BATCH_ROWS))
    for batch in stream:
        held.append(batch)
        if sum(b.num_rows for b in held) >= CHUNK_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _column(table: pa.Table, name: str, default: npt.NDArray[Any] | None) -> pa.Array:
    if name in table.column_names:
        return table.column(name).combine_chunks()
    return pa.nulls(table.num_rows, pa.string()) if default is None else pa.array(default)


def _numeric(source: Source, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Ids of a TSV are numbers if all of them are whole numbers as one writes them."""
    if source.is_pairs or not pa.types.is_string(ids.type):
        return ids
    if any(_is_parquet(path) for path in source.require()):
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
    """Writes ids, pictures and numbers of captions; the first row of an id counts."""
    rows = len(ids)
    table = pa.table({"id": ids, "row": np.arange(rows, dtype=np.int64)})
    order = pc.sort_indices(table, [("id", "ascending"), ("row", "ascending")])
    ordered = ids.take(order)
    if isinstance(ordered, pa.ChunkedArray):
        ordered = ordered.combine_chunks()
    place = np.asarray(order).astype(np.int64)
    repeats = np.zeros(rows, np.bool_)
    if rows > 1:
        same = pc.equal(ordered[1:], ordered[:-1])
        repeats[1:] = np.asarray(pc.fill_null(same, False))
    no_id = np.asarray(pc.is_null(ordered))
    no_text = ~has_text[place]
    bad = repeats | no_id | no_text
    _write_rejects(folder / "rejects.arrow", ordered, place, no_id, no_text, repeats)
    good = np.flatnonzero(~bad)
    numbers = np.full(rows, -1, np.int32)
    numbers[place[good]] = np.arange(good.size, dtype=np.int32)
    np.save(folder / "numbers.npy", numbers)
    write_arrow(
        folder / "ids.arrow", pa.table({"id": ordered.take(pa.array(good)).cast(pa.string())})
    )
    pictures = images.take(pa.array(place[good]))
    write_arrow(folder / "pictures.arrow", pa.table({"image": pictures}))
    codes = pc.dictionary_encode(pictures)
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
    place: npt.NDArray[np.int64],
    no_id: npt.NDArray[np.bool_],
    no_text: npt.NDArray[np.bool_],
    repeats: npt.NDArray[np.bool_],
) -> None:
    rows = []
    for k in np.flatnonzero(no_id | no_text | repeats):
        key = f"row {place[k] + 1}" if no_id[k] else str(ids[k].as_py())
        if no_id[k]:
            rows.append(reject(JOB, key, Reason.NO_ID, "the id is null"))
        elif repeats[k]:
            rows.append(reject(JOB, key, Reason.DUPLICATE, "a pair of this id came earlier"))
        else:
            rows.append(reject(JOB, key, Reason.NO_TEXT, "the text is null"))
    names = ("stage", "key", "reason", "detail")
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in names}
    write_arrow(path, pa.table(columns))


def chunk_starts(folder: Path) -> npt.NDArray[np.int64]:
    """Rows before each chunk of texts."""
    sizes = [read_arrow(path).num_rows for path in sorted(folder.glob("texts-*.arrow"))]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def write_arrow(path: Path, table: pa.Table) -> None:
    """Writes a table that can be mapped."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_arrow(path: Path) -> pa.Table:
    """Maps a table: its memory is the disk's cache."""
    return pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()
