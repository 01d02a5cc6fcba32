"""BERT (arXiv:1810.04805) on GLUE, the first row of InterBERT's table 6."""

from collections.abc import Callable

from vlmill.models.bert.config import BertTextConfig, bert_base, bert_small
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue.settings import GlueRecipe
from vlmill.train.tasks.recipes import shared


def glue_bert() -> TaskRecipe:
    """Returns the recipe of BERT itself, the first row."""
    return shared.task_recipe(
        GlueRecipe,
        "glue-bert",
        "bert-text",
        BertTextConfig(trunk=bert_base(), num_labels=shared.GLUE_LABELS),
        ("bert", "bert-text"),
        shared.glue_stage(),
        "GLUE with BERT",
        f"{shared.GLUE_TEXTS}; {shared.BERT}",
    )


def glue_bert_small() -> TaskRecipe:
    """Returns the recipe with a small BERT."""
    model = BertTextConfig(
        trunk=bert_small(dropout=0.0), num_labels=shared.GLUE_LABELS, dropout=0.0
    )
    return shared.small_glue("glue-bert-small", glue_bert(), model)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "glue": {"glue-bert": glue_bert, "glue-bert-small": glue_bert_small},
}
