"""Tasks of VLMo (arXiv:2111.02358, sec. 4.2 and 4.3).

Retrieval is a dual encoder: COCO first, Flickr30k from there. Its contrast is over all pairs of a
step, on any number of processes and parts: on one card with 80 GB ``accumulation=12`` for base on
COCO, ``accumulation=48`` for large. VLMo's code selects the checkpoint with the best mean of the
six recalls on validation, which ``validate_every=N`` does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoNlvr2Config,
    VlmoTextConfig,
    VlmoVqaConfig,
    retrieval,
    text_stage,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.train.recipes.vlmo import EVERYWHERE, vlmo_feeding
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue.settings import GlueRecipe
from vlmill.train.tasks.nlvr2.settings import NUM_IMAGES, Nlvr2Recipe
from vlmill.train.tasks.recipes import shared
from vlmill.train.tasks.retrieval.settings import RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.vqa.settings import VqaRecipe, VqaSettings


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


# VLMo (arXiv:2111.02358, sec. 4.2): images of 480 pixels, positions resized; 10 epochs of 128.

WITHOUT_HEADS = {"contrast": False, "match": False, "mlm": False}


VQA_SIZES: dict[str, tuple[Callable[..., VlmoConfig], float]] = {
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
    make, rate = VQA_SIZES[size]
    paper = size.endswith("-paper")
    head: dict[str, Any] = {} if paper else {"heads": ("classifier.",), "head_rate": 20.0}
    stage = TrainingStage(
        name="vqa",
        epochs=10,
        batch_size=128,
        optimizer=vlmo_task_optimizer(rate, **head),
        feeding=vlmo_feeding(image_size=480),
    )
    encoder = make(image_size=480, drop_path=0.15, **WITHOUT_HEADS)
    return shared.task_recipe(
        VqaRecipe,
        f"vqa-vlmo-{size}",
        "vlmo-vqa",
        VlmoVqaConfig(encoder=encoder, two_layers=not paper),
        ("vlmo", "vlmo-vqa"),
        stage,
        f"VQA 2.0 with VLMo {size.removesuffix('-paper')}, "
        + ("by the paper's text" if paper else "as released"),
        f"{shared.COCO_IMAGES}; --init: a pretrained VLMo",
        settings=VqaSettings(unlabelled=False),
        seed=1,
        precision="fp16",
    )


def vqa_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, on images that are larger than in its pretraining.

    5 patches a side: the spline that resizes positions of 4 does not reach the ends of 6.
    """
    like = vqa_vlmo("base")
    encoder = vlmo_small(image_size=80, **WITHOUT_HEADS)
    feeding = replace(like.stages[0].feeding, image_size=80, max_tokens=None, augment=False)
    return shared.small_vqa(like, VlmoVqaConfig(encoder=encoder), feeding)


# VLMo (arXiv:2111.02358, sec. 4.2): (statement, left) and (statement, right) through the fusion
# encoder, images of 384 pixels, 10 epochs of 128.

TWO_IMAGES = {**WITHOUT_HEADS, "num_images": NUM_IMAGES}


