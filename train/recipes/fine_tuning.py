"""Shared parts of tasks' recipes: the codes' optimisers, papers' settings, and baselines."""

import re
from dataclasses import replace
from typing import Any, TypeVar

from vlmill.models.vilbert.config import single_stream_base
from vlmill.models.vlbert.config import RegionCnnConfig, VlBertEndToEndConfig
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe

# How often published runs save and log, and how many workers load.
PUBLISHED_RUN: dict[str, Any] = {"save_every": 2000, "log_every": 100, "workers": 4}
# The same for trials on a CPU, whose tokenizer has learnt few words.
TRIAL_RUN: dict[str, Any] = {
    "save_every": 500,
    "log_every": 10,
    "workers": 0,
    "precision": "no",
    "vocabulary_size": 4000,
}
FAMILY = re.compile("vl-bert(-paper)?")  # in the names of VL-BERT's recipes
# Decay of the moving average of the weights in InterBERT's fine-tuning (arXiv:2003.13198; code).
INTERBERT_AVERAGE = 0.9999
R = TypeVar("R", bound=TaskRecipe)
BERT = "--init: BERT (train-vl convert --family bert --as bert-base)"


def task_recipe(
    kind: type[R],
    name: str,
    variant: str,
    model: Any,
    starts_from: tuple[str, ...],
    stage: TrainingStage,
    about: str,
    needs: str,
    **changes: Any,
) -> R:
    """Returns a published run of a task, with ``changes`` to its published runs' shared
    settings.
    """
    return kind(
        name=name,
        variant=variant,
        model=model,
        starts_from=starts_from,
        stages=(stage,),
        about=about,
        needs=needs,
        **(PUBLISHED_RUN | kind.published | changes),
    )


def for_trials(
    like: R,
    name: str,
    model: Any,
    about: str,
    *,
    lr: float,
    batch_size: int,
    feeding: Feeding | None = None,
    **changes: Any,
) -> R:
    """Returns ``like`` in minutes on a CPU, for some thousand examples."""
    (stage,) = like.stages
    stage = replace(
        stage,
        steps=600,
        epochs=None,
        batch_size=batch_size,
        accumulation=1,
        feeding=feeding or stage.feeding,
        optimizer=Optimizer(lr=lr),
    )
    fields: dict[str, Any] = TRIAL_RUN | {"average": 0.0} | changes
    return replace(
        like,
        name=name,
        model=model,
        stages=(stage,),
        about=f"{about} for trials on a CPU",
        **fields,
    )


def vilbert_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """Returns ViLBERT's optimiser [code]: constant after a tenth of warm-up, a tenth of it from
    epochs 12 and 16 on.
    """
    fields: dict[str, Any] = {
        "kind": "bert-adam",
        "decay": "inverted",  # by mistake, as in pretraining
        "schedule": "milestones",
        "drops": (12.0, 16.0),
        "warmup": 0.1,
    }
    return Optimizer(lr=lr, **(fields | changes))


def interbert_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """Returns InterBERT's optimiser [code]: ViLBERT's, with more epochs at which the rate drops."""
    return vilbert_task_optimizer(lr, drops=(12.0, 16.0, 20.0, 22.0, 26.0), **changes)


def interbert_paper_optimizer(lr: float) -> Optimizer:
    """Returns InterBERT's optimiser (paper, sec. 4.2): linear decay after 10,000 warm-up steps."""
    return Optimizer(lr=lr, warmup_steps=10_000)


def vilbert_paper(recipe: TaskRecipe, **changes: Any) -> TaskRecipe:
    """Returns ViLBERT's released recipe by the paper's text: Adam at one rate; warm-up and decay
    are BERT's [choice].
    """
    (stage,) = recipe.stages
    stage = replace(stage, optimizer=Optimizer(lr=stage.optimizer.lr, warmup=0.1))
    fields: dict[str, Any] = {
        "name": f"{recipe.name}-paper",
        "stages": (stage,),
        "about": f"{recipe.about.partition(',')[0]}, by the paper's text",
    }
    return replace(recipe, **(fields | changes))


def on_single_stream(recipe: TaskRecipe) -> TaskRecipe:
    """Returns ViLBERT's released recipe for the paper's baseline, one BERT over both."""
    return replace(
        recipe,
        name=recipe.name.replace("vilbert", "single-stream"),
        model=replace(recipe.model, trunk=single_stream_base()),
        starts_from=("vilbert-single-stream", "vilbert-tasks"),
        about=f"{recipe.about.partition(',')[0]}'s single-stream baseline",
        needs=recipe.needs.replace("a pretrained ViLBERT", "a pretrained single stream"),
    )


def vlmo_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """Returns VLMo's optimiser [code]: linear to 0 after a tenth of warm-up, without clipping."""
    fields: dict[str, Any] = {
        "kind": "transformers-adamw",
        "beta2": 0.98,
        "decay": "vlmo",
        "eps": 1e-8,
        "clip": 0.0,
        "warmup": 0.1,
    }
    return Optimizer(lr=lr, **(fields | changes))


def from_pixels(recipe: TaskRecipe, model: VlBertEndToEndConfig) -> TaskRecipe:
    """Returns VL-BERT's recipe on stored features, but trained together with the network that makes
    them, like its starting checkpoint.
    """
    (stage,) = recipe.stages
    feeding = replace(stage.feeding, kind="picture-regions")
    init = "--init: a VL-BERT pretrained end to end"
    return replace(
        recipe,
        name=FAMILY.sub(r"\g<0>-end-to-end", recipe.name, count=1),
        variant=f"{recipe.variant}-end-to-end",
        model=model,
        starts_from=("vl-bert-end-to-end", f"{recipe.variant}-end-to-end"),
        stages=(replace(stage, feeding=feeding),),
        about=recipe.about.removesuffix(", on stored features") + ", from pixels",
        needs=f"--images; {recipe.needs.partition('; --init')[0]}; {init}",
    )


def small_region_cnn() -> RegionCnnConfig:
    """Returns a network of regions for trials on a CPU, all trained: 1/4 of the width, a block a
    stage.
    """
    return RegionCnnConfig(
        blocks=(1, 1, 1, 1),
        widths=(16, 24, 32, 40),
        stem_channels=16,
        pool_size=7,
        frozen_stages=0,
    )


def from_bert(recipe: TaskRecipe) -> TaskRecipe:
    """Returns the tables' baseline without pretraining on pairs: it starts from BERT alone."""
    return replace(
        recipe,
        name=f"{recipe.name}-from-bert",
        starts_from=("bert",),
        about=f"{recipe.about}, from BERT alone",
        needs=f"{recipe.needs.partition('; --init')[0]}; {BERT}",
    )
