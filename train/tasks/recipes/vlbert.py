"""Tasks of VL-BERT (arXiv:1908.08530, sec. 4): it also trains the network that makes the regions'
features, and it can read stored ones.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.vlbert import config
from vlmill.train.recipes.vlbert import vlbert_feeding, vlbert_paper_masks
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.recipes import shared
from vlmill.train.tasks.refcoco.settings import RefcocoRecipe, RefcocoSettings
from vlmill.train.tasks.vcr.settings import LONGEST, VcrRecipe, VcrSettings
from vlmill.train.tasks.vqa.settings import VqaRecipe, VqaSettings

FAMILY = re.compile("vl-bert(-paper)?")  # in the names of VL-BERT's recipes


def from_pixels(recipe: TaskRecipe, model: config.VlBertEndToEndConfig) -> TaskRecipe:
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


def small_region_cnn() -> config.RegionCnnConfig:
    """Returns a network of regions for trials on a CPU, all trained: 1/4 of the width, a block a
    stage.
    """
    return config.RegionCnnConfig(
        blocks=(1, 1, 1, 1),
        widths=(16, 24, 32, 40),
        stem_channels=16,
        pool_size=7,
        frozen_stages=0,
    )


# VL-BERT (arXiv:1908.08530, sec. 4.2): the answer is read from a [MASK] after the question.


def vlbert_vqa_feeding() -> Feeding:
    """Returns the feeding: questions in full, 100 regions, boxes mirrored half the time [code]."""
    return replace(
        vlbert_feeding(), max_tokens=None, max_elements=None, region_targets="class", flip=0.5
    )


def vlbert_vqa_optimizer(lr: float, warmup_steps: int) -> Optimizer:
    """Returns the optimiser [code]: decay on all parameters, clipping at 1, steps from 1."""
    return Optimizer(
        kind="transformers-adamw",
        lr=lr,
        weight_decay=1e-4,
        decay="everything",
        clip=1.0,
        warmup_steps=warmup_steps,
        first_step=1,
    )


def vqa_vl_bert() -> TaskRecipe:
    """Returns the released recipe: 5 epochs, 6.25e-7 a row, binary cross-entropy."""
    stage = TrainingStage(
        name="vqa",
        epochs=5,
        epoch_steps="ceil",
        batch_size=256,
        feeding=vlbert_vqa_feeding(),
        optimizer=vlbert_vqa_optimizer(1.6e-4, 500),
    )
    return shared.task_recipe(
        VqaRecipe,
        "vqa-vl-bert",
        "vl-bert-vqa",
        config.VlBertVqaConfig(body=config.vlbert_for_task(config.vlbert_base())),
        ("vl-bert", "vl-bert-vqa"),
        stage,
        "VQA 2.0 with VL-BERT, as released",
        f"{shared.COCO_REGIONS}; --init: a pretrained VL-BERT on regions",
        settings=VqaSettings(mirror_words=True),
        seed=12_345,
    )


def vqa_vl_bert_paper() -> TaskRecipe:
    """Returns the paper's recipe: 20 epochs at 1e-4, softmax cross-entropy over the answers."""
    recipe = vqa_vl_bert()
    stage = replace(
        recipe.stages[0],
        epochs=20,
        feeding=replace(vlbert_vqa_feeding(), flip=0.0),
        optimizer=vlbert_vqa_optimizer(1e-4, 2000),
    )
    return replace(
        recipe,
        name="vqa-vl-bert-paper",
        model=config.VlBertVqaConfig(body=config.vlbert_for_task(config.vlbert_paper())),
        stages=(stage,),
        settings=VqaSettings(loss="softmax"),
        about="VQA 2.0 with VL-BERT, by the paper's text",
    )


def vqa_vl_bert_from_bert() -> TaskRecipe:
    """Returns the recipe from BERT alone, 20 epochs: five suffice only after pretraining (the
    code's author).
    """
    recipe = shared.from_bert(vqa_vl_bert())
    return replace(recipe, stages=(replace(recipe.stages[0], epochs=20),))


def vqa_vl_bert_large() -> TaskRecipe:
    """Returns the released settings of the large model: as base, in four parts."""
    recipe = vqa_vl_bert()
    return replace(
        recipe,
        name="vqa-vl-bert-large",
        model=config.VlBertVqaConfig(body=config.vlbert_for_task(config.vlbert_large())),
        stages=(replace(recipe.stages[0], accumulation=4),),
        about="VQA 2.0 with VL-BERT large, as released",
    )


def vqa_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    model = config.VlBertVqaConfig(
        body=config.vlbert_for_task(config.vlbert_small(dropout=0.0)), dropout=0.0
    )
    return shared.small_vqa(vqa_vl_bert(), model)


SMALL_PX = 128  # a side of the images of trials


