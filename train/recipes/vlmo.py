"""VLMo (Bao et al., arXiv:2111.02358): images, then texts, then pairs, each a separate recipe.

The first is BEiT (arXiv:2106.08254, sec. 3.1), and the others start from the run before: ``--init``
of its output. Numbers are from VLMo's section 4.1 where no other source is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmill.models.beit.config import (
    beit_base,
    beit_base_paper,
    beit_base_plus,
    beit_large,
    beit_large_paper,
)
from vlmill.models.registry import find_variant, get_variant
from vlmill.models.vlmo import config
from vlmill.train.recipes.rows import PaperTraining, hour_recipe, say_what_is_new, small_recipe
from vlmill.train.settings.parts import Feeding, Loading, Masking, Objectives, Optimizer
from vlmill.train.settings.spec import Recipe, Stage

if TYPE_CHECKING:
    from vlmill.train.checkpoints.files import LoadedCheckpoint
    from vlmill.train.recipes.training import Labels, VariantTraining


def vlmo_feeding(*, image_size: int = 224) -> Feeding:
    """Returns stage 3's feeding: 40 tokens and RandAugment (arXiv:2111.02358, sec. 4.1); the crop
    is the code's.
    """
    return Feeding(kind="pixels", max_tokens=40, image_size=image_size, flip=0.5)


def vlmo_text_feeding() -> Feeding:
    """Returns stage 2's feeding: text of 196 tokens (sec. 4.1)."""
    return Feeding(kind="text", max_tokens=196)


def vlmo_images_feeding(*, image_size: int = 224, token_size: int = 112) -> Feeding:
    """Returns stage 1's feeding, which is BEiT's: one crop for the model and, at half the size, for
    the tokenizer [code].
    """
    return Feeding(
        kind="pictures",
        image_size=image_size,
        token_size=token_size,
        crop=(0.08, 1.0),
        augment=False,
        jitter=0.4,
        flip=0.5,
    )


def vlmo_masking() -> Masking:
    """Returns the masking: whole words, 15 % of the 40 tokens that a text may have [code]."""
    return Masking(word_rule="budget", mismatched_words=True)


class Chain(NamedTuple):
    """Holds the values that differ between sizes, for the three stages.

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
# instructions state [choice]. By the paper, all have absolute positions and unweighted losses.
CHAINS: dict[str, Chain] = {
    "base": Chain("base", beit_base, config.vlmo_base, 500_000, 2e-4),
    "base-plus": Chain("base-plus", beit_base_plus, config.vlmo_base_plus, 200_000, 1e-4),
    "large": Chain("large", beit_large, config.vlmo_large, 200_000, 5e-5),
    "base-paper": Chain(
        "base by the paper's text", beit_base_paper, config.vlmo_base_paper, 500_000, 2e-4
    ),
    "large-paper": Chain(
        "large by the paper's text", beit_large_paper, config.vlmo_large_paper, 200_000, 5e-5
    ),
}
# Published BEiTs have relative positions; others' second stages start from our own first.
WITH_RELATIVE_POSITIONS = ("base", "large")
# The parameters that the second stage trains, by parts of their names [code]; the paper: all but
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
# Pairs from anywhere: an image's captions, 50 in Visual Genome, are side by side in the table,
# and captions in one batch are candidates of each other.
EVERYWHERE = Loading(block=1)
NOTHING = {"mlm": 0.0, "moc": 0.0, "mrfr": 0.0, "itm": 0.0}


def vlmo_optimizer(lr: float) -> Optimizer:
    """Returns the optimiser of the second and third stage; without clipping, and eps [code]."""
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
    """Returns a recipe with the settings that the published stages share."""
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
    """Returns stage 1: BEiT on ImageNet-22k. The rate is stated for base; else it is [choice]."""
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
    """Returns stage 2: texts alone; attention and vision experts stay as they are (sec. 3.4).

    The code's instructions give 200k steps for base, too.
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
    model = config.text_stage(CHAINS[size].vlmo())
    needs = f"texts (pairs without image_id); {start}"
    return vlmo_recipe(f"vlmo-texts-{size}", model, stage, about, needs)


def vlmo_pairs_stage(lr: float) -> Stage:
    """Returns stage 3 (sec. 3.3); negatives come from the batch."""
    return Stage(
        name="pairs",
        sources=("cc", "sbu", "coco", "vg"),
        steps=200_000,
        batch_size=1024,
        negative_share=0.0,
        feeding=vlmo_feeding(),
        masking=vlmo_masking(),
        loading=EVERYWHERE,
        # A quarter for words is [code]; the paper has no weights.
        objectives=Objectives(mlm=0.25, moc=0.0, mrfr=0.0, itm=1.0, itc=1.0),
        optimizer=vlmo_optimizer(lr),
    )


def vlmo_pairs(size: str) -> Recipe:
    """Returns stage 3 with the released code's weights of losses, or with the paper's, all 1."""
    stage = vlmo_pairs_stage(CHAINS[size].rate)
    if size.endswith("-paper"):
        stage = replace(stage, objectives=replace(stage.objectives, mlm=1.0))
    about = (
        f"VLMo {CHAINS[size].label}, stage 3 of 3: Conceptual Captions, SBU, COCO, Visual Genome"
    )
    needs = f"--images; --init: vlmo-texts-{size}"
    return vlmo_recipe(f"vlmo-{size}", CHAINS[size].vlmo(), stage, about, needs)


