"""GLUE's eight tasks as InterBERT's paper fine-tunes them (arXiv:2003.13198, table 6).

The paper gives 128 tokens, batches of 128, a rate of 2e-5 and 3 epochs; no code was released.
Warm-up and decay are BERT's [choice]. ``settings.task`` selects one of the eight tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from vlmill.models.bert.config import BertTextConfig, bert_base, bert_small
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertTextConfig,
    interbert_paper,
    interbert_released,
    interbert_single_stream,
    interbert_small,
)
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoTextConfig,
    text_stage,
    vlmo_base,
    vlmo_large,
    vlmo_small,
)
from vlmill.train.recipes.bert import bert_feeding
from vlmill.train.recipes.fine_tuning import BERT, for_trials, from_bert, task_recipe
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe

TEXTS = "texts of GLUE"
HALVES = ("mnli-m", "mnli-mm")  # of MNLI's development and test sets
LABELS = 3  # of MNLI; a run's are its task's
LENGTH = 128


@dataclass(frozen=True, kw_only=True)
class GlueSettings:
    """Holds the fields that only GLUE has."""

    # Which of its tasks: a table may hold all of them.
    task: Literal["cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte"] = "mnli"
    # Evaluations of the other tasks, a pattern of their folders: for the averages over all eight.
    scores: str | None = None


@dataclass(frozen=True, kw_only=True)
class GlueRecipe(TaskRecipe):
    """Describes a run of one of GLUE's tasks."""

    task: str = "glue"
    settings: GlueSettings = field(default_factory=GlueSettings)


def glue_stage(**changes: Any) -> TrainingStage:
    """Returns the paper's run (sec. 4.3)."""
    fields: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 128,
        "feeding": replace(bert_feeding(), max_tokens=LENGTH),
        "optimizer": Optimizer(lr=2e-5),
    }
    return TrainingStage(name="glue", **(fields | changes))


def glue_bert() -> TaskRecipe:
    """Returns the recipe of BERT itself, the first row."""
    return task_recipe(
        GlueRecipe,
        "glue-bert",
        "bert-text",
        BertTextConfig(trunk=bert_base(), num_labels=LABELS),
        ("bert", "bert-text"),
        glue_stage(),
        "GLUE with BERT",
        f"{TEXTS}; {BERT}",
    )


def make_interbert_recipe(name: str, trunk: InterBertConfig, about: str, init: str) -> TaskRecipe:
    """Returns the recipe of InterBERT's text alone: word interaction, then the text module
    [choice].
    """
    return task_recipe(
        GlueRecipe,
        name,
        "interbert-text",
        InterBertTextConfig(trunk=trunk, num_labels=LABELS),
        ("interbert", "interbert-tasks", "interbert-text"),
        glue_stage(),
        about,
        f"{TEXTS}; --init: {init}",
    )


def glue_interbert() -> TaskRecipe:
    """Returns the recipe of the paper's model, the last row."""
    return make_interbert_recipe(
        "glue-interbert", interbert_paper(), "GLUE with InterBERT", "a pretrained InterBERT"
    )


def glue_interbert_released() -> TaskRecipe:
    """Returns the recipe of the released depth, whose text module has BERT's upper layers."""
    return make_interbert_recipe(
        "glue-interbert-released",
        interbert_released(),
        "GLUE with InterBERT, the released depth",
        "a pretrained InterBERT as released",
    )


def glue_single_stream() -> TaskRecipe:
    """Returns the recipe without extraction modules, the second row."""
    return make_interbert_recipe(
        "glue-single-stream",
        interbert_single_stream(),
        "GLUE with InterBERT without extraction modules",
        "a run of interbert-single-stream",
    )


def glue_interbert_without_bert() -> TaskRecipe:
    """Returns the recipe that shows the benefit of a start from BERT: pretraining of the same model
    began from random weights.
    """
    return replace(
        glue_interbert(),
        name="glue-interbert-without-bert",
        about="GLUE with an InterBERT that was not initialised from BERT",
        needs=f"{TEXTS}; --init: a run of interbert-without-bert",
    )


def glue_interbert_random() -> TaskRecipe:
    """Returns the recipe that shows the benefit of any pretraining: all weights are random."""
    return replace(
        glue_interbert(),
        name="glue-interbert-random",
        starts_from=(),
        about="GLUE with InterBERT from random weights",
        needs=f"{TEXTS}; --vocab: BERT's",
    )


VLMO_SIZES: dict[str, tuple[Callable[[], VlmoConfig], float]] = {
    "base": (vlmo_base, 2e-5),
    "large": (vlmo_large, 2e-5),
}


def for_texts(encoder: VlmoConfig, num_tokens: int) -> VlmoConfig:
    """Returns VLMo's encoder as in its second stage, without a head for words."""
    return replace(text_stage(encoder), mlm=False, max_text_tokens=num_tokens)


def glue_vlmo(size: str) -> TaskRecipe:
    """Returns the recipe of VLMo's text experts [choice]: the paper has no such task. The third
    stage's texts are too short (40 tokens), so it starts from the second.
    """
    make, rate = VLMO_SIZES[size]
    return task_recipe(
        GlueRecipe,
        f"glue-vlmo-{size}",
        "vlmo-text",
        VlmoTextConfig(encoder=for_texts(make(), LENGTH), num_labels=LABELS),
        ("vlmo", "vlmo-text"),
        glue_stage(optimizer=Optimizer(lr=rate)),
        f"GLUE with the text experts of VLMo {size}",
        f"{TEXTS}; --init: VLMo after its second stage, on texts",
    )


# For trials on a CPU.


def small(name: str, like: TaskRecipe, model: Any, lr: float = 3e-4) -> TaskRecipe:
    """Returns the recipe for trials, based on a published one."""
    feeding = bert_feeding()
    return for_trials(like, name, model, like.about, lr=lr, batch_size=32, feeding=feeding)


def glue_bert_small() -> TaskRecipe:
    """Returns the recipe with a small BERT."""
    model = BertTextConfig(trunk=bert_small(dropout=0.0), num_labels=LABELS, dropout=0.0)
    return small("glue-bert-small", glue_bert(), model)


def glue_interbert_small() -> TaskRecipe:
    """Returns the recipe with a small InterBERT."""
    trunk = interbert_small(dropout=0.0, visual_dropout=0.0, head_dropout=0.0)
    model = InterBertTextConfig(trunk=trunk, num_labels=LABELS, dropout=0.0)
    return small("glue-interbert-small", glue_interbert(), model, lr=2e-4)


def glue_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, whose texts are short in every stage."""
    encoder = vlmo_small()
    model = VlmoTextConfig(
        encoder=for_texts(encoder, encoder.max_text_tokens), num_labels=LABELS, dropout=0.0
    )
    return small("glue-vlmo-small", glue_vlmo("base"), model)


RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    "glue-bert": glue_bert,
    "glue-single-stream": glue_single_stream,
    "glue-interbert": glue_interbert,
    "glue-interbert-from-bert": lambda: from_bert(glue_interbert()),
    "glue-interbert-without-bert": glue_interbert_without_bert,
    "glue-interbert-random": glue_interbert_random,
    "glue-interbert-released": glue_interbert_released,
    **{f"glue-vlmo-{size}": partial(glue_vlmo, size) for size in VLMO_SIZES},
    "glue-bert-small": glue_bert_small,
    "glue-interbert-small": glue_interbert_small,
    "glue-vlmo-small": glue_vlmo_small,
}
