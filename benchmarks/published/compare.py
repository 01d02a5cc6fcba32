"""Compares the change of each row relative to its base with the change in the paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from proof.arms import Arm
from proof.box_arms import BOX_TASKS
from proof.runs import Job
from proof.side_by_side import plain
from proof.summary import Spread
from proof.tables import WorldTables
from proof.task_runs import TaskJob, finished

from published.row import AblationTable, Figure, Row, RowArm


@dataclass(frozen=True, kw_only=True)
class RowJob(TaskJob):
    """A row's model with a seed, of pretraining and of the task, on one task."""

    arm: RowArm
    worlds: WorldTables

    def settings(self) -> dict[str, Any]:
        """What decides the figures, as long as the code is the same."""
        told = super().settings()
        del told["pretraining"]  # the chain says it
        return plain(told)

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


Line = Mapping[str, Any]
Lines = Mapping[str, Sequence[Line]]
AGREES, DIFFERS, WITHIN = "yes", "no", "within error"
SURE = 2.0  # standard errors of a change that says which way it goes


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row's figure here and in the paper, and what both are beside the base's.

    ``ours`` is a share over seeds, ``published`` in percent; ``error`` is the standard error of
    ``change``. None: not measured, or not published.
    """

    row: str
    figure: str
    published: float | None
    published_change: float | None
    ours: Spread | None
    change: Spread | None
    error: float | None

    @property
    def verdict(self) -> str | None:
        """Whether both change in one way; None where there is nothing to compare."""
        if self.change is None or not self.published_change or self.error is None:
            return None
        if abs(self.change.mean) < SURE * self.error:
            return WITHIN
        return AGREES if (self.change.mean > 0) == (self.published_change > 0) else DIFFERS


def lines_by_label(jobs: Sequence[RowJob], lines: Sequence[Line]) -> dict[str, list[Any]]:
    """The finished runs' lines by the labels of their arms, seeds in order."""
    by_label: dict[str, list[Any]] = {}
    for job in jobs:
        if (line := finished(job, lines)) is not None:  # type: ignore[arg-type]
            by_label.setdefault(job.arm.label, []).append(line)
    return by_label


def comparisons(table: AblationTable, lines: Lines) -> Iterator[Comparison]:
    """Every figure of every row, row by row."""
    (base,) = (row for row in table.rows if row.label == table.base)
    deviations = {figure: deviation_of_seeds(table, figure, lines) for figure in table.figures}
    for row in table.rows:
        for number, figure in enumerate(table.figures):
            theirs, of_base = row.published[number], base.published[number]
            own = lines_of(row, figure, lines)
            change, error = change_of(
                own, lines_of(base, figure, lines), figure, deviations[figure]
            )
            is_base = row is base
            yield Comparison(
                row=row.label,
                figure=figure.label,
                published=theirs,
                published_change=None
                if is_base or theirs is None or of_base is None
                else theirs - of_base,
                ours=spread_of(own, figure),
                change=None if is_base else change,
                error=None if is_base else error,
            )


def compared(tables: Sequence[AblationTable], lines: Lines) -> dict[str, list[Comparison]]:
    """The figures of every table, by the tables' keys."""
    return {table.key: list(comparisons(table, lines)) for table in tables}


def lines_of(row: Row, figure: Figure, lines: Lines) -> Sequence[Line]:
    """The lines of a row's runs on the figure's task."""
    if row.subject is None:
        return ()
    return lines.get(f"{figure.task}/{row.subject.key}", ())


def value(line: Line, figure: Figure) -> float:
    """The figure of a run: the mean of its metrics."""
    return fmean(line["metrics"][metric] for metric in figure.metrics)


def spread_of(lines: Sequence[Line], figure: Figure) -> Spread | None:
    """Over seeds; None without a run."""
    return Spread.of([value(line, figure) for line in lines]) if lines else None


def deviation_of_seeds(table: AblationTable, figure: Figure, lines: Lines) -> float:
    """The standard deviation of seeds, pooled over the rows that have several.

    Two or three seeds of one row say little of their spread. 0 without such a row.
    """
    runs = [[value(line, figure) for line in lines_of(row, figure, lines)] for row in table.rows]
    several = [values for values in runs if len(values) > 1]
    if not several:
        return 0.0
    squares = sum((len(values) - 1) * variance(values) for values in several)
    return sqrt(squares / sum(len(values) - 1 for values in several))


def change_of(
    lines: Sequence[Line], base: Sequence[Line], figure: Figure, deviation: float
) -> tuple[Spread | None, float | None]:
    """The change from the base over the seeds that both have, and its standard error.

    The error is that of the questions or pairs that were asked, of which a seed asks the same, or
    of the seeds, whose ``deviation`` is that of one run, whichever is larger.
    """
    of_base = {line["settings"]["seed"]: line for line in base}
    both = [
        (line, of_base[line["settings"]["seed"]])
        for line in lines
        if line["settings"]["seed"] in of_base
    ]
    if not both:
        return None, None
    change = Spread.of([value(one, figure) - value(other, figure) for one, other in both])
    asked = max(hypot_of(one, other, figure) for one, other in both)
    return change, max(asked, sqrt(2) * deviation) / sqrt(change.count)


def hypot_of(one: Line, other: Line, figure: Figure) -> float:
    """The standard error of the difference of two runs, of the largest of the figure's metrics."""
    return max(
        sqrt(sum(line["metrics"].get(f"{metric}_stderr", 0.0) ** 2 for line in (one, other)))
        for metric in figure.metrics
    )
