"""Opens and checks tables of folders, files and globs: the inputs of every subcommand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.lineage import CHANGED, lineage
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.reading import find_shards, read_array_formats, read_producer
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS, TABLES, Table

# The id column of each table; without one, rows are not compared.
IDS = {
    "images": "image_id",
    "pairs": "pair_id",
    "negatives": "pair_id",
    "vocabulary": "word",
    "regions": "image_id",
    "neighbours": "image_id",
    "boxes": "image_id",
    "questions": "question_id",
    "choices": "example_id",
    "expressions": "expression_id",
    "statements": "example_id",
}
# Tables whose rows refer to images or pairs of another table, in the order that a
# folder's main table is searched.
MAIN = ("pairs", "questions", "choices", "expressions", "statements", "boxes", "regions", "images")


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """Holds one table of all arguments: its shards in order."""

    table: Table
    paths: tuple[Path, ...]
    arrays: dict[str, Any]
    producer: dict[str, Any]

    @property
    def num_rows(self) -> int:
        """Returns the number of rows of all shards, from their footers."""
        return sum(pq.read_metadata(readable(path)).num_rows for path in self.paths)


def open_inputs(arguments: Sequence[str]) -> tuple[dict[str, TableInput], list[Input]]:
    """Returns the tables of the arguments by name, without rejects, and their records.

    Raises InputError for an argument without a table, and for incompatible shards.
    """
    paths: dict[str, list[Path]] = {}
    records: list[Input] = []
    for argument in arguments:
        names = table_names(argument)
        if not names:
            raise InputError(f"IN {argument}: no table there; give a job's output folder or a file")
        for name in names:
            paths.setdefault(name, []).extend(find_shards(argument, TABLES[name], "IN"))
            records.append(table_input("IN", argument, TABLES[name]))
        warn_of_lineage(argument)
    return {name: _table(TABLES[name], files) for name, files in paths.items()}, records


def table_names(argument: str) -> list[str]:
    """Returns the tables of an argument, without rejects."""
    folder = to_path(argument)
    if folder.is_dir():
        names = [name for name in TABLES if name != REJECTS.name]
        return [name for name in names if any(folder.glob(f"{name}-*.parquet"))]
    first = next(iter(matches(argument)), None)
    if first is None or not first.is_file():
        return []
    try:
        metadata = pq.read_schema(readable(first)).metadata or {}
    except (OSError, ValueError) as error:
        raise InputError(
            f"IN {first} is not a readable Parquet file ({error}); give a Parquet table"
        ) from None
    name = metadata.get(b"vlmill.table", b"").decode("utf-8", "replace")
    return [name] if name in TABLES else []


def warn_of_lineage(argument: str) -> None:
    """Warns of a folder's inputs that have changed since it was written."""
    if not (to_path(argument) / MANIFEST).is_file():
        return
    changed = [node.path for node in lineage(argument) if node.state == CHANGED]
    if changed:
        print_status(
            f"warning: {argument} was computed from {', '.join(changed[:3])}, which has "
            "changed since"
        )


def _table(table: Table, paths: list[Path]) -> TableInput:
    """Returns the table of shards. Raises InputError for different array layouts or detectors."""
    arrays, producer = read_array_formats(paths[0]), read_producer(paths[0])
    same = True
    for path in paths[1:]:
        other = read_producer(path)
        if read_array_formats(path) != arrays:
            raise InputError(
                f"{path} stores its arrays as {read_array_formats(path)}, {paths[0]} as "
                f"{arrays}; write them in the same format before joining"
            )
        key = "detector_fingerprint"
        if other.get(key) != producer.get(key):
            raise InputError(
                f"{path} was made by the detector {other.get(key)}, {paths[0]} by "
                f"{producer.get(key)}: their features cannot be compared; join tables "
                "of the same detector"
            )
        same = same and other == producer
    shared = {"detector_fingerprint"} & producer.keys()
    shared_producer = producer if same else {key: producer[key] for key in shared}
    return TableInput(table=table, paths=tuple(paths), arrays=arrays, producer=shared_producer)


def main_table(tables: dict[str, TableInput], requested: str | None) -> str:
    """Returns the main table: the requested one, or the folder's examples. Raises InputError."""
    if requested is not None:
        if requested not in tables:
            raise InputError(f"--table {requested}: IN has only {', '.join(tables)}")
        return requested
    candidates = [name for name in MAIN if name in tables]
    if not candidates:
        raise InputError(
            f"IN has only {', '.join(tables)}; name the table whose rows to use with --table NAME"
        )
    return candidates[0]
