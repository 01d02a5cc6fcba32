"""VLMo (Bao et al., arXiv:2111.02358): pictures, then texts, then pairs, each a recipe of its own.

The first is BEiT (arXiv:2106.08254, sec. 3.1), and the others start from the run before: ``--init``
of its output. Numbers stand in VLMo's section 4.1 where no other source is named.
"""

from dataclasses import replace
from typing import Literal

from vlmill.models.beit.config import beit_base, beit_large
from vlmill.models.vlmo.config import text_stage, vlmo_base, vlmo_base_paper, vlmo_large, vlmo_small
from vlmill.train.recipes.feeding import (
    vlmo_feeding,
    vlmo_masking,
    vlmo_pictures_feeding,
    vlmo_text_feeding,
)
from vlmill.train.recipes.small import small_recipe
from vlmill.train.recipes.spec import Objectives, Optimizer, Recipe, Stage

Size = Literal["base", "large"]
# What the second stage trains, by parts of parameters' names [code]; the paper says everything but
# attention and vision experts. The final norm is new there, so it has to learn.
TRAINED_ON_TEXT = (
    "text_embedding.",
    "type_table.",
    "expert_norms.text.",
    "experts.text.",
    "mlm_head.",
    "mlm_decoder.",
    "relative.table",
    "encoder.norm.",
)
NOTHING = {"mlm": 0.0, "moc": 0.0, "mrfr": 0.0, "itm": 0.0}


def vlmo_optimizer(lr: float) -> Optimizer:
    """Of the second and third stage; without clipping, and eps [code]."""
    return Optimizer(
        kind="transformers-adamw",
        lr=lr,
        beta2=0.98,
        decay="vlmo",  # [code], with side effects that its names have
        eps=1e-8,
        clip=0.0,
        warmup_steps=2500,
    )


def vlmo_recipe(name: str, model: object, stage: Stage, about: str, needs: str) -> Recipe:
    """What the published stages share."""
    return Recipe(
        name=name,
        variant="vlmo",
        model=model,
        stages=(stage,),
        about=about,
        needs=needs,
        seed=1,  # [code]
        save_every=5000,
        log_every=100,
        workers=4,
        precision="fp16",  # [code]
    )


def vlmo_images(size: Size) -> Recipe:
    """Stage 1: BEiT on ImageNet-22k. The rate is stated for base alone, for large a [choice]."""
    stage = Stage(
        name="pictures",
        epochs=150,  # BEiT, sec. 3.1
        batch_size=2048,
        negative_share=0.0,
        feeding=vlmo_pictures_feeding(),
        objectives=Objectives(**NOTHING, mim=1.0),
        optimizer=Optimizer(
            lr=1.5e-3,
            eps=1e-8,
            weight_decay=0.05,
            decay="beit",
            clip=3.0,
            schedule="cosine",
            warmup_steps=10_000,  # [code]
            end=1e-5 / 1.5e-3,
        ),
    )
    model = beit_base() if size == "base" else beit_large()
    about = f"VLMo {size}, stage 1 of 3: BEiT on ImageNet-22k"
    needs = "--images; picture_tokenizer=FILE (DALL-E's encoder)"
    return replace(vlmo_recipe(f"vlmo-images-{size}", model, stage, about, needs), variant="beit")


def vlmo_images_base() -> Recipe:
    """Base."""
    return vlmo_images("base")


def vlmo_images_large() -> Recipe:
    """Large."""
    return vlmo_images("large")


def vlmo_texts(size: Size) -> Recipe:
    """Stage 2: texts alone; attention and vision experts stay as they are (sec. 3.4).

    The rate of the large model is not stated: base's [choice]. The code's instructions say 200k
    steps for base, too.
    """
    stage = Stage(
        name="texts",
        steps=500_000 if size == "base" else 200_000,
        batch_size=1024,
        trained=TRAINED_ON_TEXT,
        negative_share=0.0,
        feeding=vlmo_text_feeding(),
        masking=vlmo_masking(),
        objectives=Objectives(**NOTHING, text_mlm=1.0),
        optimizer=vlmo_optimizer(2e-4),
    )
    model = text_stage(vlmo_base() if size == "base" else vlmo_large())
    about = f"VLMo {size}, stage 2 of 3: Wikipedia and BookCorpus"
    needs = f"texts (pairs without image_id); --init: vlmo-images-{size} or a published BEiT"
    return vlmo_recipe(f"vlmo-texts-{size}", model, stage, about, needs)


def vlmo_texts_base() -> Recipe:
    """Base."""
    return vlmo_texts("base")


def vlmo_texts_large() -> Recipe:
    """Large."""
    return vlmo_texts("large")


def vlmo_pairs_stage(lr: float) -> Stage:
    """Stage 3 (sec. 3.3); negatives come from the batch."""
    return Stage(
        name="pairs",
        sources=("cc", "sbu", "coco", "vg"),
        steps=200_000,
        batch_size=1024,
        negative_share=0.0,
        feeding=vlmo_feeding(),
        masking=vlmo_masking(),
        # A quarter for words is [code]; the paper weighs nothing.
        objectives=Objectives(mlm=0.25, moc=0.0, mrfr=0.0, itm=1.0, itc=1.0),
        optimizer=vlmo_optimizer(lr),
    )


def vlmo_pairs(size: Size) -> Recipe:
    """Stage 3 with the released code's model and weights of losses."""
    model = vlmo_base() if size == "base" else vlmo_large()
    stage = vlmo_pairs_stage(2e-4 if size == "base" else 5e-5)
    about = f"VLMo {size}, stage 3 of 3: Conceptual Captions, SBU, COCO, Visual Genome"
    return vlmo_recipe(f"vlmo-{size}", model, stage, about, f"--images; --init: vlmo-texts-{size}")


def vlmo_base_recipe() -> Recipe:
    """Base."""
    return vlmo_pairs("base")


def vlmo_large_recipe() -> Recipe:
    """Large."""
    return vlmo_pairs("large")


def vlmo_base_paper_recipe() -> Recipe:
    """By the paper: absolute positions, one contrastive pair, losses unweighted.

    For its stages before, `vlmo-images-base` and `vlmo-texts-base` with the same positions.
    """
    stage = vlmo_pairs_stage(2e-4)
    stage = replace(stage, objectives=replace(stage.objectives, mlm=1.0))
    return replace(
        vlmo_pairs("base"),
        name="vlmo-base-paper",
        model=vlmo_base_paper(),
        stages=(stage,),
        about="VLMo base, stage 3 of 3, by the paper's text",
        needs="--images; --init: a second stage with absolute positions",
    )


def vlmo_small_recipe() -> Recipe:
    """Minutes on a CPU, from pairs and pictures. Pictures are hardly cropped and neither mirrored
    nor recoloured, for captions may say left and red."""
    model = vlmo_small()
    return small_recipe(
        "vlmo-small",
        "vlmo",
        model,
        "VLMo for trials on a CPU: minutes for some thousand pairs",
        standardise_features=False,  # it reads none
        negative_share=0.0,
        feeding=replace(
            vlmo_feeding(image_size=model.image_size),
            max_tokens=model.max_text_tokens,
            crop=(0.9, 1.0),
            augment=False,
            flip=0.0,
        ),
        masking=vlmo_masking(),
        objectives=Objectives(mlm=0.25, moc=0.0, mrfr=0.0, itm=1.0, itc=1.0),
        optimizer=Optimizer(lr=1e-3),
    )
