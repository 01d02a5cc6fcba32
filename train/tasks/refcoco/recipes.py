"""RefCOCO, RefCOCO+ and RefCOCOg as each paper and each released code fine-tunes on them.

[code] marks released code, [choice] ours. VL-BERT also trains the network that makes the regions'
features; it can read stored ones, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from vlmill.models.vilbert.config import (
    VilbertTasksConfig,
    vilbert_base,
    vilbert_small,
)
from vlmill.models.vlbert.config import (
    RegionCnnConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    vlbert_base,
    vlbert_for_task,
    vlbert_paper,
    vlbert_small,
)
from vlmill.train.recipes.fine_tuning import (
    for_trials,
    from_bert,
    from_pixels,
    on_single_stream,
    small_region_cnn,
    task_recipe,
    vilbert_paper,
    vilbert_task_optimizer,
)
from vlmill.train.recipes.vilbert import vilbert_feeding
from vlmill.train.recipes.vlbert import vlbert_feeding
from vlmill.train.settings.parts import Feeding
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.vqa.recipes import vlbert_vqa_optimizer

SMALL_PX = 128  # a side of the images of trials
Rule = Literal["exact", "released", "vlbert", "mattnet"]


@dataclass(frozen=True, kw_only=True)
class RefcocoSettings:
    """Holds the fields that only referring expressions have."""

    # The target of a region that overlaps by half: its overlap (ViLBERT's code), or 1.
    labels: Literal["soft", "binary"] = "binary"
    # The rule of `metrics.RULES` by which overlaps are measured for that.
    label_rule: Rule = "vlbert"
    # The loss of a region, summed over an image's and a mean over the expressions (ViLBERT), or a
    # mean over all of them (VL-BERT).
    loss: Literal["sum", "mean"] = "sum"
    # "left" and "right" are swapped in the expressions of mirrored images (VL-BERT's code).
    mirror_words: bool = False
    iou: Rule = "exact"  # the rule by which a choice is right: that of `evaluate --iou`
    # Whether the full image, which is trained on as a region, may be chosen. The released codes
    # allow it.
    choose_whole: bool = False


@dataclass(frozen=True, kw_only=True)
class RefcocoRecipe(TaskRecipe):
    """Describes a run of referring expressions."""

    published: ClassVar[dict[str, Any]] = {
        "validation_pairs": 10_834
    }  # the largest validation split, RefCOCO's
    task: str = "refcoco"
    settings: RefcocoSettings = field(default_factory=RefcocoSettings)


NEEDS = "regions of COCO's train2014 at detected and at annotated boxes"


# ViLBERT (arXiv:1908.02265, sec. 3.3): a linear layer on each region's vector, binary
# cross-entropy; batch 256, 20 epochs, rate 4e-5.


def vilbert_refcoco_feeding() -> Feeding:
    """Returns the feeding: 20 tokens and 100 regions, the full image among them; annotated boxes
    are added to the detected ones in training only [code].
    """
    return replace(
        vilbert_feeding(),
        max_tokens=20,
        max_regions=99,
        region_targets="class",
        boxes="joined-in-training",
    )


def refcoco_vilbert() -> TaskRecipe:
    """Returns the released recipe: the target of a region that overlaps by half is its overlap."""
    stage = TrainingStage(
        name="refcoco",
        epochs=20,
        epoch_steps="ceil",
        batch_size=256,
        feeding=vilbert_refcoco_feeding(),
        optimizer=vilbert_task_optimizer(4e-5),
    )
    return task_recipe(
        RefcocoRecipe,
        "refcoco-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base(), num_answers=1),
        ("vilbert", "vilbert-tasks"),
        stage,
        about="RefCOCO+ with ViLBERT, as released",
        needs=f"{NEEDS}; --init: a pretrained ViLBERT",
        settings=RefcocoSettings(labels="soft"),
    )


# VL-BERT (arXiv:1908.08530, sec. 4.2): each region's last vector predicts whether it is meant.


def vlbert_refcoco_feeding() -> Feeding:
    """Returns the feeding: expressions in full, all regions, the full image among them, mirrored
    every other time [code].
    """
    return replace(
        vlbert_feeding(),
        max_tokens=None,
        max_elements=None,
        max_regions=100,
        region_order="table",
        region_targets="class",
        boxes="joined-in-training",
    )


def refcoco_vl_bert() -> TaskRecipe:
    """Returns the released recipe, but on stored features: 20 epochs of 32 at 8e-7 a row."""
    stage = TrainingStage(
        name="refcoco",
        epochs=20,
        epoch_steps="ceil",
        batch_size=32,
        accumulation=2,
        feeding=vlbert_refcoco_feeding(),
        optimizer=vlbert_vqa_optimizer(2.56e-5, 3750),
    )
    return task_recipe(
        RefcocoRecipe,
        "refcoco-vl-bert",
        "vl-bert-refcoco",
        VlBertRefcocoConfig(body=vlbert_for_task(vlbert_base())),
        ("vl-bert", "vl-bert-refcoco"),
        stage,
        about="RefCOCO+ with VL-BERT among detected boxes, as released, on stored features",
        needs=f"{NEEDS}; --init: a pretrained VL-BERT",
        settings=RefcocoSettings(label_rule="released", loss="mean", mirror_words=True),
        seed=12_345,
    )


def refcoco_vl_bert_paper() -> TaskRecipe:
    """Returns the paper's recipe: 20 epochs of 256 at 2e-4, 500 steps of warm-up."""
    recipe = refcoco_vl_bert()
    stage = replace(
        recipe.stages[0],
        batch_size=256,
        feeding=replace(vlbert_refcoco_feeding(), flip=0.0),
        optimizer=vlbert_vqa_optimizer(2e-4, 500),
    )
    return replace(
        recipe,
        name="refcoco-vl-bert-paper",
        model=VlBertRefcocoConfig(body=vlbert_for_task(vlbert_paper())),
        stages=(stage,),
        settings=replace(recipe.settings, mirror_words=False),
        about="RefCOCO+ with VL-BERT among detected boxes, by the paper's text",
    )


