"""Tasks of InterBERT (arXiv:2003.13198, sec. 4), by the paper and by the released code."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.interbert import config
from vlmill.train.recipes.interbert import interbert_feeding, interbert_retrieval_feeding
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue.settings import GlueRecipe
from vlmill.train.tasks.nlvr2.settings import Nlvr2Recipe
from vlmill.train.tasks.recipes import shared
from vlmill.train.tasks.retrieval.settings import Loss, RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.vcr.settings import LONGEST, VcrRecipe, VcrSettings

# Decay of the moving average of the weights in InterBERT's fine-tuning (arXiv:2003.13198; code).
AVERAGE = 0.9999


def interbert_task_optimizer(lr: float, **changes: Any) -> Optimizer:
    """Returns InterBERT's optimiser [code]: ViLBERT's, with more epochs at which the rate drops."""
    return shared.milestones_optimizer(lr, drops=(12.0, 16.0, 20.0, 22.0, 26.0), **changes)


def interbert_paper_optimizer(lr: float) -> Optimizer:
    """Returns InterBERT's optimiser (paper, sec. 4.2): linear decay after 10,000 warm-up steps."""
    return Optimizer(lr=lr, warmup_steps=10_000)


# InterBERT (arXiv:2003.13198, sec. 4): one score for each choice from the pooled vector; rate 2e-5,
# batch 32, 5 epochs, and a moving average of the weights. Sub-tasks take turns in one model.


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


def interbert_vcr_recipe(
    name: str, trunk: config.InterBertConfig, optimizer: Optimizer, settings: VcrSettings, by: str
) -> TaskRecipe:
    """Returns the recipe of one depth of InterBERT."""
    return shared.task_recipe(
        VcrRecipe,
        name,
        "interbert-tasks",
        config.InterBertTasksConfig(trunk=trunk),
        ("interbert", "interbert-tasks"),
        interbert_vcr_stage(optimizer),
        settings=settings,
        about=f"VCR with InterBERT, answers and rationales by one model, {by}",
        needs=f"{shared.VCR_NEEDS}; --init: a pretrained InterBERT",
        average=AVERAGE,
    )


def vcr_interbert() -> TaskRecipe:
    """Returns the released run, whose warm-up is a twentieth of the updates.

    The code warms up over a tenth of the iterations. Each iteration has an update for either
    sub-task.
    """
    return interbert_vcr_recipe(
        "vcr-interbert",
        config.interbert_released(),
        interbert_task_optimizer(2e-5, warmup=0.05),
        VcrSettings(in_turns=True, shared_cut=True),
        "as released",
    )


def vcr_interbert_paper() -> TaskRecipe:
    """Returns the paper's run: AdamW, linear decay after 10,000 steps; turns are the code's."""
    return interbert_vcr_recipe(
        "vcr-interbert-paper",
        config.interbert_paper(),
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
        needs=f"{shared.VCR_NEEDS}; --init: a run of interbert-without-bert",
    )


def vcr_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = config.interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = config.InterBertTasksConfig(trunk=trunk, dropout=0.0)
    return shared.small_vcr("vcr-interbert-small", vcr_interbert(), model, 2e-4)


def nlvr2_interbert() -> TaskRecipe:
    """Returns the recipe of InterBERT with the same head."""
    return shared.task_recipe(
        Nlvr2Recipe,
        "nlvr2-interbert",
        "interbert-pictures",
        config.InterBertImagesConfig(trunk=config.interbert_paper()),
        ("interbert", "interbert-tasks", "interbert-pictures"),
        shared.nlvr2_region_stage(interbert_feeding()),
        "NLVR2 with InterBERT, as 12-in-1 does",
        f"{shared.REGIONS}; --init: a pretrained InterBERT",
    )


def nlvr2_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = config.interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = config.InterBertImagesConfig(trunk=trunk, dropout=0.0)
    return shared.small_nlvr2("nlvr2-interbert-small", nlvr2_interbert(), model)


def interbert_glue_recipe(
    name: str, trunk: config.InterBertConfig, about: str, init: str
) -> TaskRecipe:
    """Returns the recipe of InterBERT's text alone: word interaction, then the text module
    [choice].
    """
    return shared.task_recipe(
        GlueRecipe,
        name,
        "interbert-text",
        config.InterBertTextConfig(trunk=trunk, num_labels=shared.GLUE_LABELS),
        ("interbert", "interbert-tasks", "interbert-text"),
        shared.glue_stage(),
        about,
        f"{shared.GLUE_TEXTS}; --init: {init}",
    )


def glue_interbert() -> TaskRecipe:
    """Returns the recipe of the paper's model, the last row."""
    return interbert_glue_recipe(
        "glue-interbert", config.interbert_paper(), "GLUE with InterBERT", "a pretrained InterBERT"
    )


def glue_interbert_released() -> TaskRecipe:
    """Returns the recipe of the released depth, whose text module has BERT's upper layers."""
    return interbert_glue_recipe(
        "glue-interbert-released",
        config.interbert_released(),
        "GLUE with InterBERT, the released depth",
        "a pretrained InterBERT as released",
    )


def glue_single_stream() -> TaskRecipe:
    """Returns the recipe without extraction modules, the second row."""
    return interbert_glue_recipe(
        "glue-single-stream",
        config.interbert_single_stream(),
        "GLUE with InterBERT without extraction modules",
        "a run of interbert-single-stream",
    )


