"""Runs a pretraining: reads tables and a recipe, writes checkpoints, log and report.

``report.html`` shows the inputs, the losses and the settings.

`model_config` gives the model the recipe's sizes, except for the sizes of the data or of
``--init``.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from markupsafe import Markup
from tokenizers import Tokenizer

from vlmill.models.registry import get_variant
from vlmill.runtime.console.cost import require_disk_space
from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    line_chart,
    settings_table,
    write_page,
)
from vlmill.runtime.console.trackers import require_trackers
from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.mirror import restore_paths
from vlmill.runtime.settings.plain_fields import flatten, replace_fields, to_plain, to_yaml
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.features import check_global_features
from vlmill.train.loading.images.tokenizer import ImageTokenizer
from vlmill.train.loading.store.files import Preparation
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.run.cost import checkpoints_bytes
from vlmill.train.run.inputs import Inputs, Sources, open_sources, say_what_is_missing
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import Stopped
from vlmill.train.run.model import allowed_changes, first_model
from vlmill.train.run.pair_learning import PairRunner, make_pair_runner
from vlmill.train.run.planning import (
    count_visited,
    plan_stages,
    say_visits,
    say_what_never_peaks,
    trained_images,
)
from vlmill.train.run.preparing import RECIPE, prepare
from vlmill.train.run.pretraining import Pretraining
from vlmill.train.run.runner import RunSetup
from vlmill.train.run.saving import PREPARED
from vlmill.train.run.settings import collect_settings, record_settings


def model_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    """Returns the recipe's model with the data's sizes, or ``--init``'s if the data fit it."""
    config = _sized_config(recipe, tokenizer, sources)
    if sources.regions is not None:
        check_global_features(sources.regions, config)
    return config


def _sized_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    init, variant = sources.init, get_variant(recipe.variant)
    if sources.picture_tokenizer is not None:
        return _image_config(recipe, sources.picture_tokenizer)
    sizes = {"vocab_size": tokenizer.get_vocab_size()}
    config = continued_config(recipe, init)
    if sources.regions is None:
        return variant.with_sizes(recipe.model, **sizes) if config is None else config
    body = variant.get_body(recipe.model if config is None else config)
    # A model's own region network defines the width.
    width = body.region_width if variant.makes_features else sources.reader.feature_dim
    if config is not None:
        _check_sizes(body, width, recipe, sources)
        return config
    classes = max(_num_guessed(recipe, sources), _num_stored(sources))
    sizes |= {
        "region_width": width,
        "num_region_classes": max(body.num_region_classes, classes),
    }
    return variant.with_sizes(recipe.model, **sizes)


def continued_config(recipe: Recipe, init: LoadedCheckpoint | None) -> Any:
    """Returns the configuration of ``--init`` if the run continues to train its model, else None.

    VLMo's stages differ in their heads and positions, and a model that starts from BERT has the
    recipe's sizes.
    """
    if init is None or get_variant(recipe.variant).shared_sizes:
        return None
    return init.config if init.variant == recipe.variant else None


def _image_config(recipe: Recipe, tokenizer: ImageTokenizer) -> Any:
    for number, stage in enumerate(recipe.stages):
        size = (stage.feeding.token_size or 0) // tokenizer.stride
        if size != recipe.model.side:
            raise InputError(
                f"stages.{number}.feeding.token_size={stage.feeding.token_size} gives "
                f"{size} tokens per side, the model has {recipe.model.side} patches per "
                f"side; set it to {recipe.model.side * tokenizer.stride}"
            )
    return dataclasses.replace(recipe.model, num_visual_tokens=tokenizer.num_tokens)


def _num_stored(sources: Sources) -> int:
    """Returns the number of classes of the regions' distributions, with background; 0 without."""
    about = sources.reader.arrays.get("class_probs")
    return 0 if about is None else int(about.get("of", about["dim"]))


def _num_guessed(recipe: Recipe, sources: Sources) -> int:
    """Returns the number of classes that the stages predict; of distributions, with background.

    Columns other than the ids do not count where no stage reads them.
    """
    if _stages_of_distributions(recipe):
        return max(sources.facts.num_classes + 1, _num_stored(sources))
    return sources.facts.num_classes


def _stages_of_distributions(recipe: Recipe) -> list[int]:
    stages = enumerate(recipe.stages)
    return [i for i, stage in stages if stage.feeding.region_targets == "distribution"]


