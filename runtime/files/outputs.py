"""Decides whether an output folder is new, has a killed run to continue, or is complete.

The settings that decide the output are written to ``_plan.json`` before anything else, and to the
manifest at the end. A folder with other settings is never mixed with this run's.
"""

import argparse
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from vlmill.runtime.files.atomic import remove_leftovers, write_json
from vlmill.runtime.files.lock import LOCK, wait_for_turn
from vlmill.runtime.files.manifest import MANIFEST, WARCS, read_manifest
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import TABLES

PLAN = "_plan.json"
REPORTS = (
    *("funnel.json", "report.html", "report.json", "metrics.json"),
    *("neighbours.json", "webdataset.json"),
    *(WARCS, LABELS_FILE),
    *("classes.json", "attributes.json"),  # vocabularies alongside a table of boxes
)
# Files that evaluations write for the servers of their tasks, and for each other.
RESULTS = (
    *("vqa_*_result.json", "vcr_*.csv", "vcr_scores.json", "nlvr2_*.csv"),
    *(f"{name}.tsv" for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP")),
    *(f"{name}.tsv" for name in ("MNLI-m", "MNLI-mm", "QNLI", "RTE")),
)
WORK = "work"  # files of a run in addition to its tables, for continuing
SHARDS = ("*-of-*.tar", "crawl-*-*.warc.gz")  # of pairs, for webdataset; of a crawl
# Folders inside an output whose pairs have been scored again, or are being.
FIRST_SCORES, RESCORING = "_first_scores", "_rescoring"


class State(Enum):
    """Lists the states of an output folder: empty, a part of this run, or all of it."""

    NEW = "new"
    PARTIAL = "partial"
    FINISHED = "finished"

    @property
    def outcome(self) -> str:
        """Returns the first words of the line about a run's output."""
        return "finished before" if self is State.FINISHED else "done"


def prepare_job(args: argparse.Namespace, job: str, settings: Mapping[str, Any]) -> State:
    """Prepares ``--output`` by a job's ``--fresh`` and ``--part``, and returns its state."""
    return prepare_output(
        args.output, job=job, settings=settings, fresh=args.fresh, shared=args.part is not None
    )


def prepare_output(
    folder: str | Path,
    *,
    job: str,
    settings: Mapping[str, Any],
    fresh: bool = False,
    shared: bool = False,
) -> State:
    """Prepares ``folder`` for a run of ``job`` and returns its state.

    The caller must have locked the folder (:mod:`vlmill.runtime.files.lock`), so temporary files
    are leftovers of killed writers and are removed. ``fresh`` deletes the output of an earlier run
    of vlmill. With ``shared``, other processes may be writing their parts, so their temporary files
    stay; they call this function one after the other. A plan without results is from a run that was
    refused before it started, and is replaced. Raises InputError if the folder has another run's
    output or foreign files, or a finished run's output with a missing or truncated shard.
    """
    folder = to_path(folder)
    plan = build_plan(job, settings)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if shared:
        with wait_for_turn(folder):
            return _compare_plan(folder, plan, shared=True)
    remove_leftovers(folder)
    if fresh:
        remove_output(folder)
    return _compare_plan(folder, plan, shared=False)


def build_plan(job: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a plan file as reading it gives it: tuples are lists."""
    return {"job": job, "settings": json.loads(json.dumps(settings, allow_nan=False))}


def _compare_plan(folder: Path, plan: Mapping[str, Any], *, shared: bool) -> State:
    """Compares the plan with the folder's and returns its state; writes the plan of a new run."""
    entries = sorted(p.name for p in folder.iterdir() if not p.name.startswith(LOCK))
    if PLAN not in entries:
        if entries:
            raise InputError(
                f"--output {folder} holds {entries[0]} and was not made by this job; "
                "give an empty or new folder"
            )
        write_json(folder / PLAN, plan)
        return State.NEW
    try:
        _same_plan(folder, plan)
    except InputError:
        if shared or entries != [PLAN]:
            raise
        write_json(folder / PLAN, plan)
        return State.NEW
    if not (folder / MANIFEST).exists():
        return State.PARTIAL
    require_shards(folder)
    return State.FINISHED


def require_shards(folder: Path) -> None:
    """Raises InputError if a shard in the manifest is missing or has another size."""
    for shard in read_manifest(folder)["shards"]:
        path = folder / shard.name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            problem = "is missing"
        else:
            if size == shard.bytes:
                continue
            problem = f"has {size} bytes, and {MANIFEST} lists {shard.bytes} bytes"
        raise InputError(
            f"--output {folder} is finished, but {path} {problem}; restore this file, or give "
            "--fresh to write the output again"
        )


def remove_output(folder: Path) -> None:
    """Deletes a run's shards, manifest, plan and reports; refuses a folder without a plan."""
    if not (folder / PLAN).exists():
        return
    shards = [p for name in TABLES for p in folder.glob(f"{name}-*.parquet")]
    shards += [p for pattern in (*SHARDS, *RESULTS) for p in folder.glob(pattern)]
    reports = [folder / name for name in REPORTS]
    # The manifest first and the plan last, so a kill in between leaves a folder that is recognised.
    for path in [folder / MANIFEST, *shards, *reports]:
        path.unlink(missing_ok=True)
    for name in (FIRST_SCORES, RESCORING, WORK):
        remove_tree(folder / name)
    (folder / PLAN).unlink()


def remove_work(folder: Path) -> None:
    """Deletes the files that a run needed for continuing, after it has finished."""
    remove_tree(folder / WORK)


def _same_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    try:
        old_plan = read_json(folder / PLAN)
        old_job, old = old_plan["job"], dict(old_plan["settings"])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / PLAN} is damaged ({error}); use --fresh") from None
    new = plan["settings"]
    differing = [k for k in {**old, **new} if old.get(k, ...) != new.get(k, ...)]
    if old_job != plan["job"]:
        raise InputError(f"--output {folder} holds the output of {old_job}; give another folder")
    if differing:
        changes = ", ".join(f"{k} was {old.get(k)!r} and is {new.get(k)!r}" for k in differing[:3])
        raise InputError(
            f"--output {folder} holds a run with other settings ({changes[:400]}); "
            "give another folder, or --fresh to delete that run"
        )
