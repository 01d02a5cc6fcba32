"""Runs a row: its chain of pretraining, then every task."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proof.arms import Arm
from proof.box_arms import BOX_TASKS
from proof.runs import Job
from proof.tables import WorldTables
from proof.task_runs import TaskJob

from published.row import AblationTable, RowArm


@dataclass(frozen=True, kw_only=True)
class RowJob(TaskJob):
    """A row's model with a seed, of pretraining and of the task, on one task."""

    arm: RowArm
    worlds: WorldTables

    def settings(self) -> dict[str, Any]:
        """What decides the figures, as long as the code is the same."""
        told = super().settings()
        del told["pretraining"]  # the chain says it
        plain: dict[str, Any] = json.loads(json.dumps(told))
        return plain

    def chain(self) -> list[Job]:
        """The runs of its chain, which all rows that begin alike share."""
        return [
            Job(
                arm=step.arm,
                seed=self.seed,
                tables=self.worlds.of(step.arm),
                pairs=self.pairs,
                held_out=self.held_out,
                output=self.output,
                world=self.world,
                steps=step.steps,
                device=self.device,
            )
            for step in self.arm.chain
        ]


def jobs_of(
    tables: Sequence[AblationTable], seeds: tuple[int, ...], worlds: WorldTables, device: str
) -> list[RowJob]:
    """The runs that the tables need, each once, first seeds first."""
    arms = {arm.label: arm for table in tables for arm in table.arms(seeds)}
    return [
        RowJob(
            arm=arm,
            seed=seed,
            world=worlds.world,
            tables=worlds.of(Arm(recipe="", tables=arm.tables)),
            worlds=worlds,
            pairs=worlds.pairs,
            held_out=worlds.held_out,
            output=worlds.folder,
            device=device,
        )
        for seed in seeds
        for arm in arms.values()
    ]


def write_tables(jobs: Sequence[RowJob], worlds: WorldTables) -> None:
    """Makes what the runs read and is not there."""
    arms = [step.arm for job in jobs for step in job.arm.chain]
    arms += [Arm(recipe="", tables=job.arm.tables) for job in jobs]
    worlds.write(tuple(arms), {})
    if any(job.arm.reads_neighbours for job in jobs):
        worlds.write_neighbours()
    if any(job.arm.task in BOX_TASKS for job in jobs):
        worlds.write_boxes()
