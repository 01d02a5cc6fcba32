"""Retrieval on Flickr30k and COCO as each paper and each released code fine-tunes it.

[code] marks released code, [choice] ours. Published runs do not select a checkpoint: the last epoch
counts (VLMo's code: the mean of the six recalls on validation, which validate_every=N does).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.imagebert.config import (
    ImageBertRetrievalConfig,
    imagebert_base,
    imagebert_small,
)
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertTasksConfig,
    interbert_chinese,
    interbert_paper,
    interbert_released,
    interbert_small,
)
from vlmill.models.vilbert.config import VilbertTasksConfig, vilbert_base, vilbert_small
from vlmill.train.recipes.fine_tuning import (
    INTERBERT_AVERAGE,
    for_trials,
    from_bert,
    interbert_paper_optimizer,
    interbert_task_optimizer,
    task_recipe,
    vilbert_paper,
    vilbert_task_optimizer,
)
from vlmill.train.recipes.imagebert import imagebert_feeding
from vlmill.train.recipes.interbert import interbert_retrieval_feeding
from vlmill.train.recipes.vilbert import vilbert_retrieval_feeding
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.retrieval.settings import Loss, RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.retrieval.vlmo_recipes import VLMO_RECIPES, retrieval_vlmo_small

REGIONS = "regions of the images"
NEAR = f"{REGIONS}; --negatives: their nearest images"

# ViLBERT (arXiv:1908.02265, sec. 3.3): a caption and its image among another caption, another
# image and a caption of one of the 100 nearest images; batch 64, 20 epochs, rate 2e-5.


def vilbert_retrieval_stage() -> TrainingStage:
    """Returns the released run; 30 tokens, 99 regions and the full image [code]."""
    return TrainingStage(
        name="retrieval",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        feeding=replace(vilbert_retrieval_feeding(), region_targets="class"),
        optimizer=vilbert_task_optimizer(2e-5),  # the README's command has 4e-5
    )


def retrieval_vilbert() -> TaskRecipe:
    """Returns the released recipe: a new head, which VCR's choices also use, scores the four."""
    return task_recipe(
        RetrievalRecipe,
        "retrieval-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base()),
        ("vilbert", "vilbert-tasks"),
        vilbert_retrieval_stage(),
        "Retrieval with ViLBERT, as released",
        f"{NEAR}; --init: a pretrained ViLBERT",
        settings=RetrievalSettings(),
    )


def retrieval_vilbert_paper() -> TaskRecipe:
    """Returns the paper's recipe: pretraining's alignment head scores, and Adam at one rate."""
    return vilbert_paper(retrieval_vilbert(), variant="vilbert", model=vilbert_base())


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


def make_interbert_recipe(
    name: str, trunk: InterBertConfig, loss: Loss, stage: TrainingStage, by: str
) -> TaskRecipe:
    """Returns the recipe of retrieval with a depth of InterBERT."""
    return task_recipe(
        RetrievalRecipe,
        name,
        "interbert-tasks",
        InterBertTasksConfig(trunk=trunk),
        ("interbert", "interbert-tasks"),
        stage,
        f"Retrieval with InterBERT, {by}",
        f"{NEAR}; --init: a pretrained InterBERT",
        settings=RetrievalSettings(losses=(loss,)),
        average=INTERBERT_AVERAGE,
    )


