"""``extract-rois run``: a plan of pictures to shards of regions and rejects, resumable by shard."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.extract.config import ExtractConfig
from vlmill.extract.engine import Crew, Ready, Source, devices, extracted, inline, source_of
from vlmill.extract.given import GivenBoxes
from vlmill.extract.inputs import Picture, plan_digest
from vlmill.extract.preprocess import Rejected
from vlmill.extract.weights import Detector
from vlmill.schemas.manifest import read_manifest, write_manifest
from vlmill.schemas.outputs import State, prepare_output
from vlmill.schemas.progress import Progress
from vlmill.schemas.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.shards import (
    SOFTWARE,
    Shard,
    ShardWriter,
    describe_shard,
    shard_name,
    write_shard,
)
from vlmill.schemas.tables import REGIONS, REJECTS

JOB = "extract-rois run"
STAGE = "regions"
# Rows that are read together later: small groups make random access cheap (16 x 100 x 2048 float16
# = 6.5 MB).
ROWS_PER_GROUP = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The pictures of one of ``total`` shards."""

    index: int
    total: int
    pictures: Sequence[Picture]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one run needs to make any of its shards.

    Another process than the one that planned makes a part with an empty ``plan``.
    """

    plan: Sequence[Picture]
    output: Path
    detector: Detector
    config: ExtractConfig
    given: GivenBoxes | None = None

    @property
    def num_shards(self) -> int:
        return -(-len(self.plan) // self.config.storage.pictures_per_shard)

    def part(self, index: int) -> Part:
        """The pictures of a shard."""
        size = self.config.storage.pictures_per_shard
        pictures = self.plan[index * size : (index + 1) * size]
        return Part(index=index, total=self.num_shards, pictures=pictures)

    def settings(self) -> dict[str, Any]:
        """All that decides the output, the plan included: a killed run continues only on it."""
        return {
            "software": SOFTWARE,
            "pictures": len(self.plan),
            "plan": plan_digest(self.plan),
            **self.producer(),
        }

    def producer(self) -> dict[str, Any]:
        """What the shards' metadata says of their making."""
        return {
            "job": JOB,
            "detector_fingerprint": self.detector.fingerprint,
            "weights": self.detector.weights,
            "device": self.detector.device.type,  # their number does not change a row
            "detector": dataclasses.asdict(self.detector.model.config),
            **self.config.settings(),
            **({} if self.given is None else {"boxes": "given", "given": self.given.digest}),
        }

    def arrays(self) -> dict[str, Any]:
        """Types and widths of the shards' binary columns."""
        spec, storage = self.detector.model.config, self.config.storage
        kept = storage.class_probs == "full" or storage.top_k is not None
        return region_arrays(
            dtype=storage.dtype,
            feature_dim=spec.feature_size,
            class_probs_dim=spec.num_classes + 1 if kept else None,
            top_k=storage.top_k and min(storage.top_k, spec.num_classes + 1),
        )


def run(job: Job, *, fresh: bool = False, crew: Crew | None = None) -> tuple[int, int]:
    """Makes every shard that is not there yet; returns the rows of regions and of rejects.

    ``crew`` changes the speed, and no byte. Memory is bounded by the pictures under way, 16 rows
    and the ids seen so far, not by the pictures' bytes. Raises InputError if the output holds a run
    with other settings.
    """
    settings = job.settings()
    if prepare_output(job.output, job=JOB, settings=settings, fresh=fresh) is State.FINISHED:
        print(f"{job.output} is finished already; nothing to do", file=sys.stderr)
        return count_rows(read_manifest(job.output)["shards"])
    finished = {i: found for i in range(job.num_shards) if (found := finished_shards(job, i))}
    done = sum(len(job.part(index).pictures) for index in finished)
    seen: set[str] = set()
    shards: list[Shard] = []
    todo = (p for i in range(job.num_shards) if i not in finished for p in job.part(i).pictures)
    with (
        Progress(total=len(job.plan), unit="picture", label="regions", done=done) as progress,
        working(job, crew or Crew()) as source,
    ):
        # Asked ahead of its turn: what counts is row_of's answer when the turn has come.
        ready = source(todo, lambda picture: picture.image_id in seen)
        for index in range(job.num_shards):
            if index in finished:
                seen.update(image_ids(job.output / finished[index][0].name))
                shards += finished[index]
            else:
                shards += make_shards(job, job.part(index), seen, progress, ready)
            seen.update(planned_ids(job.part(index)))
    write_manifest(job.output, shards, job=JOB, settings=settings)
    return count_rows(shards)


