"""What recipes of several tasks share: the codes' optimisers, and a start from BERT alone."""

from dataclasses import replace
from typing import Any

from vlmill.train.recipes.spec import Optimizer
from vlmill.train.recipes.tasks import TaskRecipe

# How often published runs say, save and load what.
PUBLISHED_RUN: dict[str, Any] = {"save_every": 2000, "log_every": 100, "workers": 4}
# The same of those for trials on a CPU, whose tokenizer has learnt few words.
TRIAL_RUN: dict[str, Any] = {
    "save_every": 500,
    "log_every": 10,
    "workers": 0,
    "precision": "no",
    "vocabulary_size": 4000,
}
BERT = "--init: BERT (train-vl convert --family bert --as bert-base)"


def vilbert_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """[code]: constant after a tenth of warm-up, a tenth of it from epochs 12 and 16 on."""
    fields: dict[str, Any] = {
        "kind": "bert-adam",
        "decay": "inverted",  # by mistake, as in pretraining
        "schedule": "milestones",
        "drops": (12.0, 16.0),
        "warmup": 0.1,
    }
    return Optimizer(lr=lr, **(fields | changes))


def vlmo_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """[code]: linear to 0 after a tenth of warm-up, without clipping."""
    fields: dict[str, Any] = {
        "kind": "transformers-adamw",
        "beta2": 0.98,
        "decay": "vlmo",
        "eps": 1e-8,
        "clip": 0.0,
        "warmup": 0.1,
    }
    return Optimizer(lr=lr, **(fields | changes))


def from_bert(recipe: TaskRecipe) -> TaskRecipe:
    """The tables' baseline without pretraining on pairs: it starts from BERT alone."""
    return replace(
        recipe,
        name=f"{recipe.name}-from-bert",
        starts_from=("bert",),
        about=f"{recipe.about}, from BERT alone",
        needs=f"{recipe.needs.partition('; --init')[0]}; {BERT}",
    )
