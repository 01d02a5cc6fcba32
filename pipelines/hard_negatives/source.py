"""Reads captions from a ``pairs`` table, or from any Parquet or TSV file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import naming_damage, read_parquet_schema
from vlmill.runtime.files.digests import path_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.reading import find_shards, iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

BATCH_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Source:
    """Holds the files and columns of captions; a ``pairs`` table if all columns are unset."""

    argument: str
    id_column: str | None = None
    image_column: str | None = None
    text_column: str | None = None

    @property
    def is_pairs(self) -> bool:
        """Returns whether this is a ``pairs`` table by its contract."""
        return self.text_column is None

    def columns(self) -> dict[str, str | None]:
        """Returns the columns that determine the captions, for the plan."""
        return {"id": self.id_column, "image": self.image_column, "text": self.text_column}

    def input(self) -> Input:
        """Returns the record of the input."""
        if self.is_pairs:
            return table_input("--pairs", self.argument, PAIRS)
        return path_input("--pairs", self.argument)

    def require(self) -> list[Path]:
        """Returns the files to read. Raises InputError for missing files or columns."""
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
                if is_parquet(path):
                    _require_plain(path, flag, name)
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
        """Returns whether a TSV has a header; without one, columns are numbers from 1."""
        return not all(name.isdigit() for _, name in self._flags())


def build_source(
    argument: str, id_column: str | None, image_column: str | None, text_column: str | None
) -> Source:
    """Returns a source from the flags. Raises InputError for incompatible flags."""
    if text_column is None and (id_column or image_column):
        raise InputError("--id-column and --image-column need --text-column, of the same table")
    return Source(
        argument=argument, id_column=id_column, image_column=image_column, text_column=text_column
    )


def _files(argument: str) -> list[Path]:
    path = to_path(argument)
    paths = [path] if path.is_file() else matches(argument)
    if path.is_dir():
        paths = sorted(p for p in path.iterdir() if p.suffix in (".parquet", ".tsv"))
    paths = [p for p in paths if p.is_file()]
    if not paths:
        raise InputError(f"--pairs {argument}: no such file; give Parquet or TSV, a folder, a glob")
    return paths


def _column_names(path: Path, source: Source) -> list[str]:
    if is_parquet(path):
        return list(read_parquet_schema(path).names)
    with path.open("rb") as file:
        fields = file.readline().decode("utf-8", "replace").rstrip("\r\n").split("\t")
    if source.has_header:
        return fields
    return [str(number) for number in range(1, len(fields) + 1)]


def is_parquet(path: Path) -> bool:
    """Returns whether a file begins with Parquet's magic bytes."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def batches(source: Source) -> Iterator[pa.RecordBatch]:
    """Yields batches of the columns id, image (both optional) and text. Memory: one batch."""
    if source.is_pairs:
        columns = ["pair_id", "image_id", "text"]
        for batch in iter_batches(
            source.argument, PAIRS, columns=columns, batch_rows=BATCH_ROWS, flag="--pairs"
        ):
            yield batch.rename_columns(["id", "image", "text"])
        return
    column_by_field = {
        "id": source.id_column,
        "image": source.image_column,
        "text": source.text_column,
    }
    used_columns = {name: column for name, column in column_by_field.items() if column is not None}
    for path in source.require():
        with naming_damage(path):
            for batch in _foreign(path, source, list(used_columns.values())):
                values = [_plain(path, name, batch.column(name)) for name in used_columns.values()]
                yield pa.RecordBatch.from_arrays(values, list(used_columns))


def _foreign(path: Path, source: Source, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if is_parquet(path):
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
    """Returns a column of whole numbers or strings as int64 or string."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_integer(column.type):
        return column.cast(pa.string())
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise InputError(
            f"--pairs {path}: the column {name} has a number above 2^63 - 1; give it as text"
        ) from None


def _require_plain(path: Path, flag: str, name: str) -> None:
    """Raises InputError for a Parquet column that has neither strings nor whole numbers."""
    kind = pq.read_schema(readable(path)).field(name).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    if not any(is_kind(value) for is_kind in texts):
        raise InputError(
            f"{flag} {name}: the column of {path} is {kind}; must be text or whole numbers"
        )
