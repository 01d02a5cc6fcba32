"""Runs ``train-vl evaluate TASK``: writes metrics, a page and result files.

``report.html`` compares the metrics with the papers' and shows examples with images, and the
regions that an answer rests on.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.report import Section, funnel_table, settings_table, write_page
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import WORK, State, prepare_output, remove_work
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import ShardWriter
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import format_rejects, reject
from vlmill.schemas.tables import IMAGES, REGIONS, REJECTS
from vlmill.train.loading.features import read_features
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.store.splits import Rows
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.run.lineage import checkpoint_input
from vlmill.train.tasks import report
from vlmill.train.tasks.batches import TaskBatches, TaskModel, in_parts
from vlmill.train.tasks.evaluating.inputs import (
    EvaluationOptions,
    EvaluationSetup,
    collect_settings,
    open_evaluation,
)
from vlmill.train.tasks.published import published_section
from vlmill.train.tasks.report import DRAWN_PX, drawn_section
from vlmill.train.tasks.scores import NAMED, Figures
from vlmill.train.tasks.task import EvaluationResult, Prediction
from vlmill.train.tasks.weights import RegionMask, occlusion_weights, only_rows

CASES = 12  # that are shown


def write_report(
    setup: EvaluationSetup,
    evaluated: EvaluationResult,
    figures: Figures,
    rejects: Counter[str],
    weighted: report.WeightedImage | None,
    settings: Mapping[str, Any],
) -> None:
    """Writes the page of an evaluation."""
    options, training = setup.options, setup.loaded.training
    total = int(figures["examples"] or 0)
    funnel = {
        "stage": "examples",
        "in": total + sum(rejects.values()),
        "out": total,
        "rejects": dict(rejects),
    }
    cases = report.worst_cases(evaluated.cases, CASES)
    is_drawn = any(case.boxes for case in cases)
    side, make_section = (
        (DRAWN_PX, drawn_section) if is_drawn else (report.CARD_PX, report.cases_section)
    )
    uris = report.read_thumbnails(
        options.images, {name for case in cases for name in case.image_ids}, side=side
    )
    columns = list(dict.fromkeys([*evaluated.headline, *evaluated.published]))
    # Correlations and averages have no separate count.
    figures_with_counts = [name for name in figures if f"{name}_n" in figures]
    names = {name: name for name in dict.fromkeys([*figures_with_counts, *evaluated.headline])}
    sections = [
        published_section(
            evaluated.papers or options.task, figures, columns, model=training.recipe
        ),
        Section(title="All figures", body=report.figures_table(figures, names, decimals=2)),
        make_section("Worst cases", "The examples with the lowest scores.", cases, uris),
        *([] if weighted is None else [report.weights_section([weighted], options.images)]),
        Section(title="Examples", body=funnel_table([funnel])),
        Section(title="Settings", body=settings_table(settings)),
    ]
    write_page(
        options.output / "report.html",
        f"{options.task}: evaluation",
        sections,
        subtitle=f"{total} examples, {training.recipe} after {training.step} steps",
        notice=" ".join(evaluated.notes),
    )


@torch.inference_mode()
def weigh_example(
    setup: TaskModel, batches: TaskBatches, predicted: Prediction, caption: str
) -> report.WeightedImage | None:
    """Weighs the regions of one example's image; None for a model that reads pixels.

    It costs a pass of one example for each region.
    """
    if batches.regions is None or batches.blind:
        return None
    (samples,) = batches.make_samples([batches.make_visit(predicted.row)])
    assert isinstance(samples, tuple)
    regions = samples[0].regions
    assert regions is not None
    host = read_features(batches.collate_samples(0, list(samples)), batches.regions)
    batch, num_whole = host.to(setup.device), int(batches.stage.feeding.whole_image != "none")

    def score(region_mask: RegionMask) -> float:
        rows = np.concatenate([np.ones(num_whole, dtype=np.bool_), region_mask])
        outputs = setup.task.outputs(setup.loaded.model, only_rows(batch, rows))
        return setup.task.compute_score(outputs, predicted.value)

    return report.WeightedImage(
        image_id=regions.row.image_id,
        width=regions.row.width,
        height=regions.row.height,
        boxes=regions.boxes[: regions.num_shown],
        weights=occlusion_weights(score, regions.num_shown),
        caption=caption,
    )


METRICS = "metrics.json"


def evaluate_task(options: EvaluationOptions) -> None:
    """Predicts every example and writes the output folder.

    A finished output of the same inputs is left as it is (recomputed only with ``fresh``). Raises
    InputError for errors that a user can fix.
    """
    setup, job = open_evaluation(options), f"train-vl evaluate {options.task}"
    settings = collect_settings(setup)
    output = options.output
    state = prepare_output(output, job=job, settings=settings, fresh=options.fresh)
    if state is State.FINISHED:
        print(f"{output} is finished; --fresh evaluates again")
        return
    writer = ShardWriter(output, REJECTS, 0, 1, producer={"job": job})
    with writer:
        batches = prepare_batches(setup, output / WORK, writer)
        predicted, lacking = predict_all(setup, batches)
        writer.write(
            [reject("evaluate", o.pair_id, o.reason, f"{o.image_id}: {o.why}") for o in lacking]
        )
    assert writer.shard is not None
    rejected = list(read_rejects(output / writer.shard.name))
    if options.missing == "error":
        refuse_rejected(rejected, len(predicted))
    evaluated = setup.task.evaluate(options.examples, batches.table, predicted)
    evaluated = write_files(evaluated, output)
    figures = evaluated.figures | {"examples": len(predicted), "rejected": len(rejected)}
    counts = Counter(str(row["reason"]) for row in rejected)
    weighted = weigh_best_example(setup, batches, predicted, evaluated)
    write_report(setup, evaluated, figures, counts, weighted, settings)
    write_json(output / METRICS, figures)
    remove_work(output)
    write_manifest(output, [writer.shard], job=job, settings=settings, inputs=collect_inputs(setup))
    _print_summary(output, figures, evaluated, counts)


def write_files(evaluated: EvaluationResult, output: Path) -> EvaluationResult:
    """Writes the files that servers take; if one cannot be written, the reason becomes a note."""
    notes = list(evaluated.notes)
    for write in evaluated.files:
        try:
            write(output)
        except InputError as error:
            notes.append(f"No result file: {error}.")
    return dataclasses.replace(evaluated, notes=notes)


def weigh_best_example(
    setup: EvaluationSetup,
    batches: TaskBatches,
    predicted: list[Prediction],
    evaluated: EvaluationResult,
) -> report.WeightedImage | None:
    """Returns the weights of the regions for the best answered example, or the first one."""
    if not predicted or not setup.task.weighs_regions:
        return None
    cases = {case.example_id: case for case in evaluated.cases}
    best = max(cases.values(), key=lambda case: case.score, default=None)
    chosen = predicted[0]
    if best is not None:
        chosen = next(
            (
                prediction
                for prediction in predicted
                if batches.table.pair_id(prediction.row) == best.example_id
            ),
            chosen,
        )
    case = cases.get(batches.table.pair_id(chosen.row))
    caption = "" if case is None else f"{case.text} {case.prediction}"
    return weigh_example(setup, batches, chosen, caption)


def prepare_batches(setup: EvaluationSetup, folder: Path, rejects: ShardWriter) -> TaskBatches:
    """Returns the tokenised examples with an image; those without one are among the ``rejects``."""
    sources, feeding = setup.sources, setup.stage.feeding
    what = PreparationInputs(
        pairs=sources.inputs.visited,
        rows=Rows(splits=frozenset(sources.pairs.splits)),
        images=sources.joined_images,
        takes_pairs=feeding.kind != "text",
        takes_texts=feeding.kind == "text",
        total=sources.pairs.count,
        tokenizer=setup.loaded.tokenizer,
        max_tokens=setup.max_tokens,
        form=setup.task.form,
        stage="evaluate",
    )
    prepare_samples(folder, what, rejects)
    return setup.make_batches(folder, sources.regions, sources.images)


def predict_all(
    setup: EvaluationSetup, batches: TaskBatches
) -> tuple[list[Prediction], list[Undecodable]]:
    """Returns the model's prediction for every example, and the images that cannot be decoded."""
    setup.loaded.model.to(setup.device)
    rows = batches.rows().tolist()
    predictions, undecodable = list[Prediction](), list[Undecodable]()
    with Progress(total=len(rows), unit="example", label=setup.options.task) as progress:
        for part in in_parts(rows, setup.options.batch_size):
            predicted, lacking = setup.predict(batches, part)
            predictions += predicted
            undecodable += lacking
            progress.advance(len(part), rejects=len(lacking))
    return predictions, undecodable


