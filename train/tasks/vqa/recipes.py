"""VQA 2.0 as each paper and each released code fine-tunes it.

[code] marks released code, [choice] ours. Published runs train on train and val except for the
questions that they validate on: name splits with ``train_splits`` and ``validation_splits``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from vlmill.models.vilbert.config import (
    VilbertTasksConfig,
    vilbert_base,
    vilbert_small,
)
from vlmill.models.vlbert.config import (
    VlBertVqaConfig,
    vlbert_base,
    vlbert_for_task,
    vlbert_large,
    vlbert_paper,
    vlbert_small,
)
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoVqaConfig,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.schemas.answers import MIN_QUESTIONS
from vlmill.train.recipes.fine_tuning import (
    for_trials,
    from_bert,
    on_single_stream,
    task_recipe,
    vilbert_paper,
    vilbert_task_optimizer,
    vlmo_task_optimizer,
)
from vlmill.train.recipes.vilbert import vilbert_feeding
from vlmill.train.recipes.vlbert import vlbert_feeding
from vlmill.train.recipes.vlmo import vlmo_feeding
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe


@dataclass(frozen=True, kw_only=True)
class VqaSettings:
    """Holds the fields that only VQA has."""

    # Each answer is right or wrong with soft scores, summed over the answers (all codes), or
    # the answer of most annotators among all (VL-BERT's paper).
    loss: Literal["binary", "softmax"] = "binary"
    # Whether questions without an answer among the labels teach: the target is 0 for each label
    # (ViLBERT, VL-BERT), or nothing is learnt (VLMo). A softmax has nothing to learn of them.
    unlabelled: bool = True
    # "left" and "right" are swapped in the texts of mirrored images (VL-BERT's code).
    mirror_words: bool = False
    # The questions that an answer needs to be a label, if neither --init nor --labels has a list.
    min_questions: int = MIN_QUESTIONS

    def __post_init__(self) -> None:
        if self.min_questions < 1:
            raise ValueError(f"settings.min_questions={self.min_questions}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class VqaRecipe(TaskRecipe):
    """Describes a run of VQA."""

    published: ClassVar[dict[str, Any]] = {"validation_pairs": 10_000}
    task: str = "vqa"
    settings: VqaSettings = field(default_factory=VqaSettings)


REGIONS = "regions of COCO's images, 10 to 100 each"
IMAGES = "COCO's images"
ANSWER_HEAD = "answer_head."  # ViLBERT's


# ViLBERT (arXiv:1908.02265, sec. 3.3): two layers on the pooled vectors of both streams; the summed
# binary cross-entropy of 3,129 answers with soft scores; batch 256, 20 epochs, rate 4e-5.


def vilbert_vqa_feeding() -> Feeding:
    """Returns the feeding: 16 tokens and 100 regions, the full image among them [code]."""
    return replace(vilbert_feeding(), max_tokens=16, max_regions=99, region_targets="class")


def vilbert_vqa_stage() -> TrainingStage:
    """Returns the released run."""
    head = {"heads": (ANSWER_HEAD,), "head_rate": 2.5}  # 1e-4 [code]
    return TrainingStage(
        name="vqa",
        epochs=20,
        epoch_steps="ceil",
        batch_size=256,
        feeding=vilbert_vqa_feeding(),
        optimizer=vilbert_task_optimizer(4e-5, **head),
    )


def vqa_vilbert() -> TaskRecipe:
    """Returns the released recipe: the last epoch counts, nothing is chosen by validation."""
    return task_recipe(
        VqaRecipe,
        "vqa-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base()),
        ("vilbert", "vilbert-tasks"),
        vilbert_vqa_stage(),
        "VQA 2.0 with ViLBERT, as released",
        f"{REGIONS}; --init: a pretrained ViLBERT",
    )


# VL-BERT (arXiv:1908.08530, sec. 4.2): the answer is read from a [MASK] after the question.


def vlbert_vqa_feeding() -> Feeding:
    """Returns the feeding: questions in full, 100 regions, boxes mirrored half the time [code]."""
    return replace(
        vlbert_feeding(), max_tokens=None, max_elements=None, region_targets="class", flip=0.5
    )


def vlbert_vqa_optimizer(lr: float, warmup_steps: int) -> Optimizer:
    """Returns the optimiser [code]: decay on everything, clipped at 1, steps counted from 1."""
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
    return task_recipe(
        VqaRecipe,
        "vqa-vl-bert",
        "vl-bert-vqa",
        VlBertVqaConfig(body=vlbert_for_task(vlbert_base())),
        ("vl-bert", "vl-bert-vqa"),
        stage,
        "VQA 2.0 with VL-BERT, as released",
        f"{REGIONS}; --init: a pretrained VL-BERT on regions",
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
        model=VlBertVqaConfig(body=vlbert_for_task(vlbert_paper())),
        stages=(stage,),
        settings=VqaSettings(loss="softmax"),
        about="VQA 2.0 with VL-BERT, by the paper's text",
    )


def vqa_vl_bert_from_bert() -> TaskRecipe:
    """Returns the recipe from BERT alone, 20 epochs: five suffice only after pretraining (the
    code's author).
    """
    recipe = from_bert(vqa_vl_bert())
    return replace(recipe, stages=(replace(recipe.stages[0], epochs=20),))


def vqa_vl_bert_large() -> TaskRecipe:
    """Returns the released settings of the large model: as base, in four parts."""
    recipe = vqa_vl_bert()
    return replace(
        recipe,
        name="vqa-vl-bert-large",
        model=VlBertVqaConfig(body=vlbert_for_task(vlbert_large())),
        stages=(replace(recipe.stages[0], accumulation=4),),
        about="VQA 2.0 with VL-BERT large, as released",
    )


# VLMo (arXiv:2111.02358, sec. 4.2): images of 480 pixels, positions resized; 10 epochs of 128.

WITHOUT_HEADS = {"contrast": False, "match": False, "mlm": False}
VLMO_SIZES: dict[str, tuple[Callable[..., VlmoConfig], float]] = {
    "base": (vlmo_base, 3e-5),
    "base-plus": (vlmo_base_plus, 3e-5),  # [code]
    "large": (vlmo_large, 1.5e-5),
    "base-paper": (vlmo_base_paper, 3e-5),
    "large-paper": (vlmo_large_paper, 1.5e-5),
}


def vqa_vlmo(size: str) -> TaskRecipe:
    """Returns the released recipe, a classifier of two layers at 20 times the rate; by the paper
    (``-paper``), one layer on [T_CLS] at the same rate.
    """
    make, rate = VLMO_SIZES[size]
    paper = size.endswith("-paper")
    head: dict[str, Any] = {} if paper else {"heads": ("classifier.",), "head_rate": 20.0}
    stage = TrainingStage(
        name="vqa",
        epochs=10,
        batch_size=128,
        feeding=vlmo_feeding(image_size=480),
        optimizer=vlmo_task_optimizer(rate, **head),
    )
    encoder = make(image_size=480, drop_path=0.15, **WITHOUT_HEADS)
    return task_recipe(
        VqaRecipe,
        f"vqa-vlmo-{size}",
        "vlmo-vqa",
        VlmoVqaConfig(encoder=encoder, two_layers=not paper),
        ("vlmo", "vlmo-vqa"),
        stage,
        f"VQA 2.0 with VLMo {size.removesuffix('-paper')}, "
        + ("by the paper's text" if paper else "as released"),
        f"{IMAGES}; --init: a pretrained VLMo",
        settings=VqaSettings(unlabelled=False),
        seed=1,
        precision="fp16",
    )


# For trials on a CPU.


def small_vqa(like: TaskRecipe, model: Any, feeding: Feeding | None = None) -> TaskRecipe:
    """Returns the recipe for trials, based on a published one."""
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


def vqa_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, classifier_dropout=0.1, dropout=0.0)
    return small_vqa(vqa_vilbert(), model)


def vqa_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    model = VlBertVqaConfig(body=vlbert_for_task(vlbert_small(dropout=0.0)), dropout=0.0)
    return small_vqa(vqa_vl_bert(), model)


def vqa_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, on images that are larger than in its pretraining.

    5 patches a side: the spline that resizes positions of 4 does not reach the ends of 6.
    """
    like = vqa_vlmo("base")
    encoder = vlmo_small(image_size=80, **WITHOUT_HEADS)
    feeding = replace(like.stages[0].feeding, image_size=80, max_tokens=None, augment=False)
    return small_vqa(like, VlmoVqaConfig(encoder=encoder), feeding)


RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "vqa-vilbert": vqa_vilbert,
    "vqa-vilbert-paper": lambda: vilbert_paper(vqa_vilbert()),
    "vqa-vilbert-from-bert": lambda: from_bert(vqa_vilbert()),
    "vqa-single-stream": lambda: on_single_stream(vqa_vilbert()),
    "vqa-single-stream-from-bert": lambda: from_bert(on_single_stream(vqa_vilbert())),
    "vqa-vl-bert": vqa_vl_bert,
    "vqa-vl-bert-paper": vqa_vl_bert_paper,
    "vqa-vl-bert-large": vqa_vl_bert_large,
    "vqa-vl-bert-from-bert": vqa_vl_bert_from_bert,
    **{f"vqa-vlmo-{size}": partial(vqa_vlmo, size) for size in VLMO_SIZES},
    "vqa-vilbert-small": vqa_vilbert_small,
    "vqa-vl-bert-small": vqa_vl_bert_small,
    "vqa-vlmo-small": vqa_vlmo_small,
}
