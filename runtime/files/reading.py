"""Finds and reads tables: an argument is a folder, a file or a glob."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import (
    check_file,
    check_values,
    naming_damage,
    read_parquet_footer,
)
from vlmill.runtime.files.listed import CHECKS, ListedFile, file_problem
from vlmill.runtime.files.manifest import MANIFEST, read_manifest
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.tables import REJECTS, TABLES, Table, add_missing_columns

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def find_shards(argument: str | Path, spec: Table, flag: str = "") -> list[Path]:
    """Returns the sorted Parquet files of ``spec`` under ``argument``.

    A folder with a manifest gives the shards listed there. A folder without one is refused if its
    run has not finished, and otherwise searched for ``NAME-*.parquet``. ``flag`` (``--pairs``) is
    named in errors. Raises InputError if nothing is found or a file breaks the table's contract
    (:func:`~vlmill.runtime.files.contract.check_file`).
    """
    text, path = str(argument), to_path(argument)
    display_name = f"{flag} {text}".strip()
    if path.is_dir():
        paths = _in_folder(path, spec, display_name)
        # One folder may hold several tables, so a name decides and not each file's content.
    else:
        paths = [path] if path.is_file() else matches(text)
    paths = [p for p in paths if p.is_file() and not p.name.startswith(".")]
    if not paths:
        raise InputError(
            f"{display_name}: no table of {spec.name} there; give a folder, a file or a glob"
        )
    for file in paths:
        check_file(file, spec)
    require_listed(paths, display_name)
    return paths


def require_listed(paths: Sequence[Path], display_name: str, *, hashes: bool = False) -> None:
    """Raises InputError for a shard whose size or SHA-256 differs from its manifest.

    The SHA-256 is compared, by reading the shard once (about 1 GB/s), if ``hashes`` or the
    command's ``--verify`` requests it. Shards that no manifest lists are not checked here, but by
    their reader.
    """
    for folder in sorted({path.parent for path in paths}):
        manifest = folder / MANIFEST
        if not manifest.is_file():
            continue
        listed = _listed_shards(manifest, manifest.stat().st_mtime_ns)
        for path in paths:
            if path.parent == folder and (shard := listed.get(path.name)) is not None:
                _require_shard(path, shard, display_name, hashes=hashes or CHECKS.verify)


@lru_cache(maxsize=64)
def _listed_shards(manifest: Path, _: int) -> dict[str, ListedFile]:
    shards = read_manifest(manifest.parent)["shards"]
    return {s.name: ListedFile(name=s.name, bytes=s.bytes, sha256=s.sha256) for s in shards}


def _require_shard(path: Path, shard: ListedFile, display_name: str, *, hashes: bool) -> None:
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if key in _hashed:
        return
    if problem := file_problem(path, shard, hashes=hashes):
        raise InputError(f"{display_name}: {problem}; write the table again or use another copy")
    if hashes:
        _hashed.add(key)


_hashed: set[tuple[str, int, int]] = set()
"""Shards whose SHA-256 this process has compared: a command opens a table more than once"""


def require_tables(arguments: Mapping[str, str | None]) -> None:
    """Raises InputError for the first argument that names no table; None is accepted.

    The flag names the table: ``--pairs`` a table of pairs, ``--annotated-regions`` one of regions.
    """
    for flag, argument in arguments.items():
        if argument is not None:
            name = flag.removeprefix("--").removeprefix("annotated-")
            find_shards(argument, TABLES[name], flag)


def _in_folder(folder: Path, spec: Table, display_name: str) -> list[Path]:
    if (folder / MANIFEST).exists():
        listed_shards = [s for s in read_manifest(folder)["shards"] if s.table == spec.name]
        missing = [s.name for s in listed_shards if not (folder / s.name).is_file()]
        if missing:
            raise InputError(f"{display_name}: {missing[0]} is listed in {MANIFEST}, but missing")
        return sorted(folder / s.name for s in listed_shards)
    if (folder / "_plan.json").exists():
        raise InputError(
            f"{display_name}: the run that writes this folder has not finished; run it again"
        )
    return sorted(folder.glob(f"{spec.name}-*.parquet"))


def read_producer(path: str | Path) -> dict[str, Any]:
    """Returns a shard's producer metadata: software, settings, fingerprints."""
    return _json_metadata(to_path(path), b"vlmill.producer")


def read_array_formats(path: str | Path) -> dict[str, Any]:
    """Returns dtype and width of a shard's binary arrays."""
    return _json_metadata(to_path(path), b"vlmill.arrays")


def _json_metadata(path: Path, key: bytes) -> dict[str, Any]:
    try:
        value = parse_json((read_parquet_footer(path).metadata or {}).get(key, b"{}"))
    except ValueError as error:
        raise InputError(f"{path}: its metadata {key.decode()} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: its metadata {key.decode()} is not a JSON object")
    return value


def iter_batches(
    argument: str | Path,
    spec: Table,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = 1_000,
    flag: str = "",
) -> Iterator[pa.RecordBatch]:
    """Yields a table's record batches, shard by shard in name order; memory is bounded by one.

    Without ``columns`` it reads all columns of the contract. Raises InputError for a damaged file,
    and if values of these columns break the contract.
    """
    names = spec.schema.names if columns is None else list(columns)
    for path in find_shards(argument, spec, flag):
        with pq.ParquetFile(readable(path)) as file, naming_damage(path):
            limit = limit_batch_rows(path, batch_rows)
            for batch in file.iter_batches(batch_size=limit, columns=names):
                require_short_texts(path, batch)
                check_values(path, batch, spec)
                batch = add_missing_columns(batch, spec, names)
                yield batch.select(names)  # Parquet returns them in the file's order


def read_group(
    file: pq.ParquetFile, path: Path, group: int, spec: Table, columns: Sequence[str]
) -> pa.Table:
    """Reads columns of a row group of the shard at ``path``, which ``file`` has opened.

    Raises InputError if it is damaged, and if values of these columns break the contract.
    """
    with naming_damage(path):
        table = file.read_row_group(group, columns=list(columns))
        check_values(path, table, spec)
        return table


def read_table(
    argument: str | Path, spec: Table, *, columns: Sequence[str] | None = None, flag: str = ""
) -> pa.Table:
    """Reads a whole table, or some columns of it, into memory."""
    batches = list(iter_batches(argument, spec, columns=columns, batch_rows=65_536, flag=flag))
    names = spec.schema.names if columns is None else list(columns)
    schema = pa.schema([spec.schema.field(name) for name in names])
    return pa.Table.from_batches([b.cast(schema) for b in batches], schema=schema)


def open_dataset(argument: str | Path, name: str) -> "Dataset":
    """Opens a table's shards as a dataset. Raises InputError for a name that no table has."""
    if name not in TABLES:
        raise InputError(f"table {name!r} is not one of {', '.join(TABLES)}")
    import pyarrow.dataset as ds  # no job needs it, and its libraries load slowly

    paths = [os.fspath(path) for path in find_shards(argument, TABLES[name])]
    return ds.dataset(paths, format="parquet")


def reject_counts(argument: str | Path) -> Counter[str]:
    """Counts the reasons of a table of rejects: a finished output, or a shard."""
    counts: Counter[str] = Counter()
    for batch in iter_batches(argument, REJECTS, columns=["reason"], batch_rows=65_536):
        counts.update(batch.column(0).to_pylist())
    return counts
