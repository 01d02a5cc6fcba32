"""VLMo's ablations (arXiv:2111.02358, tables 3 and 4): its stages, objectives and experts.

Without the second stage all experts start from BEiT, and the layouts of experts were compared from
a ViT; so are the objectives here, and all else is the third stage's [choice].
"""

from dataclasses import replace
from typing import Any

from vlmill.models.vlmo.config import vlmo_base_paper
from vlmill.train.recipes.spec import Recipe
from vlmill.train.recipes.vlmo import vlmo_pairs

EVERY_LAYER = vlmo_base_paper().num_layers  # the first with a vision-language expert: none


def vlmo_base_without_texts() -> Recipe:
    """Without texts alone: every expert starts from BEiT, and pairs follow."""
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
    """A run that starts from a ViT: objectives beside contrast, and the ``model``'s fields."""
    recipe = vlmo_pairs("base-paper")
    stage, fields = recipe.stages[0], model or {}
    objectives = replace(stage.objectives, mlm=float(mlm), itm=float(itm))
    assignments = "".join(f" {field}={value}".lower() for field, value in fields.items())
    start = f"train-vl convert --family vit --as vlmo-base-paper experts=all{assignments}"
    return replace(
        recipe,
        name=name,
        model=vlmo_base_paper(mlm=mlm, match=itm, **fields),
        stages=(replace(stage, objectives=objectives),),
        about=f"VLMo base from a ViT, {about} (ablation)",
        needs=f"--images; --init: {start}",
    )


def vlmo_vit() -> Recipe:
    """All of it, what the others are compared with."""
    return from_vit("vlmo-vit", "all objectives and experts")


def vlmo_vit_itc() -> Recipe:
    """Contrast alone."""
    return from_vit("vlmo-vit-itc", "contrast alone", mlm=False, itm=False)


def vlmo_vit_itc_mlm() -> Recipe:
    """Without matching."""
    return from_vit("vlmo-vit-itc-mlm", "contrast and masked words", itm=False)


def vlmo_vit_itc_itm() -> Recipe:
    """Without masked words."""
    return from_vit("vlmo-vit-itc-itm", "contrast and matching", mlm=False)


def vlmo_vit_standard() -> Recipe:
    """The standard Transformer: one feed-forward part for all."""
    fields = {"modality_experts": False, "first_vl_layer": EVERY_LAYER}
    return from_vit("vlmo-vit-standard", "one feed-forward part for all", model=fields)


def vlmo_vit_without_vl_experts() -> Recipe:
    """A language and a vision expert in every layer, none for both."""
    return from_vit(
        "vlmo-vit-without-vl-experts",
        "without vision-language experts",
        model={"first_vl_layer": EVERY_LAYER},
    )
