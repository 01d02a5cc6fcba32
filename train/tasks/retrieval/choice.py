"""Chooses how retrieval is trained: by candidates, by the pairs of a step, or by vectors."""

from pathlib import Path

from vlmill.models.registry import get_variant
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.retrieval.dual import dual_encoder, require_pairs
from vlmill.train.tasks.retrieval.settings import RetrievalSettings
from vlmill.train.tasks.retrieval.step_pairs import StepRetrieval
from vlmill.train.tasks.retrieval.task import CandidateRetrieval
from vlmill.train.tasks.task import LearntTask


def retrieval(
    recipe: TaskRecipe, examples: str, labels: Path | None, init: LoadedCheckpoint | None
) -> LearntTask:
    """Returns the task of a recipe. Raises InputError for settings that its model does not use."""
    if labels is not None:
        raise InputError(f"--labels {labels}: retrieval has no labels; remove --labels")
    settings: RetrievalSettings = recipe.settings
    contrasts = get_variant(recipe.variant).contrasts
    if contrasts and settings.negatives != "batch":
        raise InputError(
            f"settings.negatives={settings.negatives}: {with_article(recipe.variant)} is "
            "fine-tuned with batch"
        )
    if contrasts:
        return dual_encoder(recipe)
    rank_by: str | None = getattr(recipe.model, "rank_by", None)  # of ImageBERT's two heads
    trained = {"match" if loss == "binary" else "score" for loss in settings.losses}
    if rank_by is not None and rank_by not in trained:
        raise InputError(
            f"model.rank_by={rank_by}: settings.losses={list(settings.losses)} train "
            "only the other head; set model.rank_by to it"
        )
    kind = CandidateRetrieval
    if settings.negatives == "batch":
        require_pairs(recipe.stages[0].batch_size)
        kind = StepRetrieval
    return kind(
        settings=settings,
        variant=recipe.variant,
        losses=settings.losses,
        ranks_by=-1 if rank_by == "score" else 0,
    )