def _check_sizes(config: Any, width: int, recipe: Recipe, sources: Sources) -> None:
    if config.region_width != width:
        raise InputError(
            f"--init takes features of {config.region_width}, --regions has {width}; use its "
            "detector's regions"
        )
    classes, guessed = config.num_region_classes, _num_guessed(recipe, sources)
    if classes < sources.facts.num_classes:
        raise InputError(
            f"--init predicts {classes} classes, --regions has "
            f"{sources.facts.num_classes}; use its "
            "detector's regions"
        )
    if classes < guessed:
        changes = (
            f"stages.{i}.feeding.region_targets=class" for i in _stages_of_distributions(recipe)
        )
        raise InputError(
            f"--init predicts {classes} classes, the distributions of --regions have "
            f"{guessed} with "
            f"background; add {' '.join(changes)}"
        )


NUM_SAMPLES = 8
TITLES = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}


def write_report(
    output: Path,
    recipe: RunSettings,
    table: SampleTable,
    tokenizer: Tokenizer,
    counts: Counter[str],
    criterion: Criterion,
) -> None:
    """Writes the report of the run in ``output``; ``criterion`` selects the best checkpoint."""
    lines = read_log(output / "log.jsonl")
    rejects = {k: n for k, n in counts.items() if k in set(Reason)}
    funnel = {
        "stage": "pairs to train on",
        "in": counts["kept"] + sum(rejects.values()),
        "out": counts["kept"],
        "rejects": rejects,
    }
    texts = [
        (table.pair_id(row), tokenizer.decode(table.tokens(row).tolist()))
        for row in range(min(NUM_SAMPLES, len(table)))
    ]
    sections = [
        Section(title="Pairs", body=funnel_table([funnel]), intro=_cut(counts)),
        *_curves(lines, criterion),
        Section(
            title="Captions as the model reads them", body=html_table(["pair_id", "text"], texts)
        ),
        Section(title="Settings", body=settings_table(flatten(to_plain(recipe)))),
    ]
    subtitle = f"{recipe.name}, {lines[-1]['step'] if lines else 0} steps"
    write_page(output / "report.html", TITLES[recipe.command], sections, subtitle=subtitle)


def _cut(counts: Counter[str]) -> str:
    if not counts["cut"]:
        return ""
    return f"{counts['cut']} captions were longer than the model's limit and were truncated."


def _curves(lines: list[dict[str, Any]], criterion: Criterion) -> list[Section]:
    if not lines:
        return []
    rates = line_chart(
        {"lr": ([line["step"] for line in lines], [line["lr"] for line in lines])},
        title="Learning rate",
        x_label="step",
        y_label="lr",
    )
    intro = "Unweighted losses by objective, and their weighted sum."
    sections = [Section(title="Losses", body=loss_chart(lines), intro=intro)]
    if measured := [line for line in lines if "validation/loss" in line]:
        sections.append(
            Section(
                title="Validation losses",
                body=Markup("{}{}").format(
                    loss_chart(measured, "validation/", "Validation losses"),
                    validation_table(measured, criterion),
                ),
                intro="Losses of held-out pairs, means over their labels, and their weighted sum; "
                f"the checkpoint of the {'highest' if criterion.highest else 'lowest'} "
                f"{criterion.name} is the best.",
            )
        )
    return [*sections, Section(title="Learning rate", body=rates)]


def loss_chart(
    lines: Sequence[Mapping[str, Any]], prefix: str = "loss", title: str = "Losses"
) -> Markup:
    """Returns the curves of every loss whose name begins with ``prefix`` in the lines of a log."""
    curves = {}
    for name in sorted({name for line in lines for name in line if name.startswith(prefix)}):
        having = [line for line in lines if name in line]  # stages may differ in their objectives
        curves[name] = ([line["step"] for line in having], [line[name] for line in having])
    return line_chart(curves, title=title, x_label="step", y_label="loss", log=True)


def validation_table(lines: Sequence[Mapping[str, Any]], criterion: Criterion) -> Markup:
    """Returns the first, best and last measurement of the held-out pairs."""
    best = min(lines, key=lambda line: (criterion.rank(criterion.get_value(line)), line["step"]))
    rows = [
        [when, line["step"], f"{criterion.get_value(line):.4f}"]
        for when, line in (("first", lines[0]), ("best", best), ("last", lines[-1]))
    ]
    return html_table(["", "step", criterion.name], rows)


