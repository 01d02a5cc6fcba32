"""VLMo (Bao et al., arXiv:2111.02358): images, then texts, then pairs, each a recipe of its own.

The first is BEiT (arXiv:2106.08254, sec. 3.1), and the others start from the run before: ``--init``
of its output. Numbers stand in VLMo's section 4.1 where no other source is named.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from vlmill.models.beit.config import (
    beit_base,
    beit_base_paper,
    beit_base_plus,
    beit_large,
    beit_large_paper,
)
from vlmill.models.vlmo.config import (
    retrieval,
    text_stage,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.train.recipes.feeding import (
    vlmo_feeding,
    vlmo_images_feeding,
    vlmo_masking,
    vlmo_text_feeding,
)
from vlmill.train.recipes.parts import Loading, Objectives, Optimizer
from vlmill.train.recipes.small import hour_recipe, small_recipe
from vlmill.train.recipes.spec import Recipe, Stage


class Chain(NamedTuple):
    """What the three stages of a size differ in from another size's.

    ``beit`` and ``vlmo`` give the models, ``text_steps`` is the second stage's length, ``rate`` the
    third stage's peak.
    """

    label: str
    beit: Callable[[], Any]
    vlmo: Callable[[], Any]
    text_steps: int
    rate: float


# The large model's second stage has base's rate [choice]. Nothing is published of base-plus but its
# sizes and the rates of the code: its first stage is base's, its second as long as the code's
# instructions say [choice]. By the paper, all have absolute positions and unweighted losses.
CHAINS: dict[str, Chain] = {
    "base": Chain("base", beit_base, vlmo_base, 500_000, 2e-4),
    "base-plus": Chain("base-plus", beit_base_plus, vlmo_base_plus, 200_000, 1e-4),
    "large": Chain("large", beit_large, vlmo_large, 200_000, 5e-5),
    "base-paper": Chain(
        "base by the paper's text", beit_base_paper, vlmo_base_paper, 500_000, 2e-4
    ),
    "large-paper": Chain(
        "large by the paper's text", beit_large_paper, vlmo_large_paper, 200_000, 5e-5
    ),
}
# Published BEiTs have relative positions; others' second stages start from our own first.
WITH_RELATIVE_POSITIONS = ("base", "large")
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
# Pairs from anywhere: an image's captions, 50 in Visual Genome, lie side by side in the table, and
# those of one batch are candidates of each other.
EVERYWHERE = Loading(block=1)
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


def vlmo_images(size: str) -> Recipe:
    """Stage 1: BEiT on ImageNet-22k. The rate is stated for base alone, for the others [choice]."""
    stage = Stage(
        name="pictures",
        epochs=150,  # BEiT, sec. 3.1
        batch_size=2048,
        negative_share=0.0,
        feeding=vlmo_images_feeding(),
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
    about = f"VLMo {CHAINS[size].label}, stage 1 of 3: BEiT on ImageNet-22k"
    needs = "--images alone; picture_tokenizer=FILE (DALL-E's encoder)"
    recipe = vlmo_recipe(f"vlmo-images-{size}", CHAINS[size].beit(), stage, about, needs)
    return replace(recipe, variant="beit")


def vlmo_texts(size: str) -> Recipe:
    """Stage 2: texts alone; attention and vision experts stay as they are (sec. 3.4).

    The code's instructions say 200k steps for base, too.
    """
    stage = Stage(
        name="texts",
        steps=CHAINS[size].text_steps,
        batch_size=1024,
        trained=TRAINED_ON_TEXT,
        negative_share=0.0,
        feeding=vlmo_text_feeding(),
        masking=vlmo_masking(),
        objectives=Objectives(**NOTHING, text_mlm=1.0),
        optimizer=vlmo_optimizer(2e-4),
    )
    about = f"VLMo {CHAINS[size].label}, stage 2 of 3: Wikipedia and BookCorpus"
    start = f"--init: vlmo-images-{size}"
    if size in WITH_RELATIVE_POSITIONS:
        start += " or a published BEiT"
    model = text_stage(CHAINS[size].vlmo())
    needs = f"texts (pairs without image_id); {start}"
    return vlmo_recipe(f"vlmo-texts-{size}", model, stage, about, needs)


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
        loading=EVERYWHERE,
        # A quarter for words is [code]; the paper weighs nothing.
        objectives=Objectives(mlm=0.25, moc=0.0, mrfr=0.0, itm=1.0, itc=1.0),
        optimizer=vlmo_optimizer(lr),
    )


def vlmo_pairs(size: str) -> Recipe:
    """Stage 3 with the released code's weights of losses, or the paper's, which are all 1."""
    stage = vlmo_pairs_stage(CHAINS[size].rate)
    if size.endswith("-paper"):
        stage = replace(stage, objectives=replace(stage.objectives, mlm=1.0))
    about = (
        f"VLMo {CHAINS[size].label}, stage 3 of 3: Conceptual Captions, SBU, COCO, Visual Genome"
    )
    needs = f"--images; --init: vlmo-texts-{size}"
    return vlmo_recipe(f"vlmo-{size}", CHAINS[size].vlmo(), stage, about, needs)


def vlmo_small_recipe() -> Recipe:
    """Minutes on a CPU, from pairs and images. Images are hardly cropped and neither mirrored
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
        loading=EVERYWHERE,
        objectives=Objectives(mlm=0.25, moc=0.0, mrfr=0.0, itm=1.0, itc=1.0),
        optimizer=Optimizer(lr=1e-3),
    )


def vlmo_hour_recipe() -> Recipe:
    """A dual encoder by contrast alone, with patches of 8 pixels, in which shapes of a dozen show.

    Matching and masked words take three quarters of a step, and neither ranks by vectors.
    """
    hour = hour_recipe(vlmo_small_recipe(), steps=4_000)
    (stage,) = hour.stages
    alone = replace(stage.objectives, mlm=0.0, itm=0.0)
    return replace(
        hour,
        model=retrieval(vlmo_small(patch_size=8)),
        stages=(replace(stage, batch_size=128, objectives=alone),),
    )
