"""Plans the stages of a run: how many steps each has on the prepared samples."""

from collections.abc import Mapping, Sequence

import numpy as np

from vlmill.runtime.console.command import print_status
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.mixture import collect_source_pairs
from vlmill.train.loading.order import stage_rows, text_rows
from vlmill.train.loading.store.splits import SplitPlan, Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.optim.schedule import learning_rate
from vlmill.train.recipes import RunSettings, TrainingStage
from vlmill.train.run.loop import StageRun

NO_ROWS = np.empty(0, dtype=np.int64)


def say_what_never_peaks(stages: Sequence[StageRun]) -> None:
    """Warns of stages that end before their warm-up, which published runs give in steps."""
    for run in stages:
        rising = run.stage.optimizer.warmup_steps or 0
        if run.steps and rising >= run.steps:
            last = learning_rate(run.steps, steps=run.steps, settings=run.stage.optimizer)
            print_status(
                f"warning: stage {run.stage.name} has {run.steps} steps and warms up for {rising}: "
                f"its rate ends at {last:.2g} of {run.stage.optimizer.lr:g}; set "
                f"stages.{run.number}.optimizer.warmup_steps=null for a share of the steps "
                f"(optimizer.warmup, {run.stage.optimizer.warmup:g})"
            )


def plan_stages(
    recipe: RunSettings, table: SampleTable, plan: SplitPlan, flag: str = "--pairs"
) -> list[StageRun]:
    """Returns the stages' lengths in steps on the samples of the table that ``flag`` names.

    Raises InputError for a stage without any.
    """
    runs: list[StageRun] = []
    for number, stage in enumerate(recipe.stages):
        visits, texts = count_visits(table, stage, plan.training[number])
        count = sum(visits.values())
        steps = stage.length(count)
        if not count and (steps or stage.steps is None):
            _refuse_without_pairs(table, stage, number, plan.training[number], flag)
        for index, mixed in enumerate(stage.mixture):
            if mixed.source not in visits.keys() | texts.keys():
                raise InputError(
                    f"stages.{number}.mixture.{index}.source={mixed.source}: stage "
                    f"{stage.name} has no pair of this source in {flag} (there are: "
                    f"{format_visits(visits | texts)}); name one of these"
                )
        runs.append(
            StageRun(
                stage=stage,
                number=number,
                offset=runs[-1].last if runs else 0,
                steps=steps,
                epoch_steps=stage.steps_of_epoch(count),
                visits=visits,
                sources=tuple(sorted(visits.keys() | texts.keys())),
                share=count_share(table, stage, plan.training[number]),
            )
        )
    return runs


def count_visits(
    table: SampleTable, stage: TrainingStage, splits: Splits
) -> tuple[dict[str, int], dict[str, int]]:
    """Counts the pairs of each source that an epoch of ``stage`` visits, and the texts that come
    with pairs in an epoch of texts.
    """
    texts = text_rows(table, stage, splits) if stage.feeding.text_rows else NO_ROWS
    pairs, text_visits = (
        table.sources(rows)
        | {
            source.rule.source: source.epoch_visits
            for source in collect_source_pairs(table, rows, stage.mixture)
        }
        for rows in (stage_rows(table, stage, splits), texts)
    )
    return pairs, text_visits


def count_share(table: SampleTable, stage: TrainingStage, splits: Splits) -> tuple[int, int] | None:
    """Returns how many pairs of how many a stage visits by ``share`` and ``max_pairs``; None
    without either.
    """
    if stage.share == 1 and stage.max_pairs is None:
        return None
    pairs = table.select_rows(stage.sources, stage.feeding.kind, splits)
    return len(stage_rows(table, stage, splits)), len(pairs)


def say_visits(stages: Sequence[StageRun]) -> None:
    """Prints how many pairs a stage visits, if not every pair once an epoch."""
    for run in stages:
        stage = run.stage
        if run.share is not None:
            share = [f"share={stage.share:g}"] if stage.share < 1 else []
            limit = [] if stage.max_pairs is None else [f"max_pairs={stage.max_pairs}"]
            visited, pairs = run.share
            unit = "images" if stage.feeding.kind == "pictures" else "pairs"
            fields = " ".join(share + limit)
            print_status(f"stage {stage.name}: {fields} visits {visited:,} of {pairs:,} {unit}")
        if stage.mixture:
            print_status(f"stage {stage.name}: an epoch visits {format_visits(run.visits)}")


def count_visited(stages: Sequence[StageRun], table: SampleTable, plan: SplitPlan) -> int:
    """Returns how many pairs any of the stages visits."""
    is_visited = np.zeros(len(table), dtype=np.bool_)
    for run in stages:
        is_visited[stage_rows(table, run.stage, plan.training[run.number])] = True
    return int(is_visited.sum())


def trained_images(recipe: RunSettings, table: SampleTable, plan: SplitPlan) -> Ids:
    """Returns the rows, in the table of regions, of all images that stages with regions are trained
    on: int64 [N], rising.
    """
    visited = [
        table.image_rows[stage_rows(table, stage, splits)]
        for stage, splits in zip(recipe.stages, plan.training, strict=True)
        if stage.feeding.reads_regions
    ]
    rows: Ids = np.unique(np.concatenate([NO_ROWS, *visited]))
    present: Ids = rows[rows != ABSENT]
    return present


def _refuse_without_pairs(
    table: SampleTable, stage: TrainingStage, number: int, splits: Splits, flag: str
) -> None:
    if table.select_rows(stage.sources, stage.feeding.kind, splits).size:
        raise InputError(
            f"stages.{number}.share={stage.share} leaves no pair of {flag} for stage "
            f"{stage.name}; give a larger share"
        )
    raise InputError(
        f"{flag} has no pair of source {', '.join(stage.sources)} for stage {stage.name} "
        f"(there are: {format_visits(table.sources())}); set stages.{number}.sources=[] to use all"
    )


def format_visits(visits: Mapping[str, int]) -> str:
    """Returns the number of visits of each source, in words."""
    return ", ".join(f"{source} {count}" for source, count in visits.items())
