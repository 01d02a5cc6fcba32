"""Records the inputs of a job in its manifest, so that later readers can check them.

``_manifest.json`` and checkpoints list their inputs as plain JSON objects with the fields of
:class:`Input`. :mod:`vlmill.runtime.files.digests` computes the digests.
"""

import dataclasses
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vlmill.runtime.files.remote import is_remote

Rule = Literal["manifest", "content", "ends", "listing"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """Describes one argument of a job by its content.

    ``path`` is as the user gave it; in the record it is relative to the folder of the record.
    ``rule`` names how ``digest`` was computed; None if it was not, as for web addresses. ``rows``
    is the number of rows of a table. ``job`` wrote it, if its folder records that.
    """

    flag: str
    path: str
    rule: Rule
    digest: str | None
    files: int
    bytes: int
    table: str | None = None
    rows: int | None = None
    job: str | None = None


def make_records(inputs: Sequence[Input], folder: str | Path) -> list[dict[str, Any]]:
    """Returns the records to write into ``folder``: relative paths become relative to it.

    Absolute paths and URLs do not change: a folder of runs and tables can be moved as a whole with
    valid relative paths. No local path is relative to a folder in a store.
    """
    return [
        {**dataclasses.asdict(entry), "path": _relative(entry.path, folder)} for entry in inputs
    ]


def _relative(path: str, folder: str | Path) -> str:
    if is_remote(path) or os.path.isabs(path):
        return path
    if is_remote(folder):
        return os.path.abspath(path)
    return os.path.relpath(os.path.abspath(path), os.path.realpath(folder))


def resolve_path(path: str, folder: str | Path) -> str:
    """Returns the path that the recorded ``path`` of a record in ``folder`` refers to."""
    if is_remote(path) or os.path.isabs(path):
        return path
    if is_remote(folder):  # the record was copied together with the files next to it
        scheme, _, location = str(folder).partition("://")
        return f"{scheme}://{posixpath.normpath(posixpath.join(location, path))}"
    return os.path.normpath(os.path.join(os.path.realpath(folder), path))


def parse_inputs(records: Any) -> list[Input]:
    """Parses the inputs of a record. Raises ValueError for values that are not inputs."""
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("inputs must be a list of objects")
    known = {field.name for field in dataclasses.fields(Input)}
    # A later vlmill may record more about an input: unknown keys are ignored.
    inputs = [Input(**{k: v for k, v in record.items() if k in known}) for record in records]
    for entry in inputs:
        texts = (entry.flag, entry.path, entry.digest or "", entry.table or "", entry.job or "")
        counts = (entry.files, entry.bytes, entry.rows or 0)
        are_integers = all(isinstance(n, int) and not isinstance(n, bool) for n in counts)
        if not all(isinstance(text, str) for text in texts) or not are_integers:
            raise ValueError(f"input {entry.flag}: a field has another type")
        if entry.rule not in get_args(Rule):
            raise ValueError(
                f"input {entry.flag}: rule {entry.rule!r} is not one of {get_args(Rule)}"
            )
    return inputs
