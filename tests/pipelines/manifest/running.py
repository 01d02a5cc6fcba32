"""Runs of the manifest job on small files, and what they left."""

from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.__main__ import main
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import REJECTS, Table


def made(name: str, root: Path, *flags: str, status: int = 0) -> Path:
    """Runs a data set's job on ``root`` and returns its output, a folder beside it."""
    output = root.parent / f"{root.name}-out"
    assert main([name, "--input", str(root), "--output", str(output), *flags]) == status
    return output


def rows(folder: Path, table: Table) -> list[dict[str, Any]]:
    """The rows of a table."""
    listed: list[dict[str, Any]] = read_table(folder, table).to_pylist()
    return listed


def reasons(folder: Path) -> list[tuple[str, str]]:
    """Key and reason of each reject."""
    return [(row["key"], row["reason"]) for row in rows(folder, REJECTS)]
