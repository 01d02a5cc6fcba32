"""InterBERT (Lin et al., arXiv:2003.13198): the paper's runs, and the released code's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vlmill.models.interbert import config
from vlmill.train.recipes.rows import PaperTraining, hour_recipe, small_recipe
from vlmill.train.settings.parts import Feeding, Masking, Objectives, Optimizer
from vlmill.train.settings.spec import Recipe, Stage

if TYPE_CHECKING:
    from vlmill.train.recipes.training import VariantTraining

BERT = "--init from BERT: train-vl convert --family bert --as"
CLASSES = Objectives(mlm=1.0, moc=1.0, mrfr=0.0, itm=1.0)  # equal weights [code]


def interbert_feeding(*, released: bool = False) -> Feeding:
    """Returns the feeding: 36 tokens and 36 regions [code]; the class as target in the paper, its
    distribution in the code.
    """
    return Feeding(
        max_tokens=36,
        max_regions=36,
        whole_image="mean",
        region_targets="distribution" if released else "class",
    )


def interbert_retrieval_feeding() -> Feeding:
    """Returns fine-tuning's feeding: 30 tokens [code], up to 100 regions (arXiv:2003.13198, sec.
    4).
    """
    return replace(interbert_feeding(), max_tokens=30, max_regions=100)


def interbert_masking(*, released: bool = False) -> Masking:
    """Returns the masking: segments and groups around anchors of 10 % (arXiv:2003.13198, sec. 3.2).

    The code masks one span of any length, and counts boxes with their last pixel.
    """
    return Masking(
        words=0.10,
        regions=0.10,
        region_to_zero=1.0,
        word_rule="span" if released else "segments",
        region_rule="groups",
        group_pixels=released,
        mismatched_words=True,
    )


def interbert_stage() -> Stage:
    """Returns the paper's run on three data sets (sec. 4.1)."""
    return Stage(
        name="cc-sbu-coco",
        sources=("cc", "sbu", "coco"),
        epochs=20,  # sec. 4.2
        epoch_steps="floor",  # [code]
        batch_size=512,  # sec. 4.2
        negative_text_share=1.0,  # [code]: captions are replaced, not images
        hard_negative_share=0.2,  # sec. 3.2: of the negatives, from TF-IDF's hard ones
        feeding=interbert_feeding(),
        masking=interbert_masking(),
        objectives=CLASSES,
        # Sec. 4.2. Clipping is BERT's [choice].
        optimizer=Optimizer(lr=1e-4, beta2=0.9999, warmup_steps=10_000),
    )


def interbert() -> Recipe:
    """Returns the paper's full run: masked segments and groups, and hard negatives."""
    return Recipe(
        name="interbert",
        variant="interbert",
        model=config.interbert_paper(),
        stages=(interbert_stage(),),
        about="InterBERT on Conceptual Captions, SBU and COCO, by the paper",
        needs=f"--negatives; {BERT} interbert-paper",
        save_every=5000,
        log_every=100,
        workers=4,
    )


def interbert_random_negatives() -> Recipe:
    """Returns the run without hard negatives (table 5)."""
    return replace(
        interbert(),
        name="interbert-random-negatives",
        stages=(replace(interbert_stage(), hard_negative_share=0.0),),
        about="InterBERT without hard negatives (ablation)",
        needs=f"{BERT} interbert-paper",
    )


def interbert_single_masks() -> Recipe:
    """Returns the run without masked groups: words and regions are masked separately (table 4)."""
    return replace(
        interbert(),
        name="interbert-single-masks",
        stages=(replace(interbert_stage(), masking=Masking(mismatched_words=True)),),
        about="InterBERT without masked segments and groups (ablation)",
    )


def interbert_without_bert() -> Recipe:
    """Returns the run from random weights (ablation on VCR): no ``--init``."""
    return replace(
        interbert(),
        name="interbert-without-bert",
        about="InterBERT from random weights (ablation)",
        needs="--negatives",
    )


def interbert_single_stream_recipe() -> Recipe:
    """Returns the run without extraction modules, trained identically (the text tasks'
    baseline).
    """
    return replace(
        interbert(),
        name="interbert-single-stream",
        model=config.interbert_single_stream(),
        about="InterBERT without extraction modules, the single-stream baseline",
        needs=f"--negatives; {BERT} interbert-single-stream",
    )


def interbert_released_recipe() -> Recipe:
    """Returns the released code's run: depth, one masked span, distributions, BertAdam, random
    negatives.
    """
    stage = replace(
        interbert_stage(),
        epochs=15,
        hard_negative_share=0.0,
        feeding=interbert_feeding(released=True),
        masking=interbert_masking(released=True),
        objectives=Objectives(mlm=1.0, moc=0.0, mrkl=1.0, mrfr=0.0, itm=1.0),
        # Decay on biases and norms alone is the scripts' mistake.
        optimizer=Optimizer(kind="bert-adam", lr=1e-4, bert_rate=0.1, decay="inverted", warmup=0.1),
    )
    return replace(
        interbert(),
        name="interbert-released",
        model=config.interbert_released(),
        stages=(stage,),
        about="InterBERT on Conceptual Captions, SBU and COCO, as released",
        needs=f"regions with distributions of classes; {BERT} interbert-released",
    )


def interbert_chinese_recipe() -> Recipe:
    """Returns TaoMultimodal's run (sec. 5): titles of 36 characters, at most 16 regions. The rest
    as in sec. 4 [choice].
    """
    stage = replace(
        interbert_stage(),
        name="tao",
        sources=("tao",),
        feeding=replace(interbert_feeding(), max_tokens=38, max_regions=16),
    )
    return replace(
        interbert(),
        name="interbert-chinese",
        model=config.interbert_chinese(),
        stages=(stage,),
        about="Chinese InterBERT on TaoMultimodal",
        needs=f"--negatives; regions of a detector of Taobao's 33 classes; {BERT} "
        "interbert-chinese from BERT-base Chinese",
        vocabulary_size=21_128,
    )


def interbert_small_recipe() -> Recipe:
    """Returns a run of minutes on a CPU. Unlike the published run, only matching pairs are
    predicted.
    """
    return small_recipe(
        "interbert-small",
        "interbert",
        config.interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0),
        "InterBERT for trials on a CPU: minutes for some thousand pairs",
        feeding=interbert_feeding(),
        masking=replace(interbert_masking(), mismatched_words=False),
        objectives=CLASSES,
        steps=1200,
        # At 5e-4 its product of two ReLU poolers makes all pairs one vector, as ViLBERT's does.
        optimizer=Optimizer(lr=2e-4),
    )


def interbert_hour_recipe() -> Recipe:
    """Returns the small recipe with more steps."""
    return hour_recipe(interbert_small_recipe(), steps=9_000)


def variant_trainings() -> dict[str, VariantTraining]:
    """Returns how the variants are trained. Imports torch."""
    from vlmill.train.recipes.training import VariantTraining

    return {
        "interbert": VariantTraining(feeding=partial(interbert_feeding, released=True)),
        "interbert-tasks": VariantTraining(feeding=interbert_retrieval_feeding),
    }


ROW = PaperTraining(
    variant_trainings=variant_trainings,
    recipes={
        "interbert-small": interbert_small_recipe,
        "interbert-hour": interbert_hour_recipe,
        "interbert": interbert,
        "interbert-random-negatives": interbert_random_negatives,
        "interbert-single-masks": interbert_single_masks,
        "interbert-without-bert": interbert_without_bert,
        "interbert-single-stream": interbert_single_stream_recipe,
        "interbert-released": interbert_released_recipe,
        "interbert-chinese": interbert_chinese_recipe,
    },
)
