"""VCR as each paper and each released code fine-tunes on it.

[code] marks released code, [choice] ours. VL-BERT also trains the network that makes the regions'
features; it can read stored ones, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertTasksConfig,
    interbert_paper,
    interbert_released,
    interbert_small,
)
from vlmill.models.vilbert.config import (
    VilbertTasksConfig,
    vilbert_base,
    vilbert_small,
)
from vlmill.models.vlbert.config import (
    RegionCnnConfig,
    VlBertEndToEndConfig,
    VlBertVcrConfig,
    vlbert_base,
    vlbert_for_task,
    vlbert_paper,
    vlbert_small,
)
from vlmill.train.recipes.fine_tuning import (
    INTERBERT_AVERAGE,
    for_trials,
    from_bert,
    from_pixels,
    interbert_paper_optimizer,
    interbert_task_optimizer,
    on_single_stream,
    small_region_cnn,
    task_recipe,
    vilbert_paper,
    vilbert_task_optimizer,
)
from vlmill.train.recipes.interbert import interbert_feeding
from vlmill.train.recipes.vilbert import vilbert_feeding
from vlmill.train.recipes.vlbert import vlbert_feeding, vlbert_paper_masks
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.vcr.settings import LONGEST, NEEDS, SUBTASKS, VcrRecipe, VcrSettings

SMALL_PX = 128  # a side of the images of trials
# Few steps of pretraining, with the full image's vector for all words, leave the scale of
# words' visual vectors at 0.005, and 600 steps of VCR at 0.006: no text shows which objects it
# names.
SMALL_SCALE = 0.1

# ViLBERT (arXiv:1908.02265, sec. 3.3): a linear layer on the pooled vectors; batch 64, rate 2e-5.


def vilbert_vcr_feeding() -> Feeding:
    """Returns the feeding: 100 regions, with the full image and all annotated objects [code]."""
    return replace(
        vilbert_feeding(),
        max_tokens=LONGEST,
        max_regions=99,
        region_targets="class",
        boxes="joined",
    )


def vcr_vilbert() -> TaskRecipe:
    """Returns the released recipe: one model for answers and rationales, whose steps alternate.

    The code warms up over a tenth of the iterations. Each iteration has an update for either
    sub-task: a twentieth of the updates.
    """
    stage = TrainingStage(
        name="vcr",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        feeding=vilbert_vcr_feeding(),
        optimizer=vilbert_task_optimizer(2e-5, warmup=0.05),
    )
    return task_recipe(
        VcrRecipe,
        "vcr-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base(), num_answers=1),
        ("vilbert", "vilbert-tasks"),
        stage,
        settings=VcrSettings(shared_cut=True, in_turns=True),
        about="VCR with ViLBERT, answers and rationales by one model, as released",
        needs=f"{NEEDS}; --init: a pretrained ViLBERT",
    )


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


def vlbert_vcr_optimizer(lr: float) -> Optimizer:
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


def vlbert_vcr_settings(*subtasks: str, **changes: Any) -> VcrSettings:
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
    """Returns the released recipe, but on stored features: 20 epochs of 64, 7e-5 per question."""
    stage = TrainingStage(
        name="vcr",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        accumulation=4,
        feeding=vlbert_vcr_feeding(),
        optimizer=vlbert_vcr_optimizer(4.48e-3),
    )
    return task_recipe(
        VcrRecipe,
        f"vcr-vl-bert-{subtask}",
        "vl-bert-vcr",
        VlBertVcrConfig(body=vlbert_for_task(vlbert_base(), pooler=True)),
        ("vl-bert", "vl-bert-vcr"),
        stage,
        settings=vlbert_vcr_settings(subtask),
        about=f"VCR's {subtask} with VL-BERT, as released, on stored features",
        needs=f"{NEEDS.replace('detected and at ', '')}; --init: a pretrained VL-BERT",
        seed=12_345,
    )


def vcr_vl_bert_paper(subtask: str) -> TaskRecipe:
    """Returns the paper's recipe: 2e-3, softmax over choices, categories of masked regions."""
    recipe = vcr_vl_bert(subtask)
    paper = vlbert_paper()
    body = vlbert_for_task(paper, pooler=True, masked_region=paper.masked_region)
    stage = replace(
        recipe.stages[0],
        feeding=replace(vlbert_vcr_feeding(), flip=0.0),
        optimizer=vlbert_vcr_optimizer(2e-3),
    )
    settings = vlbert_vcr_settings(subtask, loss="softmax", regions="masked")
    return replace(
        recipe,
        name=f"vcr-vl-bert-paper-{subtask}",
        model=VlBertVcrConfig(body=body),
        stages=(stage,),
        settings=replace(settings, masking=vlbert_paper_masks(settings.masking)),
        about=f"VCR's {subtask} with VL-BERT, by the paper's text, on stored features",
    )


