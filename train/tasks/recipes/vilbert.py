"""Tasks of ViLBERT (arXiv:1908.02265, sec. 3.3) and of 12-in-1 (arXiv:1912.02315)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.vilbert.config import (
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertTasksConfig,
    single_stream_base,
    vilbert_12in1,
    vilbert_base,
    vilbert_small,
)
from vlmill.train.recipes.vilbert import vilbert_feeding, vilbert_retrieval_feeding
from vlmill.train.settings.parts import Feeding, Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.nlvr2.settings import NUM_IMAGES, Nlvr2Recipe
from vlmill.train.tasks.recipes import shared
from vlmill.train.tasks.refcoco.settings import RefcocoRecipe, RefcocoSettings
from vlmill.train.tasks.retrieval.settings import RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.vcr.settings import LONGEST, VcrRecipe, VcrSettings
from vlmill.train.tasks.vqa.settings import VqaRecipe


def vilbert_paper(recipe: TaskRecipe, **changes: Any) -> TaskRecipe:
    """Returns ViLBERT's released recipe by the paper's text: Adam at one rate; warm-up and decay
    are BERT's [choice].
    """
    (stage,) = recipe.stages
    stage = replace(stage, optimizer=Optimizer(lr=stage.optimizer.lr, warmup=0.1))
    fields: dict[str, Any] = {
        "name": f"{recipe.name}-paper",
        "stages": (stage,),
        "about": f"{recipe.about.partition(',')[0]}, by the paper's text",
    }
    return replace(recipe, **(fields | changes))


def on_single_stream(recipe: TaskRecipe) -> TaskRecipe:
    """Returns ViLBERT's released recipe for the paper's baseline, one BERT over both."""
    return replace(
        recipe,
        name=recipe.name.replace("vilbert", "single-stream"),
        model=replace(recipe.model, trunk=single_stream_base()),
        starts_from=("vilbert-single-stream", "vilbert-tasks"),
        about=f"{recipe.about.partition(',')[0]}'s single-stream baseline",
        needs=recipe.needs.replace("a pretrained ViLBERT", "a pretrained single stream"),
    )


ANSWER_HEAD = "answer_head."  # ViLBERT's


# ViLBERT (arXiv:1908.02265, sec. 3.3): two layers on the pooled vectors of both streams; the summed
# binary cross-entropy of 3,129 answers with soft scores; batch 256, 20 epochs, rate 4e-5.


def vilbert_vqa_feeding() -> Feeding:
    """Returns the feeding: 16 tokens and 100 regions, the full image among them [code]."""
    return replace(vilbert_feeding(), max_tokens=16, max_regions=99, region_targets="class")


def vilbert_vqa_stage() -> TrainingStage:
    """Returns the released run."""
    head = {"heads": (ANSWER_HEAD,), "head_rate": 2.5}  # 1e-4 [code]
    return TrainingStage(
        name="vqa",
        epochs=20,
        epoch_steps="ceil",
        batch_size=256,
        feeding=vilbert_vqa_feeding(),
        optimizer=shared.milestones_optimizer(4e-5, **head),
    )


def vqa_vilbert() -> TaskRecipe:
    """Returns the released recipe: the last epoch counts, nothing is chosen by validation."""
    return shared.task_recipe(
        VqaRecipe,
        "vqa-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base()),
        ("vilbert", "vilbert-tasks"),
        vilbert_vqa_stage(),
        "VQA 2.0 with ViLBERT, as released",
        f"{shared.COCO_REGIONS}; --init: a pretrained ViLBERT",
    )


def vqa_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, classifier_dropout=0.1, dropout=0.0)
    return shared.small_vqa(vqa_vilbert(), model)


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
        optimizer=shared.milestones_optimizer(2e-5, warmup=0.05),
    )
    return shared.task_recipe(
        VcrRecipe,
        "vcr-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base(), num_answers=1),
        ("vilbert", "vilbert-tasks"),
        stage,
        settings=VcrSettings(shared_cut=True, in_turns=True),
        about="VCR with ViLBERT, answers and rationales by one model, as released",
        needs=f"{shared.VCR_NEEDS}; --init: a pretrained ViLBERT",
    )


def vcr_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, num_answers=1, dropout=0.0)
    return shared.small_vcr("vcr-vilbert-small", vcr_vilbert(), model, in_turns=False)


# ViLBERT (arXiv:1908.02265, sec. 3.3): a linear layer on each region's vector, binary
# cross-entropy; batch 256, 20 epochs, rate 4e-5.


def vilbert_refcoco_feeding() -> Feeding:
    """Returns the feeding: 20 tokens and 100 regions, the full image among them; annotated boxes
    are added to the detected ones in training only [code].
    """
    return replace(
        vilbert_feeding(),
        max_tokens=20,
        max_regions=99,
        region_targets="class",
        boxes="joined-in-training",
    )


def refcoco_vilbert() -> TaskRecipe:
    """Returns the released recipe: the target of a region that overlaps by half is its overlap."""
    stage = TrainingStage(
        name="refcoco",
        epochs=20,
        epoch_steps="ceil",
        batch_size=256,
        feeding=vilbert_refcoco_feeding(),
        optimizer=shared.milestones_optimizer(4e-5),
    )
    return shared.task_recipe(
        RefcocoRecipe,
        "refcoco-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base(), num_answers=1),
        ("vilbert", "vilbert-tasks"),
        stage,
        about="RefCOCO+ with ViLBERT, as released",
        needs=f"{shared.REFCOCO_NEEDS}; --init: a pretrained ViLBERT",
        settings=RefcocoSettings(labels="soft"),
    )


def refcoco_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, num_answers=1, dropout=0.0)
    return shared.small_refcoco("refcoco-vilbert-small", refcoco_vilbert(), model)


def nlvr2_vilbert() -> TaskRecipe:
    """Returns the recipe with the classifier of mmf's checkpoints."""
    return shared.task_recipe(
        Nlvr2Recipe,
        "nlvr2-vilbert",
        "vilbert-classifier",
        VilbertClassifierConfig(trunk=vilbert_base(), num_labels=2, num_pictures=NUM_IMAGES),
        ("vilbert", "vilbert-tasks", "vilbert-classifier"),
        shared.nlvr2_region_stage(vilbert_feeding()),
        "NLVR2 with ViLBERT, as 12-in-1 does",
        f"{shared.REGIONS}; --init: a pretrained ViLBERT",
    )


