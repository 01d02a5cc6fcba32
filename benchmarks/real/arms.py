"""The runs of the benchmark: five models, and for one of them seeds and ablations."""

from dataclasses import replace
from typing import Any

from real.recipes import (
    MODELS,
    TASKS,
    fine_tuning,
    make_feeding,
    pretraining,
    task_config,
    task_training,
)
from real.runs import Part, Run, with_seed
from real.tables import Tables
from real.task_tables import find_set
from vlmill.train.settings.parts import Masking, Optimizer
from vlmill.train.tasks.retrieval.settings import RetrievalSettings

BASE = "base"
ABLATED = "interbert"  # the region model whose papers' ablations are repeated
SEEDS = (0, 1, 2)


def base(tables: Tables, model: str) -> Run:
    """Returns a model's run: pretraining, then retrieval."""
    parts = (Part(recipe=pretraining(model)), *retrieval_parts(model))
    return Run(name=f"{model}/{BASE}", seed=0, parts=parts, tables=tables)


def retrieval_parts(model: str, **changes: Any) -> tuple[Part, ...]:
    """Returns the fine-tuning of a model. ViLBERT's co-attention is off: all pairs of a step then
    cost no more than its texts and images.
    """
    if model != "vilbert":
        return (Part(recipe=fine_tuning(model, **changes)),)
    alone = task_config(model, co_attention=False)
    return (Part(recipe=fine_tuning(model, config=alone, **changes), co_attention=False),)


def vilbert_runs(tables: Tables) -> list[Run]:
    """Returns how ViLBERT does without pretraining, in fewer steps and with co-attention."""
    short = retrieval_parts("vilbert", steps=400)
    joined = Part(
        recipe=fine_tuning("vilbert", steps=600, batch_size=16, optimizer=Optimizer(lr=1e-4)),
        co_attention=True,
    )
    run = Run(name="", seed=0, parts=(), tables=tables, small=True)
    return [
        replace(run, name="vilbert/without-pretraining-400-steps", parts=short),
        replace(run, name="vilbert/without-pretraining", parts=retrieval_parts("vilbert")),
        replace(run, name="vilbert/co-attention", parts=(*base(tables, "vilbert").parts, joined)),
    ]


def ablations(tables: Tables) -> list[Run]:
    """Returns the ablations of one model, each with one thing changed."""
    run, model = base(tables, ABLATED), ABLATED
    first, *rest = run.parts

    def changed(name: str, *parts: Part) -> Run:
        return replace(run, name=f"{model}/{name}", parts=parts, small=True)

    return [
        changed("without-pretraining", *rest),
        changed(
            "hard-negatives",
            Part(recipe=pretraining(model, hard_negative_share=0.2), hard_negatives=True),
            *rest,
        ),
        changed("single-masks", Part(recipe=pretraining(model, masking=Masking())), *rest),
        *(
            changed(f"loss-{loss}", first, *retrieval_parts(model, settings=with_loss(loss)))
            for loss in ("binary", "triplet")
        ),
        *(
            changed(
                f"{count}-regions",
                Part(recipe=pretraining(model, feeding=make_feeding(max_regions=count))),
                *retrieval_parts(model, feeding=make_feeding(max_regions=count)),
            )
            for count in (6, 32)
        ),
    ]


def with_loss(loss: Any) -> RetrievalSettings:
    """Returns retrieval's settings with another loss."""
    return RetrievalSettings(negatives="batch", losses=(loss,))


def all_runs(tables: Tables) -> list[Run]:
    """Returns all runs, the five models first."""
    models = [base(tables, model) for model in MODELS]
    ablated = base(tables, ABLATED)
    seeds = [replace(with_seed(ablated, seed), small=True) for seed in SEEDS[1:]]
    return [*models, *vilbert_runs(tables), *seeds, *ablations(tables), *task_runs(tables)]


def task_runs(tables: Tables) -> list[Run]:
    """Returns ViLBERT's runs of the task sets that are there: pretrained and blind, each from the
    same start.
    """
    first = base(tables, "vilbert").parts[0]
    return [
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
