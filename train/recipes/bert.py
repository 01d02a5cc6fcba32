"""BERT (Devlin et al., arXiv:1810.04805) on texts alone: its first task, masked words.

Models on regions start from it. Every row of ``--pairs`` is a text, with an image or without. The
second task, next sentences, needs documents and is omitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmill.models.bert.config import bert_base, bert_large, bert_small
from vlmill.train.recipes.rows import PaperTraining, small_recipe
from vlmill.train.settings.parts import Feeding, Objectives, Optimizer
from vlmill.train.settings.spec import Recipe, Stage

if TYPE_CHECKING:
    from vlmill.train.recipes.training import VariantTraining

MASKED_WORDS = Objectives(mlm=0.0, text_mlm=1.0, moc=0.0, mrfr=0.0, itm=0.0)


def bert_feeding() -> Feeding:
    """Returns the feeding: texts alone, as long as the model takes (arXiv:1810.04805, app. A.2)."""
    return Feeding(kind="text")


def bert_recipe(name: str, model: object, about: str) -> Recipe:
    """Returns the paper's run (app. A.2), except for next sentences.

    The large model has the same rate [choice]: the paper names one.
    """
    stage = Stage(
        name="texts",
        sources=("books", "wikipedia"),  # sec. 3.1
        # Of up to 512 tokens throughout: the paper has 128 in the first 90 % for speed alone, and
        # rows of short texts cost no padding here.
        steps=1_000_000,
        batch_size=256,
        negative_share=0.0,
        feeding=bert_feeding(),
        objectives=MASKED_WORDS,
        # Clipping is the released code's.
        optimizer=Optimizer(lr=1e-4, warmup_steps=10_000),
    )
    return Recipe(
        name=name,
        variant="bert",
        model=model,
        stages=(stage,),
        about=about,
        needs="texts of source books and wikipedia (pairs without image_id)",
        save_every=10_000,
        log_every=100,
        workers=4,
    )


def bert_small_recipe() -> Recipe:
    """Returns a run of minutes on a CPU, from the captions, to start small models on regions
    from.
    """
    return small_recipe(
        "bert-small",
        "bert",
        bert_small(dropout=0.0),
        "BERT for trials on a CPU: the captions' words, for the other small models to start from",
        standardise_features=False,  # it has none
        negative_share=0.0,
        feeding=bert_feeding(),
        objectives=MASKED_WORDS,
    )


def variant_trainings() -> dict[str, VariantTraining]:
    """Returns how the variants are trained. Imports torch."""
    from vlmill.train.objectives.pretraining import text_losses
    from vlmill.train.recipes.training import VariantTraining, copy_weights

    return {"bert": VariantTraining(losses=text_losses, feeding=bert_feeding, start=copy_weights)}


ROW = PaperTraining(
    variant_trainings=variant_trainings,
    recipes={
        "bert-small": bert_small_recipe,
        "bert-base": lambda: bert_recipe(
            "bert-base", bert_base(), "BERT base on masked words of texts alone"
        ),
        "bert-large": lambda: bert_recipe(
            "bert-large", bert_large(), "BERT large on masked words of texts alone"
        ),
    },
)