def vcr_vl_bert_end_to_end(recipe: TaskRecipe, cnn: RegionCnnConfig) -> TaskRecipe:
    """Returns ``recipe`` from pixels, the long side up to 1,200, at the objects' boxes and
    outlines; as released the stem and res2 are constant [code], the paper trains all (sec. 3.4).
    """
    pixels = from_pixels(recipe, VlBertEndToEndConfig(model=recipe.model, cnn=cnn))
    (stage,) = pixels.stages
    feeding = replace(stage.feeding, boxes="examples", long_side=1200)
    return replace(
        pixels,
        stages=(replace(stage, feeding=feeding),),
        needs=f"--images: VCR's images; {pixels.needs.rpartition('; ')[2]}",
    )


# InterBERT (arXiv:2003.13198, sec. 4): one score for each choice from the pooled vector; rate 2e-5,
# batch 32, 5 epochs, and a moving average of the weights. Sub-tasks take turns in one model.


def interbert_vcr_stage(optimizer: Optimizer) -> TrainingStage:
    """Returns the published run's stage: 100 regions, as ViLBERT's [code]."""
    return TrainingStage(
        name="vcr",
        epochs=5,
        epoch_steps="ceil",
        batch_size=32,
        feeding=replace(interbert_feeding(), max_tokens=LONGEST, max_regions=99, boxes="joined"),
        optimizer=optimizer,
    )


def make_interbert_recipe(
    name: str, trunk: InterBertConfig, optimizer: Optimizer, settings: VcrSettings, by: str
) -> TaskRecipe:
    """Returns the recipe of one depth of InterBERT."""
    return task_recipe(
        VcrRecipe,
        name,
        "interbert-tasks",
        InterBertTasksConfig(trunk=trunk),
        ("interbert", "interbert-tasks"),
        interbert_vcr_stage(optimizer),
        settings=settings,
        about=f"VCR with InterBERT, answers and rationales by one model, {by}",
        needs=f"{NEEDS}; --init: a pretrained InterBERT",
        average=INTERBERT_AVERAGE,
    )


def vcr_interbert() -> TaskRecipe:
    """Returns the released run, whose warm-up is a twentieth of the updates.

    The code warms up over a tenth of the iterations. Each iteration has an update for either
    sub-task.
    """
    return make_interbert_recipe(
        "vcr-interbert",
        interbert_released(),
        interbert_task_optimizer(2e-5, warmup=0.05),
        VcrSettings(in_turns=True, shared_cut=True),
        "as released",
    )


def vcr_interbert_paper() -> TaskRecipe:
    """Returns the paper's run: AdamW, linear decay after 10,000 steps; turns are the code's."""
    return make_interbert_recipe(
        "vcr-interbert-paper",
        interbert_paper(),
        interbert_paper_optimizer(2e-5),
        VcrSettings(in_turns=True),
        "by the paper's text",
    )


def vcr_interbert_without_bert() -> TaskRecipe:
    """Returns the paper's ablation: the same after pretraining that began with random weights."""
    return replace(
        vcr_interbert_paper(),
        name="vcr-interbert-without-bert",
        about="VCR with InterBERT pretrained from random weights (ablation)",
        needs=f"{NEEDS}; --init: a run of interbert-without-bert",
    )


# For trials on a CPU.


