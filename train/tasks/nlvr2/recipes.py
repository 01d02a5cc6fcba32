"""NLVR2 as VLMo's paper and code fine-tune it, and with models on regions as 12-in-1 does [choice].

[code] marks released code, [choice] ours. Published runs do not select a checkpoint: the last epoch
counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vlmill.models.interbert.config import (
    InterBertImagesConfig,
    interbert_paper,
    interbert_small,
)
from vlmill.models.vilbert.config import (
    Vilbert12in1Config,
    VilbertClassifierConfig,
    vilbert_12in1,
    vilbert_base,
    vilbert_small,
)
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoNlvr2Config,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.train.recipes.fine_tuning import (
    for_trials,
    from_bert,
    task_recipe,
    vilbert_task_optimizer,
    vlmo_task_optimizer,
)
from vlmill.train.recipes.interbert import interbert_feeding
from vlmill.train.recipes.vilbert import vilbert_feeding
from vlmill.train.recipes.vlmo import vlmo_feeding
from vlmill.train.settings.parts import Feeding
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe

NUM_IMAGES = 2  # of a statement
REGIONS, IMAGES_FLAG = "regions of the images", "--images: the images"


@dataclass(frozen=True, kw_only=True)
class Nlvr2Settings:
    """Holds the fields that only NLVR2 has."""

    task_token: int = 12  # of the task in 12-in-1's table of tokens [code]: TASK12

    @property
    def samples_of_pair(self) -> int:
        """Returns how many pairs are computed for a statement."""
        return NUM_IMAGES


@dataclass(frozen=True, kw_only=True)
class Nlvr2Recipe(TaskRecipe):
    """Describes a run of NLVR2."""

    task: str = "nlvr2"
    settings: Nlvr2Settings = field(default_factory=Nlvr2Settings)


# VLMo (arXiv:2111.02358, sec. 4.2): (statement, left) and (statement, right) through the fusion
# encoder, images of 384 pixels, 10 epochs of 128.

WITHOUT_HEADS = {"contrast": False, "match": False, "mlm": False, "num_images": NUM_IMAGES}
VLMO_SIZES: dict[str, tuple[Callable[..., VlmoConfig], float, float]] = {  # rate, drop path
    "base": (vlmo_base, 5e-5, 0.1),
    "base-plus": (vlmo_base_plus, 3e-5, 0.2),  # [code]
    "large": (vlmo_large, 3e-5, 0.15),
    "base-paper": (vlmo_base_paper, 5e-5, 0.1),
    "large-paper": (vlmo_large_paper, 3e-5, 0.15),
}


def nlvr2_vlmo(size: str, image_size: int = 384) -> TaskRecipe:
    """Returns the released recipe, a classifier of two layers on both pooled vectors; by the paper
    (``-paper``), one layer on both [T_CLS]. Images are mirrored even if the statement names sides
    [code].
    """
    make, rate, drop_path = VLMO_SIZES[size]
    paper = size.endswith("-paper")
    stage = TrainingStage(
        name="nlvr2",
        epochs=10,
        batch_size=128,
        feeding=vlmo_feeding(image_size=image_size),
        optimizer=vlmo_task_optimizer(rate),
    )
    encoder = make(image_size=image_size, drop_path=drop_path, **WITHOUT_HEADS)
    pixels = "" if image_size == 384 else f"-{image_size}"
    return task_recipe(
        Nlvr2Recipe,
        f"nlvr2-vlmo-{size}{pixels}",
        "vlmo-nlvr2",
        VlmoNlvr2Config(encoder=encoder, two_layers=not paper),
        ("vlmo", "vlmo-nlvr2"),
        stage,
        f"NLVR2 with VLMo {size.removesuffix('-paper')}, "
        + ("by the paper's text" if paper else "as released")
        + (f", {image_size} pixels" if pixels else ""),
        f"{IMAGES_FLAG}; --init: a pretrained VLMo",
        seed=1,
        precision="fp16",
    )


# Models on regions follow 12-in-1 [choice]; neither ViLBERT's nor InterBERT's paper has the task.


def make_region_stage(feeding: Feeding) -> TrainingStage:
    """Returns the stage [choice]: 40 tokens, ViLBERT's run for VQA, batches of 128 statements."""
    return TrainingStage(
        name="nlvr2",
        epochs=20,
        epoch_steps="ceil",
        batch_size=128,
        feeding=replace(feeding, max_tokens=40, max_regions=99, region_targets="class"),
        optimizer=vilbert_task_optimizer(4e-5),
    )