def nlvr2_vilbert_12in1() -> TaskRecipe:
    """Returns the recipe of 12-in-1's own checkpoint, all of its heads kept."""
    return shared.task_recipe(
        Nlvr2Recipe,
        "nlvr2-vilbert-12in1",
        "vilbert-12in1-tasks",
        Vilbert12in1Config(trunk=vilbert_12in1()),
        ("vilbert-12in1-tasks",),
        shared.nlvr2_region_stage(vilbert_feeding()),
        "NLVR2 with 12-in-1's ViLBERT",
        f"{shared.REGIONS}; --init: 12-in-1 (train-vl convert --family vilbert)",
    )


def nlvr2_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT."""
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertClassifierConfig(trunk=trunk, num_labels=2, num_pictures=NUM_IMAGES, dropout=0.0)
    return shared.small_nlvr2("nlvr2-vilbert-small", nlvr2_vilbert(), model)


# ViLBERT (arXiv:1908.02265, sec. 3.3): a caption and its image among another caption, another
# image and a caption of one of the 100 nearest images; batch 64, 20 epochs, rate 2e-5.


def vilbert_retrieval_stage() -> TrainingStage:
    """Returns the released run; 30 tokens, 99 regions and the full image [code]."""
    return TrainingStage(
        name="retrieval",
        epochs=20,
        epoch_steps="ceil",
        batch_size=64,
        feeding=replace(vilbert_retrieval_feeding(), region_targets="class"),
        optimizer=shared.milestones_optimizer(2e-5),  # the README's command has 4e-5
    )


def retrieval_vilbert() -> TaskRecipe:
    """Returns the released recipe: a new head, which VCR's choices also use, scores the four."""
    return shared.task_recipe(
        RetrievalRecipe,
        "retrieval-vilbert",
        "vilbert-tasks",
        VilbertTasksConfig(trunk=vilbert_base()),
        ("vilbert", "vilbert-tasks"),
        vilbert_retrieval_stage(),
        "Retrieval with ViLBERT, as released",
        f"{shared.NEAR}; --init: a pretrained ViLBERT",
        settings=RetrievalSettings(),
    )