def small_vcr(
    name: str, like: TaskRecipe, model: Any, lr: float = 3e-4, **settings: Any
) -> TaskRecipe:
    """Returns the recipe for trials of answers and rationales, based on a published one."""
    settings |= {"subtasks": SUBTASKS, "max_tokens": 40, "max_tokens_with_answer": 56}
    return for_trials(
        like,
        name,
        model,
        f"VCR with {name.removeprefix('vcr-').removesuffix('-small')}",
        lr=lr,
        batch_size=32,
        settings=replace(like.settings, **settings),
    )


def vcr_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, num_answers=1, dropout=0.0)
    return small_vcr("vcr-vilbert-small", vcr_vilbert(), model, in_turns=False)


def vcr_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = InterBertTasksConfig(trunk=trunk, dropout=0.0)
    return small_vcr("vcr-interbert-small", vcr_interbert(), model, 2e-4)


def vcr_vl_bert_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT."""
    body = vlbert_for_task(vlbert_small(dropout=0.0), pooler=True)
    model = VlBertVcrConfig(body=body, dropout=0.0, visual_scale_names=SMALL_SCALE)
    return small_vcr("vcr-vl-bert-small", vcr_vl_bert("q2a"), model)


def vcr_vl_bert_end_to_end_small() -> TaskRecipe:
    """Returns the recipe with a small VL-BERT and a small network of regions."""
    cnn = small_region_cnn()
    body = vlbert_small(dropout=0.0, region_width=cnn.feature_width)
    heads = VlBertVcrConfig(
        body=vlbert_for_task(body, pooler=True), dropout=0.0, visual_scale_names=SMALL_SCALE
    )
    like = replace(vcr_vl_bert("q2a"), model=heads)
    like = vcr_vl_bert_end_to_end(like, cnn)
    (stage,) = like.stages
    feeding = replace(stage.feeding, short_side=SMALL_PX, long_side=SMALL_PX)
    like = replace(like, stages=(replace(stage, feeding=feeding),), needs="--images")
    return small_vcr("vcr-vl-bert-end-to-end-small", like, like.model)


RELEASED_CNN, PAPER_CNN = RegionCnnConfig(), RegionCnnConfig(frozen_stages=0)


def _vl_bert_recipes(subtask: str) -> dict[str, Callable[[], TaskRecipe]]:
    return {
        f"vcr-vl-bert-{subtask}": lambda: vcr_vl_bert(subtask),
        f"vcr-vl-bert-paper-{subtask}": lambda: vcr_vl_bert_paper(subtask),
        f"vcr-vl-bert-{subtask}-from-bert": lambda: from_bert(vcr_vl_bert(subtask)),
        f"vcr-vl-bert-end-to-end-{subtask}": lambda: vcr_vl_bert_end_to_end(
            vcr_vl_bert(subtask), RELEASED_CNN
        ),
        f"vcr-vl-bert-paper-end-to-end-{subtask}": lambda: vcr_vl_bert_end_to_end(
            vcr_vl_bert_paper(subtask), PAPER_CNN
        ),
    }


RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "vcr-vilbert": vcr_vilbert,
    "vcr-vilbert-paper": lambda: vilbert_paper(vcr_vilbert(), settings=VcrSettings()),
    "vcr-vilbert-from-bert": lambda: from_bert(vcr_vilbert()),
    "vcr-single-stream": lambda: on_single_stream(vcr_vilbert()),
    "vcr-single-stream-from-bert": lambda: from_bert(on_single_stream(vcr_vilbert())),
    **_vl_bert_recipes("q2a"),
    **_vl_bert_recipes("qa2r"),
    "vcr-interbert": vcr_interbert,
    "vcr-interbert-paper": vcr_interbert_paper,
    "vcr-interbert-from-bert": lambda: from_bert(vcr_interbert()),
    "vcr-interbert-without-bert": vcr_interbert_without_bert,
    "vcr-vilbert-small": vcr_vilbert_small,
    "vcr-interbert-small": vcr_interbert_small,
    "vcr-vl-bert-small": vcr_vl_bert_small,
    "vcr-vl-bert-end-to-end-small": vcr_vl_bert_end_to_end_small,
}
