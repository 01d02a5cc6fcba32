"""Recipes of GQA, VizWiz and OK-VQA, and of the models whose papers have no VQA.

[code] marks released code, [choice] ours. ViLBERT's runs on GQA and OK-VQA are those of the code of
12-in-1 (``vilbert_tasks.yml`` of facebookresearch/vilbert-multi-task), its run on VizWiz is mmf's
(``projects/vilbert/configs/vizwiz`` of facebookresearch/mmf). No paper of the other models reports
one of these data sets.
"""

from collections.abc import Callable
from dataclasses import replace

from vlmill.models.imagebert.config import (
    ImageBertClassifierConfig,
    imagebert_base,
    imagebert_small,
)
from vlmill.models.interbert.config import InterBertImagesConfig, interbert_paper, interbert_small
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    VilbertClassifierConfig,
    single_stream_base,
    vilbert_base,
)
from vlmill.train.recipes.imagebert import imagebert_feeding
from vlmill.train.recipes.interbert import interbert_retrieval_feeding
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.recipes import shared
from vlmill.train.tasks.recipes.vilbert import on_single_stream, vilbert_vqa_feeding, vqa_vilbert
from vlmill.train.tasks.vqa.settings import VqaRecipe

MMF_STEPS = 60_000
VQA_ANSWERS = 3129  # of VQA 2.0; a run has the answers of its examples


def vqa_vilbert_12in1(data_set: str, title: str, max_tokens: int, epochs: int) -> TaskRecipe:
    """Returns 12-in-1's single-task run of a data set [code]: 4e-5, batches of 128."""
    like = vqa_vilbert()
    stage = replace(
        like.stages[0],
        epochs=epochs,
        batch_size=128,
        feeding=replace(vilbert_vqa_feeding(), max_tokens=max_tokens),
        optimizer=shared.milestones_optimizer(4e-5),
    )
    return replace(
        like,
        name=f"vqa-vilbert-{data_set}",
        stages=(stage,),
        about=f"{title} with ViLBERT, as in 12-in-1's code",
        needs=f"{shared.REGIONS}; --init: a pretrained ViLBERT",
    )


def mmf_optimizer(lr: float, warmup_steps: int) -> Optimizer:
    """Returns the optimiser of mmf's fine-tuning of ViLBERT [code]: AdamW, linear decay, no
    clipping.
    """
    return Optimizer(
        kind="transformers-adamw",
        lr=lr,
        eps=1e-8,
        weight_decay=0.01,
        clip=0.0,
        warmup_steps=warmup_steps,
    )


def vqa_vilbert_vizwiz() -> TaskRecipe:
    """Returns mmf's run of VizWiz [code]: 60,000 steps of 480 at 5e-5, texts of 128 tokens."""
    stage = TrainingStage(
        name="vqa",
        steps=MMF_STEPS,
        batch_size=480,
        feeding=replace(vilbert_vqa_feeding(), max_tokens=128),
        optimizer=mmf_optimizer(5e-5, 6000),
    )
    return shared.task_recipe(
        VqaRecipe,
        "vqa-vilbert-vizwiz",
        "vilbert-classifier",
        VilbertClassifierConfig(trunk=vilbert_base(), num_labels=VQA_ANSWERS),
        ("vilbert", "vilbert-tasks", "vilbert-classifier"),
        stage,
        "VizWiz with ViLBERT, as mmf does",
        f"{shared.REGIONS}; --init: a pretrained ViLBERT",
    )


def choice_stage(name: str, lr: float = 5e-5) -> TrainingStage:
    """Returns a stage for ImageBERT [choice]: 10 epochs of 128 at BERT's rates."""
    return TrainingStage(
        name=name,
        epochs=10,
        batch_size=128,
        feeding=replace(imagebert_feeding(), region_targets="class"),
        optimizer=Optimizer(lr=lr),
    )


def vqa_imagebert() -> TaskRecipe:
    """Returns the recipe of ImageBERT [choice]: a classifier on [CLS]."""
    return shared.task_recipe(
        VqaRecipe,
        "vqa-imagebert",
        "imagebert-classifier",
        ImageBertClassifierConfig(trunk=imagebert_base(), num_labels=VQA_ANSWERS),
        ("imagebert", "imagebert-retrieval", "imagebert-classifier"),
        choice_stage("vqa"),
        "VQA with ImageBERT",
        f"{shared.REGIONS}; --init: a pretrained ImageBERT",
    )


def vqa_interbert() -> TaskRecipe:
    """Returns the recipe of InterBERT [choice]: a classifier on the fused vector, ViLBERT's run."""
    stage = replace(
        vqa_vilbert().stages[0],
        feeding=replace(interbert_retrieval_feeding(), region_targets="class"),
        optimizer=shared.milestones_optimizer(4e-5),
    )
    model = InterBertImagesConfig(trunk=interbert_paper(), num_labels=VQA_ANSWERS, num_pictures=1)
    return shared.task_recipe(
        VqaRecipe,
        "vqa-interbert",
        "interbert-pictures",
        model,
        ("interbert", "interbert-tasks", "interbert-pictures"),
        stage,
        "VQA with InterBERT",
        f"{shared.REGIONS}; --init: a pretrained InterBERT",
    )


# For trials on a CPU.


def single_stream_small() -> SingleStreamConfig:
    """Returns the baseline in ImageBERT's size for trials."""
    return single_stream_base(
        vocab_size=4000,
        width=192,
        num_layers=4,
        num_heads=4,
        intermediate_width=768,
        num_positions=64,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.07,
    )


def vqa_single_stream_small() -> TaskRecipe:
    """Returns the recipe with a small single-stream baseline."""
    like = on_single_stream(vqa_vilbert())
    model = replace(like.model, trunk=single_stream_small(), classifier_dropout=0.1, dropout=0.0)
    return shared.small_vqa(like, model)


def vqa_imagebert_small() -> TaskRecipe:
    """Returns the recipe with a small ImageBERT."""
    model = ImageBertClassifierConfig(
        trunk=imagebert_small(dropout=0.0), num_labels=VQA_ANSWERS, dropout=0.0
    )
    return shared.small_vqa(vqa_imagebert(), model)


def vqa_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = InterBertImagesConfig(trunk=trunk, num_labels=VQA_ANSWERS, num_pictures=1, dropout=0.0)
    return shared.small_vqa(vqa_interbert(), model)


VQA: dict[str, Callable[[], TaskRecipe]] = {
    "vqa-vilbert-gqa": lambda: vqa_vilbert_12in1("gqa", "GQA", 26, 20),
    "vqa-vilbert-okvqa": lambda: vqa_vilbert_12in1("okvqa", "OK-VQA", 23, 200),
    "vqa-vilbert-vizwiz": vqa_vilbert_vizwiz,
    "vqa-imagebert": vqa_imagebert,
    "vqa-imagebert-from-bert": lambda: shared.from_bert(vqa_imagebert()),
    "vqa-interbert": vqa_interbert,
    "vqa-interbert-from-bert": lambda: shared.from_bert(vqa_interbert()),
    "vqa-single-stream-small": vqa_single_stream_small,
    "vqa-imagebert-small": vqa_imagebert_small,
    "vqa-interbert-small": vqa_interbert_small,
}
RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {"vqa": VQA}
