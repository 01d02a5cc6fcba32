"""Reads a folder for ``train-vl show``: JSON, YAML, and only the header of the weights."""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.lineage import read_record
from vlmill.runtime.files.checkpoints import CHECKPOINTS
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import MANIFEST, read_manifest
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.settings.plain_fields import read_yaml
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json, read_object
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, find_checkpoint, saved_steps

RECIPE, LOG, METRICS = "recipe.yaml", "log.jsonl", "metrics.json"
MAX_HEADER_BYTES = 100 << 20  # as the library of safetensors bounds it
MAX_JSON_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Holds the size of a file of weights, from its header."""

    parameters: int
    dtypes: Mapping[str, int]  # type -> parameters
    bytes: int


@dataclass(frozen=True, kw_only=True)
class FolderSummary:
    """The recorded facts about a folder; without ``checkpoint``, the tables of a job.

    ``record_folder`` is the folder whose record lists the inputs.
    """

    folder: Path
    record_folder: Path
    job: str | None
    inputs: list[Input] | None
    finished: bool
    rows: Mapping[str, int] = field(default_factory=dict)  # table -> rows
    checkpoint: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of checkpoint.json
    recipe: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    weights: Weights | None = None
    last_line: Mapping[str, Any] = field(default_factory=dict)  # of the log
    metrics: Mapping[str, Any] = field(default_factory=dict)


def read_folder(folder: Path) -> FolderSummary:
    """Reads the records of a folder. Raises InputError for a folder that is not vlmill's or is
    damaged.
    """
    if not folder.is_dir():
        raise InputError(f"DIR {folder}: no folder there; give the --output of a run")
    finished = (folder / MANIFEST).is_file()
    steps = saved_steps(folder)
    metrics = _json(folder / METRICS) if (folder / METRICS).is_file() else {}
    rows: Counter[str] = Counter()
    if finished:
        for shard in read_manifest(folder)["shards"]:
            rows[shard.table] += shard.rows
    if not steps and not (folder / SETTINGS).is_file():
        if not finished:
            raise InputError(
                f"DIR {folder} has no checkpoint and no {MANIFEST}; give the --output of a run "
                "that has saved or ended"
            )
        job, inputs = read_record(folder)
        return FolderSummary(
            folder=folder,
            record_folder=folder,
            job=job,
            inputs=inputs,
            finished=True,
            rows=rows,
            metrics=metrics,
        )
    checkpoint = find_checkpoint(folder, "DIR")
    record_folder = folder if finished else checkpoint
    job, inputs = read_record(record_folder)
    output = checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else folder
    return FolderSummary(
        folder=folder,
        record_folder=record_folder,
        job=job,
        inputs=inputs,
        finished=finished,
        rows=rows,
        checkpoint=checkpoint,
        settings=_json(checkpoint / SETTINGS),
        recipe=read_yaml(output / RECIPE, "DIR") if (output / RECIPE).is_file() else {},
        steps=tuple(sorted(steps)),
        weights=read_weights(checkpoint / MODEL),
        last_line=last_line(output / LOG),
        metrics=metrics,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, max_bytes=MAX_JSON_BYTES)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); use another checkpoint") from None


def read_weights(path: Path) -> Weights:
    """Parameters by type from the header of a file of safetensors. Raises InputError."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, path.stat().st_size):
                raise ValueError(f"its header states {length} bytes")
            header = parse_json(file.read(length))
        counts: Counter[str] = Counter()
        for name, tensor in header.items():
            if name != "__metadata__":
                counts[tensor["dtype"]] += prod(tensor["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise InputError(f"{path} is damaged ({error}); use another checkpoint") from None
    return Weights(parameters=counts.total(), dtypes=dict(counts), bytes=path.stat().st_size)


def last_line(path: Path) -> dict[str, Any]:
    """Returns the last complete line of a log, reading only its end; {} without one."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_LINE_BYTES))
        lines = file.read().split(b"\n")[:-1]
    try:
        line = parse_json(lines[-1]) if lines else {}
    except ValueError as error:
        raise InputError(f"{path}: its last line is not JSON ({error})") from None
    return line if isinstance(line, dict) else {}


COLUMNS = ("reason", "stage", "key", "detail")


def print_rejects(folder: str | Path) -> None:
    """Prints the rejects in ``folder`` separated by tabs, and their counts on standard error.

    Raises InputError for a folder without a table of rejects.
    """
    for batch in iter_batches(folder, REJECTS, columns=COLUMNS, flag="DIR"):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            print("\t".join(" ".join((value or "").split()) for value in row))
    print_status(f"{folder}: {format_rejects(reject_counts(folder))}")
