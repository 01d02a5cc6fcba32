"""VL-BERT (Su et al., arXiv:1908.08530) on Conceptual Captions and texts alone.

[code] is the released one, which belongs to the article's second version; ``vl-bert-paper`` follows
the first. The code's rates are for a row: 1e-7 times the rows of a step, texts alone counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmill.models.vlbert import config
from vlmill.train.recipes.rows import PaperTraining, hour_recipe, say_what_is_new, small_recipe
from vlmill.train.settings.parts import Feeding, Masking, Objectives, Optimizer
from vlmill.train.settings.spec import Recipe, Stage

if TYPE_CHECKING:
    from vlmill.train.checkpoints.files import LoadedCheckpoint
    from vlmill.train.recipes.training import Labels, VariantTraining

DISTRIBUTIONS = "regions with distributions of classes"
TEXTS = "texts of source books and wikipedia (pairs without image_id)"
BERT = "--init from BERT: train-vl convert --family bert --as"
BACKBONE = "--backbone FILE, a ResNet or a detector"
CAPTIONS = 128  # of a step, in all released settings with texts alone


def vlbert_feeding(*, text_rows: int = 0) -> Feeding:
    """Returns the feeding: up to 100 regions (arXiv:1908.08530, sec. 4.1), the surest first; 64
    elements with the text [code].

    The code flips boxes, not features, and learns from as many rows of text alone as of captions.
    """
    return Feeding(
        max_tokens=63,
        max_regions=100,
        region_order="confidence",
        whole_image="rest",
        max_elements=64,
        region_targets="distribution",
        flip=0.5,
        text_rows=text_rows,
        text_row_tokens=64,
    )


def vlbert_masking() -> Masking:
    """Returns the masking: whole words, with BERT's shares [code]; the paper only writes [MASK]."""
    return Masking(word_rule="words", mismatched_words=True, mismatched_regions=True)


def vlbert_paper_masks(masking: Masking) -> Masking:
    """Returns the masking of VL-BERT's paper (arXiv:1908.08530, sec. 3.3): all chosen tokens are
    masked; the code keeps or replaces some.
    """
    return replace(masking, word_to_mask=1.0, word_to_random=0.0, region_to_zero=1.0)


def vlbert_objectives(*, texts: bool) -> Objectives:
    """Returns the objectives: words, classes of regions, and words of texts alone, a mean each, of
    weight 1 [code].
    """
    return Objectives(mlm=1.0, text_mlm=1.0 if texts else 0.0, moc=0.0, mrce=1.0, mrfr=0.0, itm=0.0)


def vlbert_optimizer(warmup_steps: int) -> Optimizer:
    """Returns the optimiser [code]: weight decay on all parameters, gradients clipped at norm 10, a
    learning rate of 1e-7 for each of 256 rows, and steps counted from 1.
    """
    return Optimizer(
        kind="transformers-adamw",
        lr=2.56e-5,
        weight_decay=1e-4,
        decay="everything",
        clip=10.0,
        warmup_steps=warmup_steps,
        first_step=1,
    )


def vlbert_stage() -> Stage:
    """Returns the settings base_prec_4x16G_fp32 [code]."""
    return Stage(
        name="cc",
        sources=("cc", "books", "wikipedia"),
        epochs=10,
        epoch_steps="ceil",  # [code]
        batch_size=CAPTIONS,
        negative_share=0.0,  # no matching task
        feeding=vlbert_feeding(text_rows=CAPTIONS),
        masking=vlbert_masking(),
        objectives=vlbert_objectives(texts=True),
        optimizer=vlbert_optimizer(16_000),
    )


def vl_bert() -> Recipe:
    """Returns the released code's run on precomputed regions, base size."""
    return Recipe(
        name="vl-bert",
        variant="vl-bert",
        model=config.vlbert_base(),
        stages=(vlbert_stage(),),
        about="VL-BERT on Conceptual Captions and texts alone, as released",
        needs=f"{DISTRIBUTIONS}; {TEXTS}; {BERT} vl-bert-base",
        seed=12_345,
        save_every=5000,
        log_every=100,
        workers=4,
    )