# Few steps of pretraining, with the full image's vector for all words, leave the scale of
# words' visual vectors at 0.005, and 600 steps of VCR at 0.006: no text shows which objects it
# names.
SMALL_SCALE = 0.1


# VL-BERT (arXiv:1908.08530, sec. 4.1): a model for answers and one for rationales.


def vlbert_vcr_feeding() -> Feeding:
    """Returns the feeding: all annotated objects in their order, and the full image; mirrored
    every other time [code].
    """
    return replace(
        vlbert_feeding(),
        max_tokens=LONGEST,
        max_elements=None,
        max_regions=100,
        region_order="table",
        region_targets="class",
        boxes="annotated",
    )


def vcr_optimizer(lr: float) -> Optimizer:
    """Returns the optimiser: gradient descent, a tenth of the rate from epochs 14 and 18 on [both];
    the rest is the code's.
    """
    return Optimizer(
        kind="sgd",
        lr=lr,
        weight_decay=1e-4,
        decay="everything",
        clip=10.0,
        schedule="milestones",
        drops=(14.0, 18.0),
        warmup_steps=1000,
    )


def vcr_settings(*subtasks: str, **changes: Any) -> VcrSettings:
    """Returns the settings: 64 tokens of question, answer and choice together, and each choice
    classified alone [code].
    """
    fields: dict[str, Any] = {
        "texts": "tags",
        "max_tokens": 64,
        "max_tokens_with_answer": 64,
        "loss": "sigmoid",
        "regions": "all",
    }
    return VcrSettings(subtasks=subtasks, **(fields | changes))


def vcr_vl_bert(subtask: str) -> TaskRecipe:
    """Returns the released recipe, but on stored features: 20 epochs of 64, 7e-5 a question."""
    stage = TrainingStage(
        name="vcr",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        accumulation=4,
        feeding=vlbert_vcr_feeding(),
        optimizer=vcr_optimizer(4.48e-3),
    )
    return shared.task_recipe(
        VcrRecipe,
        f"vcr-vl-bert-{subtask}",
        "vl-bert-vcr",
        config.VlBertVcrConfig(body=config.vlbert_for_task(config.vlbert_base(), pooler=True)),
        ("vl-bert", "vl-bert-vcr"),
        stage,
        settings=vcr_settings(subtask),
        about=f"VCR's {subtask} with VL-BERT, as released, on stored features",
        needs=f"{shared.VCR_NEEDS.replace('detected and at ', '')}; --init: a pretrained VL-BERT",
        seed=12_345,
    )


def vcr_vl_bert_paper(subtask: str) -> TaskRecipe:
    """Returns the paper's recipe: 2e-3, softmax over choices, categories of masked regions."""
    recipe = vcr_vl_bert(subtask)
    paper = config.vlbert_paper()
    body = config.vlbert_for_task(paper, pooler=True, masked_region=paper.masked_region)
    stage = replace(
        recipe.stages[0],
        feeding=replace(vlbert_vcr_feeding(), flip=0.0),
        optimizer=vcr_optimizer(2e-3),
    )
    settings = vcr_settings(subtask, loss="softmax", regions="masked")
    return replace(
        recipe,
        name=f"vcr-vl-bert-paper-{subtask}",
        model=config.VlBertVcrConfig(body=body),
        stages=(stage,),
        settings=replace(settings, masking=vlbert_paper_masks(settings.masking)),
        about=f"VCR's {subtask} with VL-BERT, by the paper's text, on stored features",
    )


def vcr_vl_bert_end_to_end(recipe: TaskRecipe, cnn: config.RegionCnnConfig) -> TaskRecipe:
    """Returns ``recipe`` from pixels, the long side up to 1,200, at the objects' boxes and
    outlines; as released the stem and res2 are frozen [code], the paper trains all (sec. 3.4).
    """
    pixels = from_pixels(recipe, config.VlBertEndToEndConfig(model=recipe.model, cnn=cnn))
    (stage,) = pixels.stages
    feeding = replace(stage.feeding, boxes="examples", long_side=1200)
    return replace(
        pixels,
        stages=(replace(stage, feeding=feeding),),
        needs=f"--images: VCR's images; {pixels.needs.rpartition('; ')[2]}",
    )


def vcr_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    body = config.vlbert_for_task(config.vlbert_small(dropout=0.0), pooler=True)
    model = config.VlBertVcrConfig(body=body, dropout=0.0, visual_scale_names=SMALL_SCALE)
    return shared.small_vcr("vcr-vl-bert-small", vcr_vl_bert("q2a"), model)