def glue_interbert_without_bert() -> TaskRecipe:
    """Returns the recipe that shows the benefit of a start from BERT: pretraining of the same model
    began from random weights.
    """
    return replace(
        glue_interbert(),
        name="glue-interbert-without-bert",
        about="GLUE with an InterBERT that was not initialised from BERT",
        needs=f"{shared.GLUE_TEXTS}; --init: a run of interbert-without-bert",
    )


def glue_interbert_random() -> TaskRecipe:
    """Returns the recipe that shows the benefit of any pretraining: all weights are random."""
    return replace(
        glue_interbert(),
        name="glue-interbert-random",
        starts_from=(),
        about="GLUE with InterBERT from random weights",
        needs=f"{shared.GLUE_TEXTS}; --vocab: BERT's",
    )


def glue_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = config.interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = config.InterBertTextConfig(trunk=trunk, num_labels=shared.GLUE_LABELS, dropout=0.0)
    return shared.small_glue("glue-interbert-small", glue_interbert(), model, lr=2e-4)


# InterBERT (arXiv:2003.13198, sec. 4): the same four [code], or an image among three others
# (paper), scored by the matching head of pretraining; rate 4e-5, 20 epochs, and a moving average of
# the weights.


def interbert_retrieval_stage() -> TrainingStage:
    """Returns the released run: constant, a tenth from each of these epochs on [code]."""
    return TrainingStage(
        name="retrieval",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        feeding=interbert_retrieval_feeding(),
        optimizer=interbert_task_optimizer(4e-5),
    )


def interbert_retrieval_recipe(
    name: str, trunk: config.InterBertConfig, loss: Loss, stage: TrainingStage, by: str
) -> TaskRecipe:
    """Returns the recipe of retrieval with a depth of InterBERT."""
    return shared.task_recipe(
        RetrievalRecipe,
        name,
        "interbert-tasks",
        config.InterBertTasksConfig(trunk=trunk),
        ("interbert", "interbert-tasks"),
        stage,
        f"Retrieval with InterBERT, {by}",
        f"{shared.NEAR}; --init: a pretrained InterBERT",
        settings=RetrievalSettings(losses=(loss,)),
        average=AVERAGE,
    )


def retrieval_interbert() -> TaskRecipe:
    """Returns the released recipe: each of the four is classified separately as matching or not."""
    stage = interbert_retrieval_stage()
    return interbert_retrieval_recipe(
        "retrieval-interbert", config.interbert_released(), "binary", stage, "as released"
    )


def retrieval_interbert_paper() -> TaskRecipe:
    """Returns the paper's recipe: the image among three random others, for a caption; batches of
    32, linear decay after 10,000 steps (sec. 4.2).
    """
    stage = replace(
        interbert_retrieval_stage(),
        batch_size=32,
        optimizer=interbert_paper_optimizer(4e-5),
    )
    by = "by the paper's text"
    recipe = interbert_retrieval_recipe(
        "retrieval-interbert-paper", config.interbert_paper(), "softmax", stage, by
    )
    return replace(
        recipe,
        settings=replace(recipe.settings, negatives="pictures"),
        needs=f"{shared.REGIONS}; --init: a pretrained InterBERT",
    )


def retrieval_interbert_chinese() -> TaskRecipe:
    """Returns TaoMultimodal's recipe (sec. 5): titles of 36 characters, 16 regions; negatives as
    the released code has them on Flickr30k, the rest as the paper [choice].
    """
    like = interbert_retrieval_stage()
    stage = replace(
        like,
        batch_size=32,
        feeding=replace(like.feeding, max_tokens=38, max_regions=16),
        optimizer=interbert_paper_optimizer(4e-5),
    )
    recipe = interbert_retrieval_recipe(
        "retrieval-interbert-chinese",
        config.interbert_chinese(),
        "softmax",
        stage,
        "on TaoMultimodal",
    )
    return replace(recipe, needs=f"{shared.NEAR}; --init: a run of interbert-chinese")


def retrieval_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = config.interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = config.InterBertTasksConfig(trunk=trunk, dropout=0.0)
    return shared.small_retrieval("retrieval-interbert-small", retrieval_interbert(), model, 2e-4)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "vcr": {
        "vcr-interbert": vcr_interbert,
        "vcr-interbert-paper": vcr_interbert_paper,
        "vcr-interbert-from-bert": lambda: shared.from_bert(vcr_interbert()),
        "vcr-interbert-without-bert": vcr_interbert_without_bert,
        "vcr-interbert-small": vcr_interbert_small,
    },
    "nlvr2": {
        "nlvr2-interbert": nlvr2_interbert,
        "nlvr2-interbert-from-bert": lambda: shared.from_bert(nlvr2_interbert()),
        "nlvr2-interbert-small": nlvr2_interbert_small,
    },
    "glue": {
        "glue-single-stream": glue_single_stream,
        "glue-interbert": glue_interbert,
        "glue-interbert-from-bert": lambda: shared.from_bert(glue_interbert()),
        "glue-interbert-without-bert": glue_interbert_without_bert,
        "glue-interbert-random": glue_interbert_random,
        "glue-interbert-released": glue_interbert_released,
        "glue-interbert-small": glue_interbert_small,
    },
    "retrieval": {
        "retrieval-interbert": retrieval_interbert,
        "retrieval-interbert-paper": retrieval_interbert_paper,
        "retrieval-interbert-chinese": retrieval_interbert_chinese,
        "retrieval-interbert-from-bert": lambda: shared.from_bert(retrieval_interbert()),
        "retrieval-interbert-small": retrieval_interbert_small,
    },
}
