"""Retrieval with ImageBERT (arXiv:2001.07966, sec. 4.2)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmill.models.imagebert.config import ImageBertRetrievalConfig, imagebert_base, imagebert_small
from vlmill.train.recipes.imagebert import imagebert_feeding
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.recipes.shared import REGIONS, from_bert, small_retrieval, task_recipe
from vlmill.train.tasks.retrieval.settings import Loss, RetrievalRecipe, RetrievalSettings

# ImageBERT (arXiv:2001.07966, sec. 4.2): negatives by texts and by images; batch 24, rate 5e-5,
# 130 epochs. No code was released; the number of negatives is [choice], and so is all else of the
# optimiser, which is BERT's.

BEST: tuple[Loss, ...] = ("binary",)


def retrieval_imagebert(
    name: str = "retrieval-imagebert",
    losses: tuple[Loss, ...] = BEST,
    num_regions: int = 100,
    about: str = "its best loss",
) -> TaskRecipe:
    """Returns a row of table 4: a loss over a pair and its negatives, and a number of regions."""
    by_itself = "binary" in losses
    stage = TrainingStage(
        name="retrieval",
        epochs=130,
        batch_size=24,
        feeding=replace(imagebert_feeding(), max_regions=num_regions),
        optimizer=Optimizer(lr=5e-5),
    )
    return task_recipe(
        RetrievalRecipe,
        name,
        "imagebert-retrieval",
        ImageBertRetrievalConfig(trunk=imagebert_base(), rank_by="match" if by_itself else "score"),
        ("imagebert", "imagebert-retrieval"),
        stage,
        f"Retrieval with ImageBERT, {about}",
        f"{REGIONS}; --init: a pretrained ImageBERT",
        settings=RetrievalSettings(
            negatives="both", num_candidates=2 if losses == BEST else 4, losses=losses
        ),
    )


def table_4() -> dict[str, Callable[[], TaskRecipe]]:
    """Returns the rows of ImageBERT's table 4 other than its best one."""
    rows: dict[str, dict[str, Any]] = {
        "softmax": {"losses": ("softmax",), "about": "softmax among candidates"},
        "triplet": {"losses": ("triplet",), "about": "triplet loss"},
        "all-losses": {"losses": ("binary", "softmax", "triplet"), "about": "the three losses"},
        "36-regions": {"num_regions": 36, "about": "36 regions"},
    }
    return {
        (name := f"retrieval-imagebert-{row}"): _bind_recipe(name, fields)
        for row, fields in rows.items()
    }


def _bind_recipe(name: str, fields: dict[str, Any]) -> Callable[[], TaskRecipe]:
    return lambda: retrieval_imagebert(name, **fields)


def retrieval_imagebert_small() -> TaskRecipe:
    """Returns the recipe with a small ImageBERT."""
    model = ImageBertRetrievalConfig(trunk=imagebert_small(dropout=0.0))
    return small_retrieval("retrieval-imagebert-small", retrieval_imagebert(), model, 3e-4)


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "retrieval": {
        "retrieval-imagebert": retrieval_imagebert,
        **table_4(),
        "retrieval-imagebert-from-bert": lambda: from_bert(retrieval_imagebert()),
        "retrieval-imagebert-small": retrieval_imagebert_small,
    },
}