@contextmanager
def working(job: Job, crew: Crew) -> Iterator[Source]:
    """What makes the pictures ready."""
    if len(crew.devices) > 1:
        with devices(crew, job.config, job.given) as source:
            yield source
    else:
        spec = job.detector.model.config
        with source_of(spec, job.config.limits, crew.workers) as source:
            yield source


def finished_shards(job: Job, index: int) -> list[Shard]:
    """Both files of a part that an earlier run has finished; none if they cannot be read."""
    total = job.num_shards
    paths = [(t, job.output / shard_name(t, index, total)) for t in (REGIONS, REJECTS)]
    try:
        return [describe_shard(path, table.name) for table, path in paths]
    except (OSError, pa.ArrowException):
        return []  # missing or damaged: the part is made again


def make_shards(
    job: Job,
    part: Part,
    seen: set[str],
    progress: Progress,
    ready: Iterator[Ready] | None = None,
) -> list[Shard]:
    """Extracts one part: regions, then rejects. Without both files it counts as not done.

    ``seen``: the ids that have rows already; grows. ``ready`` gives the part's pictures next.
    """
    if ready is None:
        source = inline(job.detector.model.config, job.config.limits)
        ready = source(part.pictures, lambda picture: picture.image_id in seen)
    rejects: list[dict[str, object]] = []
    writer = ShardWriter(
        job.output,
        REGIONS,
        part.index,
        part.total,
        producer=job.producer(),
        arrays=job.arrays(),
        compression=job.config.storage.compression,
    )
    with writer:
        rows: list[RegionRow] = []
        for one in islice(ready, len(part.pictures)):
            try:
                rows.append(extract_one(one, job, seen))
                progress.advance()
            except Rejected as why:
                rejects.append(reject(STAGE, one.picture.key, why.reason, why.detail))
                progress.advance(rejects=1)
            if len(rows) == ROWS_PER_GROUP:
                writer.write(encode_regions(rows, dtype=job.config.storage.dtype))
                rows = []
        writer.write(encode_regions(rows, dtype=job.config.storage.dtype))
    assert writer.shard is not None
    return [
        writer.shard,
        write_shard(job.output, REJECTS, rejects, part.index, part.total, producer=job.producer()),
    ]


def extract_one(ready: Ready, job: Job, seen: set[str]) -> RegionRow:
    """One picture's row. Raises Rejected, also for an id that has a row already.

    An id that the plan gives counts from its first appearance, whatever came of it: so any part
    can be made without the others.
    """
    planned = ready.picture.image_id
    if planned is not None:
        if planned in seen:
            raise Rejected(Reason.DUPLICATE, f"{planned} came earlier")
        seen.add(planned)
    elif ready.image_id in seen:
        raise Rejected(Reason.DUPLICATE, f"{ready.image_id} has a row already")
    made = extracted(ready, job.detector, job.config, job.given).result
    if isinstance(made, Rejected):
        raise made
    assert isinstance(made, RegionRow)
    seen.add(made.image_id)
    return made


def planned_ids(part: Part) -> set[str]:
    """The ids that are known before anything is read: those of tables' rows."""
    return {p.image_id for p in part.pictures if p.image_id is not None}


def image_ids(path: Path) -> list[str]:
    """The ids of a shard's rows."""
    ids: list[str] = pq.read_table(path, columns=["image_id"]).column(0).to_pylist()
    return ids


def count_rows(shards: Sequence[Shard]) -> tuple[int, int]:
    """Rows of regions and of rejects."""
    regions, rejects = (
        sum(s.rows for s in shards if s.table == t.name) for t in (REGIONS, REJECTS)
    )
    return regions, rejects
