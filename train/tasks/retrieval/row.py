"""Holds the registry's row for retrieval; importing it needs neither torch nor pyarrow."""

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlmill.models.registry import get_variant
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.retrieval.settings import RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.rows import TaskRow


def make(recipe: TaskRecipe, examples: str, labels: Path | None, init: Any) -> Any:
    """Returns the task of a recipe: trained by candidates, by a step's pairs, or by vectors.

    Imports torch. Raises InputError for settings that the recipe's model does not use.
    """
    if labels is not None:
        raise InputError(f"--labels {labels}: retrieval has no labels; remove --labels")
    settings: RetrievalSettings = recipe.settings
    contrasts = get_variant(recipe.variant).contrasts
    if contrasts and settings.negatives != "batch":
        raise InputError(
            f"settings.negatives={settings.negatives}: {with_article(recipe.variant)} is "
            "fine-tuned with batch"
        )
    from vlmill.train.tasks.retrieval.dual import dual_encoder, require_pairs
    from vlmill.train.tasks.retrieval.step_pairs import StepRetrieval
    from vlmill.train.tasks.retrieval.task import CandidateRetrieval

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


def evaluate(args: Namespace) -> int:
    """Evaluates all pairs by the arguments of `vlmill.train.tasks.command`; returns the exit
    status.
    """
    if args.pairs is None:
        raise InputError("--pairs is missing: retrieval ranks image-text pairs")
    # pyarrow and torch load slowly: not before the arguments are known to be valid.
    from vlmill.runtime.files.reading import require_tables

    require_tables({"--pairs": args.pairs, "--regions": args.regions, "--images": args.images})
    from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
    from vlmill.train.tasks.retrieval.job import RetrievalOptions

    names = {field.name for field in fields(RetrievalOptions)}
    evaluate_retrieval(RetrievalOptions(**{n: v for n, v in vars(args).items() if n in names}))
    return 0


ROW = TaskRow(
    name="retrieval",
    examples="pairs",
    recipe=RetrievalRecipe,
    make=make,
    negatives="neighbours",
    evaluate=evaluate,
)