def vlmo_small_recipe() -> Recipe:
    """Returns a run of minutes on a CPU, from pairs and images. Images are hardly cropped and
    neither mirrored nor recoloured, for captions may name left and red.
    """
    model = config.vlmo_small()
    return small_recipe(
        "vlmo-small",
        "vlmo",
        model,
        "VLMo for trials on a CPU: minutes for some thousand pairs",
        standardise_features=False,  # it has none
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
    """Returns the recipe of a dual encoder that is trained with the contrastive loss alone. Its
    patches of 8 pixels resolve shapes of a dozen pixels.

    Matching and masked words take three quarters of a step, and neither ranks by vectors.
    """
    hour = hour_recipe(vlmo_small_recipe(), steps=4_000)
    (stage,) = hour.stages
    alone = replace(stage.objectives, mlm=0.0, itm=0.0)
    return replace(
        hour,
        model=config.retrieval(config.vlmo_small(patch_size=8)),
        stages=(replace(stage, batch_size=128, objectives=alone),),
    )


# Ablations (tables 3 and 4): stages, objectives and experts. Without the second stage all experts
# start from BEiT, and the layouts of experts were compared from a ViT; so are the objectives here,
# and all else is the third stage's [choice].

EVERY_LAYER = config.vlmo_base_paper().num_layers  # the first with a vision-language expert: none


def vlmo_base_without_texts() -> Recipe:
    """Returns the run without texts alone: every expert starts from BEiT, and pairs follow."""
    return replace(
        vlmo_pairs("base"),
        name="vlmo-base-without-texts",
        about="VLMo base without stage 2 (ablation of stages)",
        needs="--images; --init: train-vl convert --family beit --as vlmo-base experts=all",
    )


def from_vit(
    name: str,
    about: str,
    *,
    mlm: bool = True,
    itm: bool = True,
    model: dict[str, Any] | None = None,
) -> Recipe:
    """Returns a run from a ViT: objectives with the contrast, and the ``model``'s fields."""
    recipe = vlmo_pairs("base-paper")
    stage, fields = recipe.stages[0], model or {}
    objectives = replace(stage.objectives, mlm=float(mlm), itm=float(itm))
    assignments = "".join(f" {field}={value}".lower() for field, value in fields.items())
    start = f"train-vl convert --family vit --as vlmo-base-paper experts=all{assignments}"
    return replace(
        recipe,
        name=name,
        model=config.vlmo_base_paper(mlm=mlm, match=itm, **fields),
        stages=(replace(stage, objectives=objectives),),
        about=f"VLMo base from a ViT, {about} (ablation)",
        needs=f"--images; --init: {start}",
    )


# All of these are compared with the first.
FROM_VIT: dict[str, Callable[[], Recipe]] = {
    name: partial(from_vit, name, about, **changes)
    for name, about, changes in (
        ("vlmo-vit", "all objectives and experts", dict[str, Any]()),
        ("vlmo-vit-itc", "contrast alone", {"mlm": False, "itm": False}),
        ("vlmo-vit-itc-mlm", "contrast and masked words", {"itm": False}),
        ("vlmo-vit-itc-itm", "contrast and matching", {"mlm": False}),
        # The standard Transformer.
        (
            "vlmo-vit-standard",
            "one feed-forward part for all",
            {"model": {"modality_experts": False, "first_vl_layer": EVERY_LAYER}},
        ),
        # A language and a vision expert in every layer.
        (
            "vlmo-vit-without-vl-experts",
            "without vision-language experts",
            {"model": {"first_vl_layer": EVERY_LAYER}},
        ),
    )
}


def start_stage(fresh: Any, init: LoadedCheckpoint) -> None:
    """Starts VLMo's next stage from a stage before, or from BEiT."""
    from vlmill.models.from_beit import initialise_from_beit
    from vlmill.models.published import export_reference
    from vlmill.models.vlmo.stages import start_from

    if init.variant == "beit":
        origins = initialise_from_beit(fresh, export_reference("beit", init.model))
        say_what_is_new(sorted(name for name, origin in origins.items() if not origin.names))
    else:
        say_what_is_new(sorted(start_from(fresh, init.model.state_dict(), fresh.config)))


def start_task(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """Copies the encoder, its positions resized; the classifier is always new (the code). A dual
    encoder has the first contrastive pair.
    """
    from vlmill.models.vlmo.stages import start_from

    encoder = get_variant(find_variant(fresh)).get_body(fresh.config)
    say_what_is_new(sorted(start_from(fresh, init.model.state_dict(), encoder)))


def variant_trainings() -> dict[str, VariantTraining]:
    """Returns how the variants are trained. Imports torch."""
    from vlmill.train.objectives.pretraining import image_losses, vlmo_losses
    from vlmill.train.recipes.training import VariantTraining, copy_weights

    return {
        "beit": VariantTraining(losses=image_losses, start=copy_weights),
        "vlmo": VariantTraining(
            losses=vlmo_losses, feeding=vlmo_feeding, start=start_stage, start_task=start_task
        ),
        **dict.fromkeys(
            ("vlmo-nlvr2", "vlmo-text", "vlmo-vqa"),
            VariantTraining(start=start_stage, start_task=start_task),
        ),
    }


ROW = PaperTraining(
    variant_trainings=variant_trainings,
    recipes={
        "vlmo-small": vlmo_small_recipe,
        "vlmo-hour": vlmo_hour_recipe,
        **{f"vlmo-images-{size}": partial(vlmo_images, size) for size in CHAINS},
        **{f"vlmo-texts-{size}": partial(vlmo_texts, size) for size in CHAINS},
        **{f"vlmo-{size}": partial(vlmo_pairs, size) for size in CHAINS},
        "vlmo-base-without-texts": vlmo_base_without_texts,
        **FROM_VIT,
    },
)