def nlvr2_vilbert() -> TaskRecipe:
    """Returns the recipe with the classifier of mmf's checkpoints."""
    return task_recipe(
        Nlvr2Recipe,
        "nlvr2-vilbert",
        "vilbert-classifier",
        VilbertClassifierConfig(trunk=vilbert_base(), num_labels=2, num_pictures=NUM_IMAGES),
        ("vilbert", "vilbert-tasks", "vilbert-classifier"),
        make_region_stage(vilbert_feeding()),
        "NLVR2 with ViLBERT, as 12-in-1 does",
        f"{REGIONS}; --init: a pretrained ViLBERT",
    )


def nlvr2_vilbert_12in1() -> TaskRecipe:
    """Returns the recipe of 12-in-1's own checkpoint, all of its heads kept."""
    return task_recipe(
        Nlvr2Recipe,
        "nlvr2-vilbert-12in1",
        "vilbert-12in1-tasks",
        Vilbert12in1Config(trunk=vilbert_12in1()),
        ("vilbert-12in1-tasks",),
        make_region_stage(vilbert_feeding()),
        "NLVR2 with 12-in-1's ViLBERT",
        f"{REGIONS}; --init: 12-in-1 (train-vl convert --family vilbert)",
    )


def nlvr2_interbert() -> TaskRecipe:
    """Returns the recipe of InterBERT with the same head."""
    return task_recipe(
        Nlvr2Recipe,
        "nlvr2-interbert",
        "interbert-pictures",
        InterBertImagesConfig(trunk=interbert_paper()),
        ("interbert", "interbert-tasks", "interbert-pictures"),
        make_region_stage(interbert_feeding()),
        "NLVR2 with InterBERT, as 12-in-1 does",
        f"{REGIONS}; --init: a pretrained InterBERT",
    )


# For trials on a CPU.


def small(
    name: str, like: TaskRecipe, model: Any, lr: float = 2e-4, feeding: Feeding | None = None
) -> TaskRecipe:
    """Returns the recipe for trials, based on a published one."""
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


def nlvr2_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertClassifierConfig(trunk=trunk, num_labels=2, num_pictures=NUM_IMAGES, dropout=0.0)
    return small("nlvr2-vilbert-small", nlvr2_vilbert(), model)


def nlvr2_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = InterBertImagesConfig(trunk=trunk, dropout=0.0)
    return small("nlvr2-interbert-small", nlvr2_interbert(), model)


def nlvr2_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, on images that are larger than in its pretraining."""
    like = nlvr2_vlmo("base")
    feeding = replace(like.stages[0].feeding, image_size=80, max_tokens=None, augment=False)
    feeding = replace(feeding, flip=0.0, crop=(1.0, 1.0))
    encoder = vlmo_small(image_size=80, **WITHOUT_HEADS)
    model = VlmoNlvr2Config(encoder=encoder)
    return small("nlvr2-vlmo-small", like, model, 3e-4, feeding)


RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    **{f"nlvr2-vlmo-{size}": partial(nlvr2_vlmo, size) for size in VLMO_SIZES},
    "nlvr2-vlmo-base-224": partial(nlvr2_vlmo, "base", 224),
    "nlvr2-vilbert": nlvr2_vilbert,
    "nlvr2-vilbert-from-bert": lambda: from_bert(nlvr2_vilbert()),
    "nlvr2-vilbert-12in1": nlvr2_vilbert_12in1,
    "nlvr2-interbert": nlvr2_interbert,
    "nlvr2-interbert-from-bert": lambda: from_bert(nlvr2_interbert()),
    "nlvr2-vilbert-small": nlvr2_vilbert_small,
    "nlvr2-interbert-small": nlvr2_interbert_small,
    "nlvr2-vlmo-small": nlvr2_vlmo_small,
}