def vl_bert_large() -> Recipe:
    """Returns the settings large_prec_4x16G_fp16 [code]: as many rows a step, in half precision."""
    return replace(
        vl_bert(),
        name="vl-bert-large",
        model=config.vlbert_large(),
        about="VL-BERT large on Conceptual Captions and texts alone, as released",
        needs=f"{DISTRIBUTIONS}; {TEXTS}; {BERT} vl-bert-large",
        precision="fp16",
    )


def vl_bert_end_to_end() -> Recipe:
    """Returns the settings base_e2e_16x16G_fp16 [code]: the region network is trained along."""
    stage = vlbert_stage()
    return replace(
        vl_bert(),
        name="vl-bert-end-to-end",
        variant="vl-bert-end-to-end",
        model=config.vlbert_base_end_to_end(),
        stages=(replace(stage, feeding=replace(stage.feeding, kind="picture-regions")),),
        about="VL-BERT from pixels on Conceptual Captions and texts alone, as released",
        needs=f"--images; {DISTRIBUTIONS}; {TEXTS}; {BERT} vl-bert-base-end-to-end {BACKBONE}",
        precision="fp16",
    )


def vl_bert_end_to_end_large() -> Recipe:
    """Returns the settings large_e2e_16x16G_fp16 [code]: each step in two parts."""
    recipe = vl_bert_end_to_end()
    return replace(
        recipe,
        name="vl-bert-end-to-end-large",
        model=config.vlbert_large_end_to_end(),
        stages=(replace(recipe.stages[0], accumulation=2),),
        about="VL-BERT large from pixels on Conceptual Captions and texts alone, as released",
        needs=f"--images; {DISTRIBUTIONS}; {TEXTS}; {BERT} vl-bert-large-end-to-end {BACKBONE}",
    )


def vl_bert_captions() -> Recipe:
    """Returns the settings base_prec_withouttextonly [code]: 256 captions, no texts alone."""
    stage = replace(
        vlbert_stage(),
        sources=("cc",),
        batch_size=256,
        feeding=vlbert_feeding(),
        objectives=vlbert_objectives(texts=False),
        optimizer=vlbert_optimizer(8000),
    )
    return replace(
        vl_bert(),
        name="vl-bert-captions",
        model=config.vlbert_base(text_only=False),
        stages=(stage,),
        about="VL-BERT on Conceptual Captions without texts alone, as released",
        needs=f"{DISTRIBUTIONS}; {BERT} vl-bert-base text_only=false",
    )


def vl_bert_paper() -> Recipe:
    """Returns the article's first version (sec. 3.3, 4.1) on precomputed regions.

    Matching is a task, masked words are always [MASK], masked regions always hidden and their class
    predicted. It trains its region network too, as `vl_bert_paper_end_to_end`; epochs, clipping and
    decay of all are [code].
    """
    stage = replace(
        vlbert_stage(),
        sources=("cc",),
        batch_size=256,
        negative_share=0.5,
        negative_text_share=1.0,
        hard_negative_share=0.0,
        feeding=replace(vlbert_feeding(), max_elements=None, region_targets="class", flip=0.0),
        masking=vlbert_paper_masks(vlbert_masking()),
        objectives=Objectives(mlm=1.0, moc=1.0, mrfr=0.0, itm=1.0),
        optimizer=replace(vlbert_optimizer(8000), lr=1e-4),
    )
    return replace(
        vl_bert(),
        name="vl-bert-paper",
        model=config.vlbert_paper(),
        stages=(stage,),
        about="VL-BERT on Conceptual Captions, by the article's first version",
        needs=f"{BERT} vl-bert-base-paper",
    )


