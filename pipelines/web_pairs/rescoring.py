"""Scores a finished output's pairs again from its own files; reads no archive.

Regions of the mined images are known only after mining and make scores more accurate. New shards
are written to a folder inside the output, and replace the old ones when all are complete: the
same command continues a killed run, and a reader never sees both.
"""

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.filters.agreement import agreement_score
from vlmill.pipelines.filters.facts import FactsReader, Sources, open_sources
from vlmill.pipelines.filters.scorer import PairFacts, Scorer
from vlmill.pipelines.web_pairs.report import SHOWN, read_scores, write_report
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import atomic_path, sync, write_json
from vlmill.runtime.files.digests import file_input, table_input
from vlmill.runtime.files.inputs import Input, make_records
from vlmill.runtime.files.manifest import MANIFEST, read_manifest
from vlmill.runtime.files.outputs import FIRST_SCORES, RESCORING
from vlmill.runtime.files.reading import read_group, read_producer
from vlmill.runtime.files.shards import Shard, ShardWriter, describe_shard, shard_name
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import PAIRS, REGIONS

JOB = "web_pairs"
PLAN, NEXT = "plan.json", "manifest.json"  # in the folder of an unfinished run
ROWS = 1_000
UNKNOWN = 0.5  # for a pair that was mined without a score

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Holds the scorer's inputs, and ``about``: their description for the manifest."""

    sources: Sources
    scorer: Scorer | None
    about: dict[str, Any]

    def scores(self, facts: Sequence[PairFacts], first: Scores) -> list[float]:
        """Scores pairs by the scorer, or without one by the mined score and the regions."""
        classes, attributes = self.sources.classes, self.sources.attributes
        if self.scorer is not None:
            values = self.scorer.score(facts, classes=classes, attributes=attributes)
            return [round(value, 6) for value in values.tolist()]
        mined = np.where(np.isnan(first), UNKNOWN, first).tolist()
        both = zip(mined, facts, strict=True)
        return [
            agreement_score(score, pair_facts, classes, attributes) for score, pair_facts in both
        ]


def rescore(args: argparse.Namespace) -> int:
    """Scores the pairs of ``--output`` again, and prints the result.

    Raises InputError for an output that is not finished or of another job.
    """
    output = Path(args.output)
    if (output / RESCORING / NEXT).exists():  # a run was killed while it replaced the shards
        _publish(output)
    manifest = read_manifest(output)
    if manifest["job"] != JOB:
        raise InputError(f"--output {output} was written by {manifest['job']}, not by {JOB}")
    # Only a scorer reads images; outputs of tar shards have no images table.
    has_images = args.scorer and any(shard.table == "images" for shard in manifest["shards"])
    images = output if has_images else None
    scoring = open_scoring(args, output, images, manifest["settings"].get("min_score"))
    if manifest.get("scoring") != scoring.about:
        _make_shards(output, manifest, scoring)
        _plan_manifest(output, manifest["shards"], scoring.about)
        _publish(output)
        print_status(f"{output}: the scores as they were mined stay in {FIRST_SCORES}")
    return _say_scores(output, scoring.about["threshold"])


def open_scoring(
    args: argparse.Namespace, output: Path, images: Path | None, min_score: float | None
) -> Scoring:
    """Opens the scoring inputs of the flags. Raises InputError for unsuitable tables and files."""
    sources = open_sources(images, args.regions, args.classes, args.attributes)
    scorer = None if args.scorer is None else Scorer.load(args.scorer)
    about = {
        "by": "agreement with regions" if scorer is None else "scorer",
        "inputs": make_records(scoring_inputs(args), output),
        "threshold": min_score if scorer is None else scorer.threshold,
    }
    return Scoring(sources=sources, scorer=scorer, about=json.loads(json.dumps(about)))


def scoring_inputs(args: argparse.Namespace) -> list[Input]:
    """Returns the files and tables that scores are computed from."""
    inputs = [] if args.regions is None else [table_input("--regions", args.regions, REGIONS)]
    for flag, job in (("classes", None), ("attributes", None), ("scorer", "fit_scorer")):
        if (path := getattr(args, flag)) is not None:
            inputs.append(file_input(f"--{flag}", path, job=job))
    return inputs


def _make_shards(output: Path, manifest: dict[str, Any], scoring: Scoring) -> None:
    """Writes each shard of pairs with new scores into the folder of the unfinished run."""
    work = output / RESCORING
    plan = work / PLAN
    if plan.exists() and read_json(plan) != scoring.about:
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    write_json(plan, scoring.about)
    shards = [shard for shard in manifest["shards"] if shard.table == PAIRS.name]
    reader = FactsReader(scoring.sources)
    with Progress(
        total=sum(shard.rows for shard in shards), unit="pair", label="scoring again"
    ) as progress:
        for shard in shards:
            if _new_shard_path(output, shard).exists():
                progress.advance(shard.rows)
                continue
            first = _first_scores(output, shard, mined="scoring" not in manifest)
            _make_shard(output, shard, first, scoring, reader, progress)
    if summary := reader.summary(progress.done):
        print_status(summary)


