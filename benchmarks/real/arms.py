"""Defines the runs: five models, and for one of them seeds and ablations."""

from typing import Any

from real.recipes import (
    GROUPS,
    MODELS,
    TASKS,
    alignment,
    fine_tuning,
    make_feeding,
    pretraining,
    task_config,
    task_training,
)
from real.runs import Part, Run, with_seed
from real.tables import Tables
from real.task_tables import find_set
from vlmill.train.tasks.retrieval.settings import RetrievalSettings

BASE, SHORT = "base", "short"
ABLATED = "vilbert"  # whose steps cost least: `short` runs of it are compared with each other
SHORT_STEPS, SEEDS = 400, (0, 1, 2)


def base(tables: Tables, model: str) -> Run:
    """Returns a model's run. ViLBERT has no pretraining, VLMo none either; models that read pairs
    are aligned first.
    """
    return Run(name=f"{model}/{BASE}", seed=0, parts=parts_of(model), tables=tables)


def parts_of(model: str) -> tuple[Part, ...]:
    """Returns the parts of a model's run."""
    if model == "vilbert":
        return vilbert_parts()
    if model == "vlmo":
        return (Part(recipe=fine_tuning(model)),)
    return Part(recipe=alignment(model)), Part(recipe=fine_tuning(model))


def vilbert_parts(**changes: Any) -> tuple[Part, ...]:
    """Returns ViLBERT's fine-tuning. Its co-attention is off: all pairs of a step then cost no more
    than its texts and images.
    """
    alone = task_config("vilbert", co_attention=False)
    return (Part(recipe=fine_tuning("vilbert", config=alone, **changes), co_attention=False),)


def short_runs(tables: Tables) -> list[Run]:
    """Returns short runs of one model: seeds, and ablations with one thing changed."""

    def run(name: str, *parts: Part) -> Run:
        return Run(name=f"{ABLATED}/{name}", seed=0, parts=parts, tables=tables, small=True)

    short = run(SHORT, *vilbert_parts(steps=SHORT_STEPS))
    seeds = [with_seed(short, seed) for seed in SEEDS[1:]]
    changed = [
        *(
            run(f"{SHORT}-loss-{loss}", *vilbert_parts(steps=SHORT_STEPS, settings=with_loss(loss)))
            for loss in ("binary", "triplet")
        ),
        *(
            run(
                f"{SHORT}-{count}-regions",
                *vilbert_parts(steps=SHORT_STEPS, feeding=make_feeding(max_regions=count)),
            )
            for count in (6, 32)
        ),
        *(
            run(f"{SHORT}-{name}", part, *vilbert_parts(steps=SHORT_STEPS))
            for name, part in pretrainings().items()
        ),
    ]
    return [short, *seeds, *changed]


def pretrainings() -> dict[str, Part]:
    """Returns ViLBERT's pretraining, and the same with one thing changed."""
    return {
        "pretrained": Part(recipe=pretraining(ABLATED)),
        "hard-negatives": Part(
            recipe=pretraining(ABLATED, hard_negative_share=0.2), hard_negatives=True
        ),
        "groups": Part(recipe=pretraining(ABLATED, masking=GROUPS)),
    }


def with_loss(loss: Any) -> RetrievalSettings:
    """Returns retrieval's settings with another loss."""
    return RetrievalSettings(negatives="batch", losses=(loss,))


def all_runs(tables: Tables) -> list[Run]:
    """Returns all runs, the five models first."""
    models = [base(tables, model) for model in MODELS]
    return [*models, *short_runs(tables), *task_runs(tables)]


def task_runs(tables: Tables) -> list[Run]:
    """Returns ViLBERT's runs of the task sets that are there: pretrained and blind, each from the
    same start; of the first set with further seeds.
    """
    first = pretrainings()["pretrained"]
    runs = [
        Run(
            name=f"{name}/{'blind' if blind else 'vilbert'}",
            seed=0,
            parts=(first, Part(recipe=task_training(name, blind=blind), examples=name)),
            tables=tables,
        )
        for name in TASKS
        if (tables.data / "tasks" / find_set(name).file).is_file()
        for blind in (False, True)
    ]
    seeded = next(iter(TASKS))
    more = [one for one in runs if one.name.startswith(f"{seeded}/")]
    return [*runs, *(with_seed(one, seed) for seed in SEEDS[1:] for one in more)]
