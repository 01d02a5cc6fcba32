"""Formats the lines that ``train-vl show`` prints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmill.inference.show.folder import FolderSummary
from vlmill.models.registry import get_variant
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.files.inputs import Input
from vlmill.schemas.plurals import format_count
from vlmill.train.checkpoints.detector import detector_words

WIDTH = 12


def summary_lines(summary: FolderSummary) -> list[str]:
    """Returns the description of a folder, one fact per line; further lines of a fact are
    indented.
    """
    facts = _checkpoint_facts(summary) if summary.checkpoint else _table_facts(summary)
    lines = []
    for name, values in facts:
        for number, value in enumerate(values):
            lines.append(f"{name if not number else '':{WIDTH}} {value}")
    return lines


def _table_facts(summary: FolderSummary) -> Iterator[tuple[str, Sequence[str]]]:
    yield "job", [summary.job or "unknown"]
    yield "tables", [f"{rows:,} {table}" for table, rows in sorted(summary.rows.items())]
    yield "inputs", input_lines(summary.inputs)
    yield "metrics", metric_lines(summary)


def _checkpoint_facts(summary: FolderSummary) -> Iterator[tuple[str, Sequence[str]]]:
    settings = summary.settings
    training = _part(settings, "training")
    yield "variant", [str(settings.get("variant", "unknown"))]
    yield "recipe", [str(training.get("recipe", "unknown"))]
    yield "stages", stage_lines(summary.recipe, training, finished=summary.finished)
    if summary.steps:
        yield "checkpoints", ["steps " + ", ".join(map(str, summary.steps))]
    yield "data", data_lines(summary, training)
    yield "inputs", input_lines(summary.inputs)
    yield "detector", detector_lines(settings)
    if summary.weights is not None:
        types = ", ".join(sorted(summary.weights.dtypes))
        count = f"{summary.weights.parameters / 1e6:,.1f} million parameters"
        yield "size", [f"{count} ({types}), {size_words(summary.weights.bytes)}"]
    yield "metrics", metric_lines(summary)
    yield "load", load_lines(summary)


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def stage_lines(
    recipe: Mapping[str, Any], training: Mapping[str, Any], *, finished: bool
) -> list[str]:
    """Describes each stage of the recipe: finished, at which step, or not started."""
    current_stage, step = training.get("stage"), training.get("step", 0)
    stages = [s for s in recipe.get("stages", ()) if isinstance(s, Mapping)]
    names = [stage.get("name") for stage in stages]
    if current_stage not in names:
        return [f"{current_stage or 'none'}, step {step} of the run"]
    lines = []
    for number, stage in enumerate(stages):
        length = stage.get("steps")
        long = (
            format_count(length, "step")
            if isinstance(length, int)
            else f"{stage.get('epochs')} epochs"
        )
        if finished or number < names.index(current_stage):
            state = "done"
        elif number == names.index(current_stage):
            state = f"at step {step} of the run"
        else:
            state = "to come"
        lines.append(f"{stage.get('name')}: {long} of {stage.get('batch_size')} pairs, {state}")
    return [*lines, f"this checkpoint: {current_stage}, step {step}"]


def data_lines(summary: FolderSummary, training: Mapping[str, Any]) -> list[str]:
    """Returns the number of pairs, and the number of rejected ones."""
    count = training.get("num_pairs")
    pairs = format_count(count, "pair") if isinstance(count, int) and count else "unknown"
    rejected = summary.rows.get("rejects")
    return [pairs if rejected is None else f"{pairs}, {rejected:,} rejected"]


def input_lines(inputs: Sequence[Input] | None) -> list[str]:
    """Returns a line for each input: flag, path, rows, size, and the start of its digest."""
    if inputs is None:
        return ["not recorded: an older vlmill wrote this"]
    return [
        f"{entry.flag} {entry.path}"
        + ("" if entry.rows is None else f", {entry.rows:,} {entry.table}")
        + f", {size_words(entry.bytes)}"
        + ("" if entry.digest is None else f", {entry.rule} {entry.digest[:12]}")
        for entry in inputs
    ] or ["none"]


def detector_lines(settings: Mapping[str, Any]) -> list[str]:
    """Returns the detector in words, and its fingerprint."""
    fingerprint = settings.get("detector_fingerprint")
    words = detector_words(_part(settings, "detector"))
    if fingerprint is None and not words:
        return ["none, or not recorded"]
    return [line for line in (words, fingerprint and f"fingerprint {fingerprint}") if line]


def metric_lines(summary: FolderSummary) -> list[str]:
    """Returns the losses logged last, the loss of validation, and an evaluation's figures."""
    loss = _part(summary.settings, "training").get("validation_loss")
    lines = [] if loss is None else [f"validation/loss {loss:.4f} at this checkpoint"]
    logged = [
        f"{name} {value:.4f}"
        for name, value in summary.last_line.items()
        if "loss" in name and isinstance(value, int | float)
    ]
    if logged:
        lines.append(f"at step {summary.last_line.get('step')}: {', '.join(logged)}")
    numbers = {k: v for k, v in summary.metrics.items() if isinstance(v, int | float)}
    lines += [f"{name} {value:.4g}" for name, value in numbers.items()]
    return lines or ["none"]


def load_lines(summary: FolderSummary) -> list[str]:
    """Commands and code that take this checkpoint."""
    variant = get_variant(summary.settings.get("variant"))
    tables = "--images IMAGES" if _reads_pixels(summary) else "--regions REGIONS"
    evaluate = f"train-vl evaluate retrieval --checkpoint {summary.folder} --pairs PAIRS {tables} "
    return [
        *([] if variant.kind else [f"{evaluate}--output DIR"]),
        f"train-vl pretrain RECIPE --init {summary.folder} ...",
        "from vlmill.train.checkpoints.files import load_checkpoint; "
        f'model = load_checkpoint("{summary.folder}").model',
    ]


def _reads_pixels(summary: FolderSummary) -> bool:
    kind = _part(summary.settings, "feeding").get("kind")
    return (
        kind in ("pixels", "pictures") or get_variant(summary.settings.get("variant")).reads_pixels
    )
