"""ImageBERT (Qi et al., arXiv:2001.07966). The paper has no released code; its open points are
marked [choice].
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vlmill.models.imagebert.config import imagebert_base, imagebert_small
from vlmill.train.recipes.rows import PaperTraining, hour_recipe, small_recipe
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import Recipe, Stage

if TYPE_CHECKING:
    from vlmill.train.recipes.training import VariantTraining

LAIT_PAIRS = 2_000_000  # of its 10 million (sec. 5.2)
GLOBAL_WIDTHS = (1024, 2048, 1024)  # of the networks' vectors, in the order of needs


def imagebert_feeding() -> Feeding:
    """Returns the feeding: 144 positions minus 100 regions (arXiv:2001.07966, sec. 5.2)."""
    return Feeding(max_tokens=44, max_regions=100)


def imagebert_stage(name: str, *sources: str) -> Stage:
    """Returns one stage of all four tasks over pairs of these sources."""
    return Stage(
        name=name,
        sources=sources,
        epochs=17,  # sec. 5.2; read as 17 for each stage [choice]
        batch_size=48,  # sec. 5.2, over all devices
        hard_negative_share=0.0,  # sec. 3.3: random
        feeding=imagebert_feeding(),
        optimizer=Optimizer(lr=1e-4),  # sec. 5.2; the rest of the optimiser is BERT's [choice]
    )


def imagebert() -> Recipe:
    """Returns the best pretraining of the paper: LAIT, then Conceptual Captions and SBU (table 3).

    Weights are carried over between the stages, optimiser and schedule restart [choice].
    """
    return Recipe(
        name="imagebert",
        variant="imagebert",
        model=imagebert_base(),
        stages=(
            replace(imagebert_stage("lait", "lait"), max_pairs=LAIT_PAIRS),
            imagebert_stage("cc-sbu", "cc", "sbu"),
        ),
        about="ImageBERT on LAIT, then on Conceptual Captions and SBU",
        needs="--init from BERT: train-vl convert --family bert --as imagebert-base",
        save_every=10_000,
        log_every=100,
        workers=4,
    )


def without_regression(recipe: Recipe) -> Recipe:
    """Omits regression of masked features, as the paper's rows without MRFR do; its weight is in
    the recipe, and ``objectives.mrfr=1`` is the row with it.
    """
    (stage,) = recipe.stages
    objectives = replace(stage.objectives, mrfr=0.0)
    return replace(recipe, stages=(replace(stage, objectives=objectives),))


def imagebert_one_stage(name: str, about: str, *sources: str) -> Recipe:
    """Returns a row of table 3 with a single stage."""
    return replace(
        imagebert(),
        name=name,
        stages=(imagebert_stage("pairs", *sources),),
        about=f"ImageBERT on {about} (ablation of stages)",
    )


def imagebert_lait() -> Recipe:
    """Returns row 1 of table 3."""
    recipe = imagebert_one_stage("imagebert-lait", "LAIT alone", "lait")
    return replace(recipe, stages=(replace(recipe.stages[0], max_pairs=LAIT_PAIRS),))


def imagebert_cc() -> Recipe:
    """Returns row 2 of table 3, and table 4's without MRFR, which has the same figures."""
    return without_regression(
        imagebert_one_stage("imagebert-cc", "Conceptual Captions alone", "cc")
    )


def imagebert_cc_sbu() -> Recipe:
    """Returns row 3 of table 3."""
    return without_regression(
        imagebert_one_stage("imagebert-cc-sbu", "Conceptual Captions and SBU", "cc", "sbu")
    )


def imagebert_cc_sbu_global() -> Recipe:
    """Returns a row of table 4: row 3 with features of full images added to the regions (sec. 5.3).

    A token for each network [choice], of the widths of DenseNet-121, ResNet-152 and GoogLeNet.
    """
    recipe = imagebert_cc_sbu()
    return replace(
        recipe,
        name="imagebert-cc-sbu-global",
        model=imagebert_base(global_widths=GLOBAL_WIDTHS),
        about="ImageBERT on Conceptual Captions and SBU, with features of full images",
        needs=(
            "regions with global_feature: extract-rois run --global-cnn "
            "densenet121,resnet152,googlenet; --init from BERT: train-vl convert --family bert "
            f"--as imagebert-base global_widths=[{','.join(map(str, GLOBAL_WIDTHS))}]"
        ),
    )


def imagebert_mixed() -> Recipe:
    """Returns row 4 of table 3: all three in one stage, of LAIT the sample in ``--pairs``."""
    recipe = imagebert_one_stage(
        "imagebert-mixed", "LAIT, Conceptual Captions and SBU together", "lait", "cc", "sbu"
    )
    return replace(recipe, needs=f"{LAIT_PAIRS:,} pairs of LAIT; {recipe.needs}")


def imagebert_small_recipe() -> Recipe:
    """Returns a run of minutes on a CPU; hard negatives are used where --negatives are given."""
    return small_recipe(
        "imagebert-small",
        "imagebert",
        imagebert_small(dropout=0.0),
        "ImageBERT for trials on a CPU: minutes for some thousand pairs",
        feeding=imagebert_feeding(),
    )


def imagebert_hour_recipe() -> Recipe:
    """Returns a run of some 20 minutes on one core: R@1 of 0.93 among 500 generated images, by
    24,000 pairs.
    """
    return hour_recipe(imagebert_small_recipe(), steps=4_500)


def variant_trainings() -> dict[str, VariantTraining]:
    """Returns how the variants are trained. Imports torch."""
    from vlmill.train.recipes.training import VariantTraining

    return dict.fromkeys(
        ("imagebert", "imagebert-retrieval"), VariantTraining(feeding=imagebert_feeding)
    )


ROW = PaperTraining(
    variant_trainings=variant_trainings,
    recipes={
        "imagebert-small": imagebert_small_recipe,
        "imagebert-hour": imagebert_hour_recipe,
        "imagebert": imagebert,
        "imagebert-lait": imagebert_lait,
        "imagebert-cc": imagebert_cc,
        "imagebert-cc-sbu": imagebert_cc_sbu,
        "imagebert-cc-sbu-global": imagebert_cc_sbu_global,
        "imagebert-mixed": imagebert_mixed,
    },
)