def vcr_vl_bert_end_to_end_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT and a small network of regions."""
    cnn = small_region_cnn()
    body = config.vlbert_small(dropout=0.0, region_width=cnn.feature_width)
    heads = config.VlBertVcrConfig(
        body=config.vlbert_for_task(body, pooler=True), dropout=0.0, visual_scale_names=SMALL_SCALE
    )
    like = replace(vcr_vl_bert("q2a"), model=heads)
    like = vcr_vl_bert_end_to_end(like, cnn)
    (stage,) = like.stages
    feeding = replace(stage.feeding, short_side=SMALL_PX, long_side=SMALL_PX)
    like = replace(like, stages=(replace(stage, feeding=feeding),), needs="--images")
    return shared.small_vcr("vcr-vl-bert-end-to-end-small", like, like.model)


RELEASED_CNN, PAPER_CNN = config.RegionCnnConfig(), config.RegionCnnConfig(frozen_stages=0)


def _vl_bert_recipes(subtask: str) -> dict[str, Callable[[], TaskRecipe]]:
    return {
        f"vcr-vl-bert-{subtask}": lambda: vcr_vl_bert(subtask),
        f"vcr-vl-bert-paper-{subtask}": lambda: vcr_vl_bert_paper(subtask),
        f"vcr-vl-bert-{subtask}-from-bert": lambda: shared.from_bert(vcr_vl_bert(subtask)),
        f"vcr-vl-bert-end-to-end-{subtask}": lambda: vcr_vl_bert_end_to_end(
            vcr_vl_bert(subtask), RELEASED_CNN
        ),
        f"vcr-vl-bert-paper-end-to-end-{subtask}": lambda: vcr_vl_bert_end_to_end(
            vcr_vl_bert_paper(subtask), PAPER_CNN
        ),
    }


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
    return shared.task_recipe(
        RefcocoRecipe,
        "refcoco-vl-bert",
        "vl-bert-refcoco",
        config.VlBertRefcocoConfig(body=config.vlbert_for_task(config.vlbert_base())),
        ("vl-bert", "vl-bert-refcoco"),
        stage,
        about="RefCOCO+ with VL-BERT among detected boxes, as released, on stored features",
        needs=f"{shared.REFCOCO_NEEDS}; --init: a pretrained VL-BERT",
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
        model=config.VlBertRefcocoConfig(body=config.vlbert_for_task(config.vlbert_paper())),
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


def refcoco_vl_bert_end_to_end(recipe: TaskRecipe, cnn: config.RegionCnnConfig) -> TaskRecipe:
    """Returns ``recipe`` from pixels: as released the stem and res2 are frozen [code]; the paper
    trains all (sec. 3.4).
    """
    return from_pixels(recipe, config.VlBertEndToEndConfig(model=recipe.model, cnn=cnn))


def refcoco_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    model = config.VlBertRefcocoConfig(
        body=config.vlbert_for_task(config.vlbert_small(dropout=0.0))
    )
    return shared.small_refcoco("refcoco-vl-bert-small", refcoco_vl_bert(), model)


def refcoco_vl_bert_end_to_end_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT and a small network of regions."""
    cnn = small_region_cnn()
    body = config.vlbert_for_task(config.vlbert_small(dropout=0.0, region_width=cnn.feature_width))
    model = config.VlBertEndToEndConfig(model=config.VlBertRefcocoConfig(body=body), cnn=cnn)
    like = from_pixels(refcoco_vl_bert(), model)
    (stage,) = like.stages
    feeding = replace(stage.feeding, short_side=SMALL_PX, long_side=SMALL_PX)
    like = replace(like, stages=(replace(stage, feeding=feeding),))
    return shared.small_refcoco("refcoco-vl-bert-end-to-end-small", like, model)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "vqa": {
        "vqa-vl-bert": vqa_vl_bert,
        "vqa-vl-bert-paper": vqa_vl_bert_paper,
        "vqa-vl-bert-large": vqa_vl_bert_large,
        "vqa-vl-bert-from-bert": vqa_vl_bert_from_bert,
        "vqa-vl-bert-small": vqa_vl_bert_small,
    },
    "vcr": {
        **_vl_bert_recipes("q2a"),
        **_vl_bert_recipes("qa2r"),
        "vcr-vl-bert-small": vcr_vl_bert_small,
        "vcr-vl-bert-end-to-end-small": vcr_vl_bert_end_to_end_small,
    },
    "refcoco": {
        "refcoco-vl-bert": refcoco_vl_bert,
        "refcoco-vl-bert-annotated": lambda: among_annotated(refcoco_vl_bert()),
        "refcoco-vl-bert-paper": refcoco_vl_bert_paper,
        "refcoco-vl-bert-paper-annotated": lambda: among_annotated(refcoco_vl_bert_paper()),
        "refcoco-vl-bert-from-bert": lambda: shared.from_bert(refcoco_vl_bert()),
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
        "refcoco-vl-bert-small": refcoco_vl_bert_small,
        "refcoco-vl-bert-end-to-end-small": refcoco_vl_bert_end_to_end_small,
    },
}
