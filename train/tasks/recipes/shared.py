"""Holds what the recipes of several papers' tasks share: trials on a CPU, stages and needs."""

from dataclasses import replace
from typing import Any, TypeVar

from vlmill.train.recipes.bert import bert_feeding
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.vcr.settings import SUBTASKS

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
BERT = "--init: BERT (train-vl convert --family bert --as bert-base)"
# What the tasks' tables are, for ``needs``.
REGIONS = "regions of the images"
NEAR = f"{REGIONS}; --negatives: their nearest images"
IMAGES_FLAG = "--images: the images"
COCO_REGIONS = "regions of COCO's images, 10 to 100 each"
COCO_IMAGES = "COCO's images"
VCR_NEEDS = "regions of VCR's images at detected and at annotated boxes"
REFCOCO_NEEDS = "regions of COCO's train2014 at detected and at annotated boxes"
GLUE_TEXTS = "texts of GLUE"
GLUE_LABELS = 3  # of MNLI; a run's are its task's
GLUE_TOKENS = 128
R = TypeVar("R", bound=TaskRecipe)


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


def milestones_optimizer(lr: float, **changes: Any) -> Optimizer:
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


def from_bert(recipe: TaskRecipe) -> TaskRecipe:
    """Returns the tables' baseline without pretraining on pairs: it starts from BERT alone."""
    return replace(
        recipe,
        name=f"{recipe.name}-from-bert",
        starts_from=("bert",),
        about=f"{recipe.about}, from BERT alone",
        needs=f"{recipe.needs.partition('; --init')[0]}; {BERT}",
    )


def small_vqa(like: TaskRecipe, model: Any, feeding: Feeding | None = None) -> TaskRecipe:
    """Returns a published recipe for trials on a CPU."""
    start = "-".join(like.name.split("-")[1:]).removesuffix("-base")
    return for_trials(
        like,
        f"vqa-{start}-small",
        model,
        f"VQA with {start}",
        lr=3e-4,
        batch_size=64,
        feeding=feeding,
        settings=replace(like.settings, min_questions=1),
        standardise_features=like.stages[0].feeding.reads_regions,
    )


def small_vcr(
    name: str, like: TaskRecipe, model: Any, lr: float = 3e-4, **settings: Any
) -> TaskRecipe:
    """Returns the recipe for trials of answers and rationales, based on a published one."""
    settings |= {"subtasks": SUBTASKS, "max_tokens": 40, "max_tokens_with_answer": 56}
    return for_trials(
        like,
        name,
        model,
        f"VCR with {name.removeprefix('vcr-').removesuffix('-small')}",
        lr=lr,
        batch_size=32,
        settings=replace(like.settings, **settings),
    )


def small_refcoco(name: str, like: TaskRecipe, model: Any) -> TaskRecipe:
    """Returns a published recipe for trials on a CPU."""
    about = f"RefCOCO+ with {name.removeprefix('refcoco-').removesuffix('-small')}"
    return for_trials(like, name, model, about, lr=3e-4, batch_size=64)


# Models on regions follow 12-in-1 [choice]; neither ViLBERT's nor InterBERT's paper has the task.


def nlvr2_region_stage(feeding: Feeding) -> TrainingStage:
    """Returns the stage [choice]: 40 tokens, ViLBERT's run for VQA, batches of 128 statements."""
    return TrainingStage(
        name="nlvr2",
        epochs=20,
        epoch_steps="ceil",
        batch_size=128,
        feeding=replace(feeding, max_tokens=40, max_regions=99, region_targets="class"),
        optimizer=milestones_optimizer(4e-5),
    )


def small_nlvr2(
    name: str, like: TaskRecipe, model: Any, lr: float = 2e-4, feeding: Feeding | None = None
) -> TaskRecipe:
    """Returns a published recipe for trials on a CPU."""
    return for_trials(
        like,
        name,
        model,
        like.about.partition(",")[0],
        lr=lr,
        batch_size=32,
        feeding=feeding,
        standardise_features=like.stages[0].feeding.reads_regions,
    )


def glue_stage(**changes: Any) -> TrainingStage:
    """Returns the paper's run (sec. 4.3)."""
    fields: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 128,
        "feeding": replace(bert_feeding(), max_tokens=GLUE_TOKENS),
        "optimizer": Optimizer(lr=2e-5),
    }
    return TrainingStage(name="glue", **(fields | changes))


def small_glue(name: str, like: TaskRecipe, model: Any, lr: float = 3e-4) -> TaskRecipe:
    """Returns a published recipe for trials on a CPU."""
    feeding = bert_feeding()
    return for_trials(like, name, model, like.about, lr=lr, batch_size=32, feeding=feeding)


def small_retrieval(name: str, like: TaskRecipe, model: Any, lr: float) -> TaskRecipe:
    """Returns a published recipe for trials on a CPU."""
    about = like.about.partition(",")[0]
    # Without --init matching stays at chance where features are not standardised.
    return for_trials(like, name, model, about, lr=lr, batch_size=16, standardise_features=True)