def vl_bert_paper_end_to_end() -> Recipe:
    """Returns the same from pixels, the whole region network trained (sec. 3.3, 4.1); precision
    [code].
    """
    recipe = vl_bert_paper()
    stage = recipe.stages[0]
    return replace(
        recipe,
        name="vl-bert-paper-end-to-end",
        variant="vl-bert-end-to-end",
        model=config.vlbert_paper_end_to_end(),
        stages=(replace(stage, feeding=replace(stage.feeding, kind="picture-regions")),),
        about="VL-BERT from pixels on Conceptual Captions, by the article's first version",
        needs=f"--images; {BERT} vl-bert-base-paper-end-to-end {BACKBONE}",
        precision="fp16",
    )


def vl_bert_small_recipe() -> Recipe:
    """Returns a run of minutes on a CPU, with the matching head, so that it can retrieve.

    Unlike the published run: pairs that do not match are among the input, and masked parts are
    predicted only in matching pairs; boxes are not mirrored, for captions may name left and right.
    """
    return small_recipe(
        "vl-bert-small",
        "vl-bert",
        config.vlbert_small(dropout=0.0),
        "VL-BERT with matching for trials on a CPU: minutes for some thousand pairs",
        # Many steps of few pairs: matching is learned late (6,000 generated pairs, R@1 of 500: 0.07
        # after 1,000 steps of 64, 0.24 after 2,000 of 32).
        steps=3000,
        batch_size=32,
        feeding=replace(vlbert_feeding(), max_tokens=36, flip=0.0),
        masking=Masking(word_rule="words"),
        objectives=Objectives(mlm=1.0, moc=0.0, mrce=1.0, mrfr=0.0, itm=1.0),
    )


def vl_bert_hour_recipe() -> Recipe:
    """Returns a run of some 25 minutes on one core: R@1 of 0.93 among 500 generated images, by
    24,000 pairs.
    """
    return hour_recipe(vl_bert_small_recipe(), steps=9_000)


def start_task(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """Copies transforms of pretraining's heads, and the words' rows for answers."""
    if init.variant != "vl-bert":
        fresh.body.load_state_dict(init.model.body.state_dict())
        say_what_is_new(sorted(n for n, _ in fresh.named_parameters() if not n.startswith("body.")))
    elif labels:
        fresh.start_from(init.model, labels)
    else:
        fresh.start_from(init.model)


def start_task_end_to_end(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """Copies the network of regions, and above it as from stored regions."""
    fresh.cnn.load_state_dict(init.model.cnn.state_dict())
    if init.variant == "vl-bert-end-to-end":
        fresh.model.start_from(init.model.model)
        return
    fresh.model.body.load_state_dict(init.model.model.body.state_dict())
    names = sorted(n for n, _ in fresh.model.named_parameters() if not n.startswith("body."))
    say_what_is_new([f"model.{name}" for name in names])


def variant_trainings() -> dict[str, VariantTraining]:
    """Returns how the variants are trained. Imports torch."""
    from vlmill.train.objectives.pretraining import end_to_end_losses
    from vlmill.train.recipes.training import VariantTraining, continue_pretrained

    stored = VariantTraining(start_task=start_task)
    pixels = VariantTraining(start_task=start_task_end_to_end)
    return {
        "vl-bert": VariantTraining(feeding=vlbert_feeding, start_task=continue_pretrained),
        "vl-bert-end-to-end": VariantTraining(losses=end_to_end_losses),
        **dict.fromkeys(("vl-bert-refcoco", "vl-bert-vcr", "vl-bert-vqa"), stored),
        **dict.fromkeys(("vl-bert-refcoco-end-to-end", "vl-bert-vcr-end-to-end"), pixels),
    }


ROW = PaperTraining(
    variant_trainings=variant_trainings,
    recipes={
        "vl-bert-small": vl_bert_small_recipe,
        "vl-bert-hour": vl_bert_hour_recipe,
        "vl-bert": vl_bert,
        "vl-bert-captions": vl_bert_captions,
        "vl-bert-large": vl_bert_large,
        "vl-bert-end-to-end": vl_bert_end_to_end,
        "vl-bert-end-to-end-large": vl_bert_end_to_end_large,
        "vl-bert-paper": vl_bert_paper,
        "vl-bert-paper-end-to-end": vl_bert_paper_end_to_end,
    },
)