def among_annotated(recipe: TaskRecipe) -> TaskRecipe:
    """Returns the other row of VL-BERT's table: trained and measured on annotated boxes alone."""
    (stage,) = recipe.stages
    feeding = replace(stage.feeding, boxes="annotated")
    return replace(
        recipe,
        name=f"{recipe.name}-annotated",
        stages=(replace(stage, feeding=feeding),),
        about=recipe.about.replace("detected", "annotated"),
        needs=recipe.needs.replace("detected and at ", ""),
    )


def refcoco_vl_bert_end_to_end(recipe: TaskRecipe, cnn: RegionCnnConfig) -> TaskRecipe:
    """Returns ``recipe`` from pixels: as released the stem and res2 are constant [code]; the paper
    trains all (sec. 3.4).
    """
    return from_pixels(recipe, VlBertEndToEndConfig(model=recipe.model, cnn=cnn))


# For trials on a CPU.


def small_refcoco(name: str, like: TaskRecipe, model: Any) -> TaskRecipe:
    """Returns the recipe for trials, based on a published one."""
    about = f"RefCOCO+ with {name.removeprefix('refcoco-').removesuffix('-small')}"
    return for_trials(like, name, model, about, lr=3e-4, batch_size=64)


def refcoco_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, num_answers=1, dropout=0.0)
    return small_refcoco("refcoco-vilbert-small", refcoco_vilbert(), model)


def refcoco_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    model = VlBertRefcocoConfig(body=vlbert_for_task(vlbert_small(dropout=0.0)))
    return small_refcoco("refcoco-vl-bert-small", refcoco_vl_bert(), model)


def refcoco_vl_bert_end_to_end_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT and a small network of regions."""
    cnn = small_region_cnn()
    body = vlbert_for_task(vlbert_small(dropout=0.0, region_width=cnn.feature_width))
    model = VlBertEndToEndConfig(model=VlBertRefcocoConfig(body=body), cnn=cnn)
    like = from_pixels(refcoco_vl_bert(), model)
    (stage,) = like.stages
    feeding = replace(stage.feeding, short_side=SMALL_PX, long_side=SMALL_PX)
    like = replace(like, stages=(replace(stage, feeding=feeding),))
    return small_refcoco("refcoco-vl-bert-end-to-end-small", like, model)


RELEASED_CNN, PAPER_CNN = RegionCnnConfig(), RegionCnnConfig(frozen_stages=0)
RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "refcoco-vilbert": refcoco_vilbert,
    "refcoco-vilbert-paper": lambda: vilbert_paper(refcoco_vilbert(), settings=RefcocoSettings()),
    "refcoco-vilbert-from-bert": lambda: from_bert(refcoco_vilbert()),
    "refcoco-single-stream": lambda: on_single_stream(refcoco_vilbert()),
    "refcoco-single-stream-from-bert": lambda: from_bert(on_single_stream(refcoco_vilbert())),
    "refcoco-vl-bert": refcoco_vl_bert,
    "refcoco-vl-bert-annotated": lambda: among_annotated(refcoco_vl_bert()),
    "refcoco-vl-bert-paper": refcoco_vl_bert_paper,
    "refcoco-vl-bert-paper-annotated": lambda: among_annotated(refcoco_vl_bert_paper()),
    "refcoco-vl-bert-from-bert": lambda: from_bert(refcoco_vl_bert()),
    "refcoco-vl-bert-end-to-end": lambda: refcoco_vl_bert_end_to_end(
        refcoco_vl_bert(), RELEASED_CNN
    ),
    "refcoco-vl-bert-end-to-end-annotated": lambda: among_annotated(
        refcoco_vl_bert_end_to_end(refcoco_vl_bert(), RELEASED_CNN)
    ),
    "refcoco-vl-bert-paper-end-to-end": lambda: refcoco_vl_bert_end_to_end(
        refcoco_vl_bert_paper(), PAPER_CNN
    ),
    "refcoco-vl-bert-paper-end-to-end-annotated": lambda: among_annotated(
        refcoco_vl_bert_end_to_end(refcoco_vl_bert_paper(), PAPER_CNN)
    ),
    "refcoco-vilbert-small": refcoco_vilbert_small,
    "refcoco-vl-bert-small": refcoco_vl_bert_small,
    "refcoco-vl-bert-end-to-end-small": refcoco_vl_bert_end_to_end_small,
}
