"""BERT (arXiv:1810.04805) on GLUE, the first row of InterBERT's table 6."""

from collections.abc import Callable

from vlmill.models.bert.config import BertTextConfig, bert_base, bert_small
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue.settings import GlueRecipe
from vlmill.train.tasks.recipes.shared import (
    BERT,
    GLUE_LABELS,
    GLUE_TEXTS,
    glue_stage,
    small_glue,
    task_recipe,
)


def glue_bert() -> TaskRecipe:
    """Returns the recipe of BERT itself, the first row."""
    return task_recipe(
        GlueRecipe,
        "glue-bert",
        "bert-text",
        BertTextConfig(trunk=bert_base(), num_labels=GLUE_LABELS),
        ("bert", "bert-text"),
        glue_stage(),
        "GLUE with BERT",
        f"{GLUE_TEXTS}; {BERT}",
    )


def glue_bert_small() -> TaskRecipe:
    """Returns the recipe with a small BERT."""
    model = BertTextConfig(trunk=bert_small(dropout=0.0), num_labels=GLUE_LABELS, dropout=0.0)
    return small_glue("glue-bert-small", glue_bert(), model)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "glue": {"glue-bert": glue_bert, "glue-bert-small": glue_bert_small},
}