def retrieval_interbert() -> TaskRecipe:
    """Returns the released recipe: each of the four is classified separately as matching or not."""
    stage = interbert_retrieval_stage()
    return make_interbert_recipe(
        "retrieval-interbert", interbert_released(), "binary", stage, "as released"
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
    recipe = make_interbert_recipe(
        "retrieval-interbert-paper", interbert_paper(), "softmax", stage, by
    )
    return replace(
        recipe,
        settings=replace(recipe.settings, negatives="pictures"),
        needs=f"{REGIONS}; --init: a pretrained InterBERT",
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
    recipe = make_interbert_recipe(
        "retrieval-interbert-chinese", interbert_chinese(), "softmax", stage, "on TaoMultimodal"
    )
    return replace(recipe, needs=f"{NEAR}; --init: a run of interbert-chinese")


# ImageBERT (arXiv:2001.07966, sec. 4.2): negatives by texts and by images; batch 24, rate 5e-5,
# 130 epochs. No code was released; the number of negatives is [choice], and so is all else of the
# optimiser, which is BERT's.

BEST: tuple[Loss, ...] = ("binary",)


def retrieval_imagebert(
    name: str = "retrieval-imagebert",
    losses: tuple[Loss, ...] = BEST,
    num_regions: int = 100,
    about: str = "its best loss",
) -> TaskRecipe:
    """Returns a row of table 4: a loss over a pair and its negatives, and a number of regions."""
    by_itself = "binary" in losses
    stage = TrainingStage(
        name="retrieval",
        epochs=130,
        batch_size=24,
        feeding=replace(imagebert_feeding(), max_regions=num_regions),
        optimizer=Optimizer(lr=5e-5),
    )
    return task_recipe(
        RetrievalRecipe,
        name,
        "imagebert-retrieval",
        ImageBertRetrievalConfig(trunk=imagebert_base(), rank_by="match" if by_itself else "score"),
        ("imagebert", "imagebert-retrieval"),
        stage,
        f"Retrieval with ImageBERT, {about}",
        f"{REGIONS}; --init: a pretrained ImageBERT",
        settings=RetrievalSettings(
            negatives="both", num_candidates=2 if losses == BEST else 4, losses=losses
        ),
    )


def table_4() -> dict[str, Callable[[], TaskRecipe]]:
    """Returns the rows of ImageBERT's table 4 other than its best one."""
    rows: dict[str, dict[str, Any]] = {
        "softmax": {"losses": ("softmax",), "about": "softmax among candidates"},
        "triplet": {"losses": ("triplet",), "about": "triplet loss"},
        "all-losses": {"losses": ("binary", "softmax", "triplet"), "about": "the three losses"},
        "36-regions": {"num_regions": 36, "about": "36 regions"},
    }
    return {
        (name := f"retrieval-imagebert-{row}"): _bind_recipe(name, fields)
        for row, fields in rows.items()
    }


def _bind_recipe(name: str, fields: dict[str, Any]) -> Callable[[], TaskRecipe]:
    return lambda: retrieval_imagebert(name, **fields)


# For trials on a CPU.


def small(name: str, like: TaskRecipe, model: Any, lr: float) -> TaskRecipe:
    """Returns the recipe for trials, based on a published one."""
    about = like.about.partition(",")[0]
    # Without --init matching stays at chance where features are not standardised.
    return for_trials(like, name, model, about, lr=lr, batch_size=16, standardise_features=True)


def retrieval_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT. At a higher rate its poolers make all pairs one
    vector.
    """
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, dropout=0.0)
    return small("retrieval-vilbert-small", retrieval_vilbert(), model, 2e-4)


def retrieval_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = InterBertTasksConfig(trunk=trunk, dropout=0.0)
    return small("retrieval-interbert-small", retrieval_interbert(), model, 2e-4)


def retrieval_imagebert_small() -> TaskRecipe:
    """Returns the recipe with a small ImageBERT."""
    model = ImageBertRetrievalConfig(trunk=imagebert_small(dropout=0.0))
    return small("retrieval-imagebert-small", retrieval_imagebert(), model, 3e-4)


RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "retrieval-vilbert": retrieval_vilbert,
    "retrieval-vilbert-paper": retrieval_vilbert_paper,
    "retrieval-vilbert-from-bert": lambda: from_bert(retrieval_vilbert()),
    "retrieval-interbert": retrieval_interbert,
    "retrieval-interbert-paper": retrieval_interbert_paper,
    "retrieval-interbert-chinese": retrieval_interbert_chinese,
    "retrieval-interbert-from-bert": lambda: from_bert(retrieval_interbert()),
    "retrieval-imagebert": retrieval_imagebert,
    **table_4(),
    "retrieval-imagebert-from-bert": lambda: from_bert(retrieval_imagebert()),
    **VLMO_RECIPES,
    "retrieval-vilbert-small": retrieval_vilbert_small,
    "retrieval-interbert-small": retrieval_interbert_small,
    "retrieval-imagebert-small": retrieval_imagebert_small,
    "retrieval-vlmo-small": retrieval_vlmo_small,
}
