"""VCR as InterBERT's paper and released code fine-tune on it (arXiv:2003.13198, sec. 4).

One score for each choice from what is pooled; rate 2e-5, batch 32, 5 epochs, and a moving average
of the weights. Sub-tasks take turns in one model. [code] is the released one.
"""

from collections.abc import Callable
from dataclasses import replace

from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertTasksConfig,
    interbert_paper,
    interbert_released,
)
from vlmill.train.recipes.feeding import interbert_feeding
from vlmill.train.recipes.fine_tuning import (
    INTERBERT_AVERAGE,
    from_bert,
    interbert_paper_optimizer,
    interbert_task_optimizer,
    task_recipe,
)
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.vcr.settings import LONGEST, NEEDS, VcrRecipe, VcrSettings


def interbert_vcr_stage(optimizer: Optimizer) -> TrainingStage:
    """Returns the published run's stage: 100 regions, as ViLBERT's [code]."""
    return TrainingStage(
        name="vcr",
        epochs=5,
        epoch_steps="ceil",
        batch_size=32,
        feeding=replace(interbert_feeding(), max_tokens=LONGEST, max_regions=99, boxes="joined"),
        optimizer=optimizer,
    )


def make_interbert_recipe(
    name: str, trunk: InterBertConfig, optimizer: Optimizer, settings: VcrSettings, by: str
) -> TaskRecipe:
    """Returns the recipe of one depth of InterBERT."""
    return task_recipe(
        VcrRecipe,
        name,
        "interbert-tasks",
        InterBertTasksConfig(trunk=trunk),
        ("interbert", "interbert-tasks"),
        interbert_vcr_stage(optimizer),
        settings=settings,
        about=f"VCR with InterBERT, answers and rationales by one model, {by}",
        needs=f"{NEEDS}; --init: a pretrained InterBERT",
        average=INTERBERT_AVERAGE,
    )


def vcr_interbert() -> TaskRecipe:
    """Returns the released run, whose warm-up is a twentieth of the updates.

    The code warms up over a tenth of the iterations, each of which has an update for either
    sub-task.
    """
    return make_interbert_recipe(
        "vcr-interbert",
        interbert_released(),
        interbert_task_optimizer(2e-5, warmup=0.05),
        VcrSettings(in_turns=True, shared_cut=True),
        "as released",
    )


def vcr_interbert_paper() -> TaskRecipe:
    """Returns the paper's run: AdamW, linear decay after 10,000 steps; turns are the code's."""
    return make_interbert_recipe(
        "vcr-interbert-paper",
        interbert_paper(),
        interbert_paper_optimizer(2e-5),
        VcrSettings(in_turns=True),
        "by the paper's text",
    )


def vcr_interbert_without_bert() -> TaskRecipe:
    """Returns the paper's ablation: the same after pretraining that began with random weights."""
    return replace(
        vcr_interbert_paper(),
        name="vcr-interbert-without-bert",
        about="VCR with InterBERT pretrained from random weights (ablation)",
        needs=f"{NEEDS}; --init: a run of interbert-without-bert",
    )


INTERBERT_RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "vcr-interbert": vcr_interbert,
    "vcr-interbert-paper": vcr_interbert_paper,
    "vcr-interbert-from-bert": lambda: from_bert(vcr_interbert()),
    "vcr-interbert-without-bert": vcr_interbert_without_bert,
}