def pretrain(
    recipe: Recipe, inputs: Inputs, output: Path, *, fresh: bool = False, force: bool = False
) -> str:
    """Runs ``recipe``, or its remaining steps, and returns a sentence on the content of ``output``.

    Under a launcher (torchrun, accelerate launch) every process calls this; the first one prepares
    and writes. Memory is bounded by the batch, some 60 bytes for each pair, and the regions' index.
    Raises InputError for inputs that do not fit together, an output that holds another run, and a
    disk that is too small for the checkpoints unless ``force`` is set; Stopped, once it has saved,
    if it was asked to stop (`stopping.STOP_SIGNALS`).
    """
    accelerator = make_accelerator(recipe)
    require_trackers(recipe.trackers)
    if accelerator.is_main_process:
        say_what_is_missing(recipe, inputs)
    sources = open_sources(inputs, recipe)
    allowed_changes(recipe, sources.init)  # refused before anything is written
    settings = collect_settings(recipe, sources)
    preparation = prepare_once(
        accelerator, lambda: prepare(recipe, sources, output, settings, fresh=fresh)
    )
    if preparation is None:
        return describe_finished(output)
    runner = open_runner(recipe, sources, output, preparation.tokenizer, accelerator)
    return carry_out(runner, preparation, settings, force=force)


def prepare_once(
    accelerator: Accelerator, make: Callable[[], Preparation | None]
) -> Preparation | None:
    """Returns the result of ``make``, which only the first process calls."""
    preparations: list[Any] = [make() if accelerator.is_main_process else None]
    broadcast: Preparation | None = broadcast_object_list(preparations)[0]
    return broadcast


def describe_finished(output: Path) -> str:
    """Returns a sentence: the output is already finished."""
    return f"{output} holds this run, finished at step {max(saved_steps(output))}"


def carry_out(
    runner: PairRunner, preparation: Preparation, settings: dict[str, Any], *, force: bool
) -> str:
    """Trains the remaining steps of a run whose samples are prepared, and returns a sentence on it.

    Raises InputError for a disk that is too small unless ``force`` is set, and Stopped.
    """
    output, accelerator = runner.output, runner.accelerator
    if accelerator.is_main_process:
        say_what_never_peaks(runner.stages)
        require_disk_space(checkpoints_bytes(runner), output, force=force)
        runner.require_length()
        record_settings(output, runner.recipe.job, settings)
        write_text(output / RECIPE, to_yaml(runner.recipe))
        say_visits(runner.stages)
    try:
        runner.train()
    except Stopped:
        raise Stopped(
            f"{restore_paths(str(output))}: stopped at step {runner.done}, saved; the same command "
            "continues"
        ) from None
    summary = ""
    if accelerator.is_main_process:
        rejects, met = runner.rejecting.add_to(preparation.rejects), runner.rejecting.met.values()
        counts = (
            preparation.counts
            - Counter(kept=len(met))
            + Counter(fault.reason.value for fault in met)
        )
        table = SampleTable.open(output / PREPARED)
        tokenizer = Tokenizer.from_str(preparation.tokenizer)
        criterion = runner.learning.criterion
        write_report(output, runner.recipe, table, tokenizer, counts, criterion)
        pairs = str(counts["kept"])
        if any(run.share is not None for run in runner.stages):
            pairs = (
                f"{count_visited(runner.stages, table, runner.learning.sources.splits)} of {pairs}"
            )
        summary = runner.saving.finish(runner.done, rejects, settings, counts, pairs)
        runner.rejecting.forget()
    accelerator.wait_for_everyone()
    return summary


def open_runner(
    recipe: Recipe, sources: Sources, output: Path, tokenizer: str, accelerator: Accelerator
) -> PairRunner:
    """Returns the run on the samples that :func:`prepare` has left, its model sized by the data.

    ``tokenizer`` is its JSON.
    """
    words = Tokenizer.from_str(tokenizer)
    changes = allowed_changes(recipe, sources.init)
    config = replace_fields(model_config(recipe, words, sources), changes.items(), "model")
    recipe = dataclasses.replace(recipe, model=config)
    table = SampleTable.open(output / PREPARED)
    setup = RunSetup(
        recipe=recipe,
        output=output,
        stages=plan_stages(recipe, table, sources.splits),
        accelerator=accelerator,
    )
    objective = Pretraining(tokenizer=words, picture_tokenizer=sources.picture_tokenizer)
    first = partial(first_model, recipe, sources, trained_images(recipe, table, sources.splits))
    return make_pair_runner(setup, sources, words, objective, first)
