"""Follows a result back to its inputs, and compares each of them with its recorded digest.

The folder of an input holds the record of the job that wrote it, and so on to archives and images.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.runtime.files.digests import measure_path
from vlmill.runtime.files.inputs import Input, parse_inputs, resolve_path
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.paths import is_web, matches, to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_object

CHECKPOINT = "checkpoint.json"
MOST_LEVELS = 32
MAX_RECORD_BYTES = 64 << 20
OK, CHANGED, MISSING, UNCHECKED = "ok", "changed", "missing", "not checked"


@dataclass(frozen=True, kw_only=True)
class Node:
    """Holds an input with its state, and the inputs of the job that wrote it."""

    entry: Input
    path: str  # current path
    state: str
    detail: str = ""
    inputs: tuple["Node", ...] = ()
    again: bool = False  # its inputs are already in the tree


def read_record(folder: str | Path) -> tuple[str | None, list[Input] | None]:
    """Returns the job that wrote a folder and its inputs; None without a record.

    Raises InputError for a damaged record.
    """
    for name in (MANIFEST, CHECKPOINT):
        path = to_path(folder) / name
        if not path.is_file():
            continue
        content = _read_json(path)
        try:
            inputs = parse_inputs(content["inputs"]) if "inputs" in content else None
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}); write the folder again") from None
        job = content.get("job")
        return (job if isinstance(job, str) else None), inputs
    return None, None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, max_bytes=MAX_RECORD_BYTES)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); write the folder again") from None


def lineage(folder: str | Path) -> tuple[Node, ...]:
    """Returns the inputs of the job that wrote ``folder``, each with its own inputs.

    Raises InputError if the folder's own record is damaged; damage further back is a node's state.
    """
    _, inputs = read_record(folder)
    return _nodes(inputs or [], str(folder), {_real(str(folder))}, MOST_LEVELS)


def _nodes(
    inputs: Sequence[Input], folder: str, visited: set[str], levels: int
) -> tuple[Node, ...]:
    return tuple(
        _node(entry, resolve_path(entry.path, folder), visited, levels) for entry in inputs
    )


def _node(entry: Input, path: str, visited: set[str], levels: int) -> Node:
    state, detail = check_state(entry, path)
    if entry.job is None or state == MISSING or not levels:
        return Node(entry=entry, path=path, state=state, detail=detail)
    nodes: list[Node] = []
    again = False
    for folder in list_folders(path):
        real_path = _real(folder)
        again = again or real_path in visited
        if real_path in visited:
            continue
        visited.add(real_path)
        try:
            _, inputs = read_record(folder)
        except InputError as error:
            state, detail = CHANGED, str(error)
            continue
        if inputs is None:
            detail = detail or "written by an older vlmill, which recorded no inputs"
        nodes += _nodes(inputs or [], folder, visited, levels - 1)
    return Node(
        entry=entry, path=path, state=state, detail=detail, inputs=tuple(nodes), again=again
    )


def _real(folder: str) -> str:
    """Returns a folder's canonical path, without links; stores have none."""
    return folder if is_remote(folder) else os.path.realpath(folder)


def list_folders(path: str) -> list[str]:
    """Returns the folders of an input's files."""
    if to_path(path).is_dir():
        return [path]
    return sorted({str(file.parent) for file in matches(path, recursive=True)})


def check_state(entry: Input, path: str) -> tuple[str, str]:
    """Returns whether an input is unchanged, and if not, the difference."""
    if entry.digest is None or is_web(path):
        return UNCHECKED, "its files were moved"
    try:
        now = measure_path(path, entry.rule, entry.table)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING, ""
    except (InputError, OSError) as error:
        return (CHANGED, str(error)) if to_path(path).exists() else (MISSING, "")
    if now.digest == entry.digest:
        return OK, ""
    counts = [
        f"{name} {before} then, {after} now"
        for name, before, after in (
            ("files", entry.files, now.files),
            ("rows", entry.rows, now.rows),
            ("bytes", entry.bytes, now.bytes),
        )
        if before != after
    ]
    return CHANGED, ", ".join(counts) or "same size, different content"


def format_lines(nodes: Sequence[Node], depth: int = 0) -> Iterator[str]:
    """Yields the tree as indented lines."""
    for node in nodes:
        entry = node.entry
        rows = "" if entry.rows is None else f", {entry.rows:,} {entry.table}"
        job = "" if entry.job is None else f", by {entry.job}"
        detail = f" ({node.detail})" if node.detail else ""
        again = "; its inputs are listed above" if node.again else ""
        what = f"{'  ' * depth}{entry.flag} {_short(node.path)}{rows}{job}"
        yield f"{what}: {node.state}{detail}{again}"
        yield from format_lines(node.inputs, depth + 1)


def _short(path: str) -> str:
    """Returns a path, relative if it is below the working directory."""
    if is_remote(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def mismatches(nodes: Sequence[Node]) -> int:
    """Returns how many inputs of the tree are changed or missing."""
    return sum((node.state in (CHANGED, MISSING)) + mismatches(node.inputs) for node in nodes)