def _new_shard_path(output: Path, shard: Shard) -> Path:
    return output / RESCORING / shard.name / shard_name(PAIRS, 0, 1)


def _first_scores(output: Path, shard: Shard, *, mined: bool) -> Scores:
    """Returns the mined scores of a shard's rows, NaN for a row without one.

    They are stored alongside the tables, so that every rescoring starts from the same values.
    Raises InputError if the stored scores are damaged.
    """
    path = output / FIRST_SCORES / f"{shard.name}.npy"
    if mined:
        column = pq.read_table(output / shard.name, columns=["score"]).column(0)
        scores: Scores = np.asarray(column.to_numpy(), dtype=np.float64)
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, scores, allow_pickle=False)
        return scores
    try:
        scores = np.load(path, allow_pickle=False)
        if scores.shape != (shard.rows,) or scores.dtype != np.float64:
            raise ValueError(f"{scores.dtype}{list(scores.shape)} for {shard.rows} rows")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}); mine again with --fresh") from None
    return scores


def _make_shard(
    output: Path,
    shard: Shard,
    first: Scores,
    scoring: Scoring,
    reader: FactsReader,
    progress: Progress,
) -> None:
    path = output / shard.name
    producer = {**read_producer(path), "scoring": scoring.about}
    writer = ShardWriter(_new_shard_path(output, shard).parent, PAIRS, 0, 1, producer=producer)
    done = 0
    with pq.ParquetFile(path) as file, writer:
        for group in range(file.num_row_groups):
            table = read_group(file, path, group, PAIRS, PAIRS.schema.names)
            scores: list[float] = []
            for start in range(0, table.num_rows, ROWS):
                facts = list(reader.facts(table.slice(start, ROWS).to_pylist()))
                before = first[done + start : done + start + len(facts)]
                scores += scoring.scores(facts, before)
                progress.advance(len(facts))
            done += table.num_rows
            column_index = table.schema.get_field_index("score")
            writer.write(table.set_column(column_index, "score", pa.array(scores, pa.float64())))


def _plan_manifest(output: Path, shards: Sequence[Shard], scoring: dict[str, Any]) -> None:
    """Writes the manifest that becomes valid when the new shards have replaced the old ones."""
    content = read_json(output / MANIFEST)
    new = [
        replace(describe_shard(_new_shard_path(output, shard), PAIRS.name), name=shard.name)
        if shard.table == PAIRS.name
        else shard
        for shard in shards
    ]
    flags = {"--regions", "--classes", "--attributes", "--scorer"}
    content["inputs"] = [
        *(entry for entry in content.get("inputs", []) if entry["flag"] not in flags),
        *scoring["inputs"],
    ]
    content |= {"shards": [asdict(shard) for shard in new], "scoring": scoring}
    write_json(output / RESCORING / NEXT, content)


def _publish(output: Path) -> None:
    """Replaces the old shards with the new ones, and writes the report again.

    In between the folder has no manifest: it is unfinished.
    """
    work = output / RESCORING
    content = read_json(work / NEXT)
    (output / MANIFEST).unlink(missing_ok=True)
    for shard in content["shards"]:
        new_path = work / shard["name"] / shard_name(PAIRS, 0, 1)
        if new_path.exists():
            os.replace(new_path, output / shard["name"])
    sync(output)
    _write_report(output, content)
    write_json(output / MANIFEST, content)
    shutil.rmtree(work)


def _write_report(output: Path, manifest: dict[str, Any]) -> None:
    """Writes the page with the current scores of the shards, and the scoring inputs."""
    if not (output / SHOWN).exists():  # the tables of another tool, or of an earlier version
        print_status(f"{output} has no {SHOWN}: its report is not written again")
        return
    pairs = [output / shard["name"] for shard in manifest["shards"] if shard["table"] == PAIRS.name]
    settings, scoring = manifest["settings"], manifest["scoring"]
    about = {
        **settings,
        "archives": len(settings["archives"]),
        "scored by": scoring["by"],
        "score threshold": scoring["threshold"],
        **{entry["flag"]: entry["path"] for entry in scoring["inputs"]},
    }
    write_report(output, about, read_scores(output, pairs))


def _say_scores(output: Path, threshold: float | None) -> int:
    """Prints the number of pairs, and how many are below the threshold."""
    shards = [s for s in read_manifest(output)["shards"] if s.table == PAIRS.name]
    below = total = 0
    for shard in shards:
        scores = pq.read_table(output / shard.name, columns=["score"]).column(0).to_numpy()
        total += len(scores)
        below += 0 if threshold is None else int(np.count_nonzero(scores < threshold))
    print(f"{total} pairs scored, {below} below {threshold}: {output}")
    return 0
