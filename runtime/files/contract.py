"""Checks files against the contract of their table, so that a violation is a one-line error.

The schema is compared when a file is opened, and values when columns are read: that text is UTF-8,
and that columns without nulls have none.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.text_sizes import limit_batch_rows
from vlmill.schemas import tables
from vlmill.schemas.errors import InputError

REMEDY = "write the table again by its contract (docs/tables.md)"


@contextmanager
def naming_damage(path: Path, damage: str = "is damaged", remedy: str = "") -> Iterator[None]:
    """Raises InputError for a file that the block cannot read."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{path} {damage}: {reason}{remedy}") from None


_opening = partial(
    naming_damage, damage="is not a readable Parquet file", remedy="; give a Parquet table"
)


def read_parquet_footer(path: Path) -> pq.FileMetaData:
    """Returns a file's footer. Raises InputError for a file that is not Parquet."""
    with _opening(path):
        return pq.read_metadata(readable(path))


def read_parquet_schema(path: Path) -> pa.Schema:
    """Returns a file's columns. Raises InputError for a file that is not Parquet."""
    with _opening(path):  # also for names that are not UTF-8
        return pq.read_schema(readable(path))


def check_file(path: Path, spec: tables.Table) -> None:
    """Raises InputError for a file that does not fit ``spec``, from its footer alone.

    Its metadata must name the table, it must have the contract's columns with their types
    (additional columns are ignored), and its statistics must show no nulls in columns that forbid
    them.
    """
    footer = read_parquet_footer(path)
    with _opening(path):  # for names that are not UTF-8
        schema = footer.schema.to_arrow_schema()
    tables.check_version(schema.metadata, spec, str(path))
    if fault := tables.schema_fault(schema, spec) or _listed_nulls(footer, spec):
        raise InputError(f"{path}: {fault}; {REMEDY}")
    limit_batch_rows(path, 1)  # refuses texts that are too long


def check_values(path: Path, rows: pa.Table | pa.RecordBatch, spec: tables.Table) -> None:
    """Raises InputError if the values of ``rows``, a part of a file, break the contract.

    The error counts the bad values of the entire file.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        field = spec.fields[name]
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if not any(tables.breaks_contract(chunk, field) for chunk in chunks):
            continue
        counts: Counter[str] = Counter()
        with pq.ParquetFile(readable(path)) as file:
            for batch in file.iter_batches(columns=[name]):
                counts += tables.count_faults(batch.column(0), field)
        if counts:
            raise InputError(f"{path}: {tables.values_fault(counts, field, spec)}; {REMEDY}")


def _listed_nulls(footer: pq.FileMetaData, spec: tables.Table) -> str | None:
    """Returns the first column whose statistics show nulls that the contract forbids."""
    required = {field.name: field for field in spec.schema if not field.nullable}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        # One that is declared without nulls has none, and costs nothing for each row group.
        if column.path not in required or not column.max_definition_level:
            continue
        groups = (footer.row_group(g).column(number) for g in range(footer.num_row_groups))
        statistics = [group.statistics for group in groups if group.is_stats_set]
        if nulls := sum(s.null_count for s in statistics if s.has_null_count):
            return tables.values_fault(Counter({tables.NULLS: nulls}), required[column.path], spec)
    return None