NLVR2_SIZES: dict[str, tuple[Callable[..., VlmoConfig], float, float]] = {  # rate, drop path
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
    make, rate, drop_path = NLVR2_SIZES[size]
    paper = size.endswith("-paper")
    stage = TrainingStage(
        name="nlvr2",
        epochs=10,
        batch_size=128,
        feeding=vlmo_feeding(image_size=image_size),
        optimizer=vlmo_task_optimizer(rate),
    )
    encoder = make(image_size=image_size, drop_path=drop_path, **TWO_IMAGES)
    pixels = "" if image_size == 384 else f"-{image_size}"
    return shared.task_recipe(
        Nlvr2Recipe,
        f"nlvr2-vlmo-{size}{pixels}",
        "vlmo-nlvr2",
        VlmoNlvr2Config(encoder=encoder, two_layers=not paper),
        ("vlmo", "vlmo-nlvr2"),
        stage,
        f"NLVR2 with VLMo {size.removesuffix('-paper')}, "
        + ("by the paper's text" if paper else "as released")
        + (f", {image_size} pixels" if pixels else ""),
        f"{shared.IMAGES_FLAG}; --init: a pretrained VLMo",
        seed=1,
        precision="fp16",
    )


def nlvr2_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, on images that are larger than in its pretraining."""
    like = nlvr2_vlmo("base")
    feeding = replace(like.stages[0].feeding, image_size=80, max_tokens=None, augment=False)
    feeding = replace(feeding, flip=0.0, crop=(1.0, 1.0))
    encoder = vlmo_small(image_size=80, **TWO_IMAGES)
    model = VlmoNlvr2Config(encoder=encoder)
    return shared.small_nlvr2("nlvr2-vlmo-small", like, model, 3e-4, feeding)


GLUE_SIZES: dict[str, tuple[Callable[[], VlmoConfig], float]] = {
    "base": (vlmo_base, 2e-5),
    "large": (vlmo_large, 2e-5),
}


def for_texts(encoder: VlmoConfig, num_tokens: int) -> VlmoConfig:
    """Returns VLMo's encoder as in its second stage, without a head for words."""
    return replace(text_stage(encoder), mlm=False, max_text_tokens=num_tokens)


def glue_vlmo(size: str) -> TaskRecipe:
    """Returns the recipe of VLMo's text experts [choice]: the paper has no such task. The third
    stage's texts are too short (40 tokens), so it starts from the second.
    """
    make, rate = GLUE_SIZES[size]
    return shared.task_recipe(
        GlueRecipe,
        f"glue-vlmo-{size}",
        "vlmo-text",
        VlmoTextConfig(
            encoder=for_texts(make(), shared.GLUE_TOKENS), num_labels=shared.GLUE_LABELS
        ),
        ("vlmo", "vlmo-text"),
        shared.glue_stage(optimizer=Optimizer(lr=rate)),
        f"GLUE with the text experts of VLMo {size}",
        f"{shared.GLUE_TEXTS}; --init: VLMo after its second stage, on texts",
    )


def glue_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, whose texts are short in every stage."""
    encoder = vlmo_small()
    model = VlmoTextConfig(
        encoder=for_texts(encoder, encoder.max_text_tokens),
        num_labels=shared.GLUE_LABELS,
        dropout=0.0,
    )
    return shared.small_glue("glue-vlmo-small", glue_vlmo("base"), model)


COCO, FLICKR = "coco", "flickr30k"


SIZE = 384  # pixels


@dataclass(frozen=True, kw_only=True)
class DualEncoderRun:
    """Holds the values that differ between data sets; ``steps``, or ``epochs`` by the paper."""

    make: Callable[..., VlmoConfig]
    rate: float
    drop_path: float
    batch_size: int = 3072
    steps: int | None = None
    epochs: float | None = None
    image_size: int = SIZE
    # Other captions of an image are negatives of it [code].
    same_picture_negatives: bool = True


def released_runs(make: Callable[..., VlmoConfig], rate: float, coco: float, flickr: float) -> Any:
    """Returns the runs on both data sets, with these shares of dropped paths [code]."""
    return {
        COCO: DualEncoderRun(make=make, rate=rate, drop_path=coco, steps=3000),
        FLICKR: DualEncoderRun(make=make, rate=rate, drop_path=flickr, steps=1500),
    }


def by_paper(
    make: Callable[..., VlmoConfig],
    rates: tuple[float, float],
    coco: float,
    flickr_drop_path: float,
) -> Any:
    """Returns the paper's run: epochs of batches of 2,048; dropped paths are the code's."""
    fields: dict[str, Any] = {"make": make, "batch_size": 2048, "same_picture_negatives": False}
    return {
        COCO: DualEncoderRun(rate=rates[0], drop_path=0.2, epochs=coco, **fields),
        FLICKR: DualEncoderRun(rate=rates[1], drop_path=flickr_drop_path, epochs=40, **fields),
    }


DUAL_ENCODER_RUNS: dict[str, dict[str, DualEncoderRun]] = {
    "base": released_runs(vlmo_base, 3e-5, 0.2, 0.15),
    "base-plus": released_runs(vlmo_base_plus, 3e-5, 0.2, 0.2),
    "large": released_runs(vlmo_large, 2e-5, 0.2, 0.2),
    "base-paper": by_paper(vlmo_base_paper, (2e-5, 1e-5), 20, 0.15),
    "large-paper": by_paper(vlmo_large_paper, (1e-5, 1e-5), 10, 0.2),
}


FROM_PRETRAINING = ("base-plus",)  # on Flickr30k, too [code]


# The ablations of stages, objectives and experts (tables 3 and 4).
ABLATION = DualEncoderRun(
    make=vlmo_base_paper,
    rate=5e-5,
    drop_path=0.15,
    batch_size=1024,
    epochs=10,
    image_size=224,
    same_picture_negatives=False,
)


def dual_encoder_recipe(name: str, run: DualEncoderRun, about: str, start: str) -> TaskRecipe:
    """Returns a run of the dual encoder."""
    stage = TrainingStage(
        name="retrieval",
        steps=run.steps,
        epochs=run.epochs,
        batch_size=run.batch_size,
        feeding=vlmo_feeding(image_size=run.image_size),
        loading=EVERYWHERE,
        optimizer=vlmo_task_optimizer(run.rate),
    )
    return shared.task_recipe(
        RetrievalRecipe,
        name,
        "vlmo",
        retrieval(run.make(image_size=run.image_size, drop_path=run.drop_path)),
        ("vlmo",),
        stage,
        about,
        f"the images; --init: {start}",
        settings=RetrievalSettings(
            negatives="batch", same_picture_negatives=run.same_picture_negatives
        ),
        validation_pairs=5000,
        seed=1,
        precision="fp16",
    )


def retrieval_vlmo(size: str, data: str) -> TaskRecipe:
    """Returns the released recipe, or the one by the paper's text (``-paper``)."""
    plain = size.removesuffix("-paper")
    start = "a pretrained VLMo"
    if data == FLICKR and size not in FROM_PRETRAINING:
        start = f"the run of retrieval-vlmo-{size}-{COCO}"
    origin = "as released" if plain == size else "by the paper's text"
    dataset = {COCO: "COCO", FLICKR: "Flickr30k"}[data]
    about = f"Retrieval with VLMo {plain}, on {dataset}, {origin}"
    return dual_encoder_recipe(
        f"retrieval-vlmo-{size}-{data}", DUAL_ENCODER_RUNS[size][data], about, start
    )


def retrieval_vlmo_ablation() -> TaskRecipe:
    """Returns the run by which the paper's ablations are compared: 224 pixels, from pretraining."""
    about = "Retrieval with VLMo base, on Flickr30k at 224 pixels, as the ablations"
    return dual_encoder_recipe(
        f"retrieval-vlmo-base-{FLICKR}-224", ABLATION, about, "a pretrained VLMo"
    )


def retrieval_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, for trials on a CPU."""
    model = retrieval(vlmo_small())
    like = retrieval_vlmo("base", FLICKR)
    feeding = replace(
        vlmo_feeding(image_size=model.image_size),
        max_tokens=model.max_text_tokens,
        crop=(0.9, 1.0),
        augment=False,
        flip=0.0,
    )
    return shared.for_trials(
        like,
        "retrieval-vlmo-small",
        model,
        "Retrieval with VLMo",
        lr=3e-4,
        batch_size=64,
        feeding=feeding,
        settings=RetrievalSettings(negatives="batch"),
        needs="the images; --init: a pretrained VLMo",
    )


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "vqa": {
        **{f"vqa-vlmo-{size}": partial(vqa_vlmo, size) for size in VQA_SIZES},
        "vqa-vlmo-small": vqa_vlmo_small,
    },
    "nlvr2": {
        **{f"nlvr2-vlmo-{size}": partial(nlvr2_vlmo, size) for size in NLVR2_SIZES},
        "nlvr2-vlmo-base-224": partial(nlvr2_vlmo, "base", 224),
        "nlvr2-vlmo-small": nlvr2_vlmo_small,
    },
    "glue": {
        **{f"glue-vlmo-{size}": partial(glue_vlmo, size) for size in GLUE_SIZES},
        "glue-vlmo-small": glue_vlmo_small,
    },
    "retrieval": {
        **{
            f"retrieval-vlmo-{size}-{data}": partial(retrieval_vlmo, size, data)
            for size, runs in DUAL_ENCODER_RUNS.items()
            for data in runs
        },
        f"retrieval-vlmo-base-{FLICKR}-224": retrieval_vlmo_ablation,
        "retrieval-vlmo-small": retrieval_vlmo_small,
    },
}
