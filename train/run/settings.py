"""Collects the settings that decide a run's output: recipe fields, and inputs by content."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.outputs import PLAN, build_plan
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import NEGATIVES, NEIGHBOURS
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.loading.images.tokenizer import FIELD
from vlmill.train.loading.vocabulary import vocabulary_files
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.run.inputs import Sources

# Settings that runs of earlier versions do not have, with the value that changes nothing.
ADDED = dict.fromkeys(("cuda_graph", "attention_kernel", "residual_kernel", "half_norms"), False)
NO_EFFECT = ("workers", "keep_checkpoints", "max_bad", "trackers", "device_batch", "run_ahead")
# They change no figure of a step, so a continued run may have others.
MAY_DIFFER = re.compile(r"save_every|log_every|checkpoint_activations|stages\.\d+\.accumulation")
UNFROZEN = re.compile(r"stages\.\d+\.freeze")  # runs of earlier versions do not have it
LENGTH = re.compile(r"stages\.(\d+)\.(steps|epochs)")


def collect_settings(recipe: Recipe, sources: Sources) -> dict[str, Any]:
    """Returns the settings that decide the output: recipe fields, and inputs by content, not
    path.
    """
    tokenizer = [Path(p)] if (p := recipe.picture_tokenizer) else []
    return collect_run_settings(recipe, sources) | {FIELD: _digest(tokenizer, FIELD)}


def may_continue(name: str, before: Any, value: Any, *, num_stages: int) -> bool:
    """Returns whether a run may continue with another value of a setting.

    These are fields that change no figure, the interval of validation (of a run with one), and the
    length of the last stage.
    """
    if name == "validate_every":
        return bool(before) and bool(value)
    if length := LENGTH.fullmatch(name):
        return int(length[1]) == num_stages - 1
    return bool(MAY_DIFFER.fullmatch(name))


@dataclass(frozen=True)
class Change:
    """Holds a setting with which a run continues that had another value before."""

    name: str
    before: Any
    value: Any

    @property
    def is_length(self) -> bool:
        """Returns whether it is the length of a stage."""
        return LENGTH.fullmatch(self.name) is not None

    def __str__(self) -> str:
        text = f"continues with {self.name}={self.value} ({self.before} before)"
        if self.is_length:
            return (
                f"{text}: weights and the optimiser's moments are kept, and the learning rate "
                "follows the schedule of the new length from the next step on"
            )
        if self.name.endswith("accumulation"):
            return f"{text}: steps have the same rows; dropout uses other random numbers"
        return text


def list_changes(
    output: Path, job: str, settings: Mapping[str, Any], *, num_stages: int
) -> list[Change]:
    """Returns the settings in which the run in ``output`` differs and may differ (`may_continue`);
    nothing for a folder without a plan of the job.
    """
    try:
        plan = read_json(output / PLAN)
        before = dict(plan["settings"]) if plan["job"] == job else {}
    except (OSError, ValueError, TypeError, KeyError):
        return []  # `prepare_output` reports a damaged plan
    now = build_plan(job, settings)["settings"]
    return [
        Change(name, before[name], now[name])
        for name in now
        if name in before
        and before[name] != now[name]
        and may_continue(name, before[name], now[name], num_stages=num_stages)
    ]


def record_settings(output: Path, job: str, settings: Mapping[str, Any]) -> None:
    """Records the settings of a run that continues with others than before. The manifest of a
    finished run that becomes longer is removed first, so a killed process leaves a partial run.
    """
    plan = build_plan(job, settings)
    if read_json(output / PLAN) != plan:
        (output / MANIFEST).unlink(missing_ok=True)
        write_json(output / PLAN, plan)


def collect_run_settings(recipe: RunSettings, sources: Sources) -> dict[str, Any]:
    """Returns the settings that decide any run's output, fine-tuning's too."""
    inputs, init = sources.inputs, sources.init
    fields = {
        k: v
        for k, v in to_plain(recipe).items()
        if k not in NO_EFFECT and not (k in ADDED and v == ADDED[k])
    }
    negatives = find_shards(inputs.negatives, NEGATIVES, "--negatives") if inputs.negatives else []
    what = "pairs" if inputs.examples is None else "examples"
    near = {}
    if inputs.neighbours is not None:
        shards = find_shards(inputs.neighbours, NEIGHBOURS, "--negatives")
        near = {"neighbours": _digest(shards, "--negatives")}
    flat = flatten(fields)
    return {name: v for name, v in flat.items() if not (UNFROZEN.fullmatch(name) and v == [])} | {
        what: f"{sources.pairs.count} {what}, {sources.pairs.digest[:16]}",
        "regions": _table_digest(sources.regions, f"detector {sources.fingerprint or 'unknown'}"),
        "annotated_regions": _table_digest(sources.annotated, "annotated"),
        "images": _table_digest(sources.images, "encoded"),
        "negatives": _digest(negatives, "--negatives"),
        "vocab": _digest(vocabulary_files(inputs.vocab) if inputs.vocab else [], "--vocab"),
        "init": _digest([init.path / MODEL] if init else [], "--init"),
        **near,
    }


def _table_digest(reader: RegionReader | ImageReader | None, what: str) -> str | None:
    """Returns a table's digest by size: hashing terabytes of features would take hours."""
    if reader is None:
        return None
    size = sum(path.stat().st_size for path in reader.paths)
    return f"{len(reader)} images, {size} bytes, {what}"


def _digest(paths: list[Path], flag: str) -> str | None:
    """Returns the start of SHA-256 over the files' content; None without a file."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"{flag} {path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16] if paths else None