def retrieval_vilbert_paper() -> TaskRecipe:
    """Returns the paper's recipe: pretraining's alignment head scores, and Adam at one rate."""
    return vilbert_paper(retrieval_vilbert(), variant="vilbert", model=vilbert_base())


def retrieval_vilbert_small() -> TaskRecipe:
    """Returns the recipe with a small ViLBERT. At a higher rate its poolers make all pairs one
    vector.
    """
    trunk = vilbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = VilbertTasksConfig(trunk=trunk, dropout=0.0)
    return shared.small_retrieval("retrieval-vilbert-small", retrieval_vilbert(), model, 2e-4)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "vqa": {
        "vqa-vilbert": vqa_vilbert,
        "vqa-vilbert-paper": lambda: vilbert_paper(vqa_vilbert()),
        "vqa-vilbert-from-bert": lambda: shared.from_bert(vqa_vilbert()),
        "vqa-single-stream": lambda: on_single_stream(vqa_vilbert()),
        "vqa-single-stream-from-bert": lambda: shared.from_bert(on_single_stream(vqa_vilbert())),
        "vqa-vilbert-small": vqa_vilbert_small,
    },
    "vcr": {
        "vcr-vilbert": vcr_vilbert,
        "vcr-vilbert-paper": lambda: vilbert_paper(vcr_vilbert(), settings=VcrSettings()),
        "vcr-vilbert-from-bert": lambda: shared.from_bert(vcr_vilbert()),
        "vcr-single-stream": lambda: on_single_stream(vcr_vilbert()),
        "vcr-single-stream-from-bert": lambda: shared.from_bert(on_single_stream(vcr_vilbert())),
        "vcr-vilbert-small": vcr_vilbert_small,
    },
    "refcoco": {
        "refcoco-vilbert": refcoco_vilbert,
        "refcoco-vilbert-paper": lambda: vilbert_paper(
            refcoco_vilbert(), settings=RefcocoSettings()
        ),
        "refcoco-vilbert-from-bert": lambda: shared.from_bert(refcoco_vilbert()),
        "refcoco-single-stream": lambda: on_single_stream(refcoco_vilbert()),
        "refcoco-single-stream-from-bert": lambda: shared.from_bert(
            on_single_stream(refcoco_vilbert())
        ),
        "refcoco-vilbert-small": refcoco_vilbert_small,
    },
    "nlvr2": {
        "nlvr2-vilbert": nlvr2_vilbert,
        "nlvr2-vilbert-from-bert": lambda: shared.from_bert(nlvr2_vilbert()),
        "nlvr2-vilbert-12in1": nlvr2_vilbert_12in1,
        "nlvr2-vilbert-small": nlvr2_vilbert_small,
    },
    "retrieval": {
        "retrieval-vilbert": retrieval_vilbert,
        "retrieval-vilbert-paper": retrieval_vilbert_paper,
        "retrieval-vilbert-from-bert": lambda: shared.from_bert(retrieval_vilbert()),
        "retrieval-vilbert-small": retrieval_vilbert_small,
    },
}