def read_rejects(path: Path) -> Iterator[dict[str, Any]]:
    """Returns the rows of a shard of rejects."""
    for batch in iter_batches(path, REJECTS):
        yield from batch.to_pylist()


def refuse_rejected(rejected: list[dict[str, Any]], accepted: int) -> None:
    """Raises InputError, which names them, for examples that cannot be answered: figures of the
    others would describe another set than the one they are reported for.
    """
    if not rejected:
        return
    names = ", ".join(str(row["key"]) for row in rejected[:NAMED])
    more = f" and {len(rejected) - NAMED} more" if len(rejected) > NAMED else ""
    counts = Counter(str(row["reason"]) for row in rejected)
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    raise InputError(
        f"--examples: {len(rejected)} of {len(rejected) + accepted} cannot be answered "
        f"({reasons}): "
        f"{names}{more}; give the missing tables, or --missing skip to evaluate only the others"
    )


def collect_inputs(setup: EvaluationSetup) -> list[Input]:
    """Records what an evaluation has read, for its manifest."""
    options, examples = setup.options, setup.sources.inputs.examples
    assert examples is not None
    tables = (
        ("--regions", options.regions, REGIONS),
        ("--annotated-regions", options.annotated_regions, REGIONS),
        ("--images", options.images, IMAGES),
    )
    return [
        checkpoint_input("--checkpoint", setup.loaded.path),
        table_input("--examples", options.examples, examples.table),
        *(table_input(flag, path, table) for flag, path, table in tables if path is not None),
    ]


def _print_summary(
    folder: Path, figures: Figures, evaluated: EvaluationResult, counts: Counter[str]
) -> None:
    for note in evaluated.notes:
        print(f"note: {note}", file=sys.stderr)
    for name in evaluated.headline:
        value, why = figures[name], evaluated.lacking.get(name, "no public labels")
        print(f"{name}: {why if value is None else f'{100 * value:.2f} %'}")
    print(f"{folder}: {figures['examples']} examples, {format_rejects(counts)}")
