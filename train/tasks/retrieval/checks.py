"""Checks the inputs of a retrieval evaluation, and collects notes for the reader of its figures."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from vlmill.models import VARIANTS
from vlmill.models.registry import get_variant
from vlmill.models.rows import get_part
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.readers.trained_on import count_known
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint, TrainedOn, require_detector
from vlmill.train.loading.features import are_ranked, check_global_features
from vlmill.train.recipes import get_training
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.base import NAME
from vlmill.train.tasks.retrieval.candidates import Candidates
from vlmill.train.tasks.retrieval.report import DIRECTIONS
from vlmill.train.tasks.scores import percent

TIE_WARNING = 0.001  # smallest noted gap between R@1 by the two rules for equal scores

Ranking = Literal["matching", "contrast"]


def select_ranking(
    loaded: LoadedCheckpoint, rerank: int | None = None, first_stage: str | None = None
) -> Ranking:
    """Returns the head by which the model ranks: the contrastive head if the model has one, except
    for candidates that a ``first_stage`` has selected.

    Raises InputError if the model cannot predict whether a text and an image belong together, or
    not by the requested method.
    """
    who = f"--checkpoint {loaded.path} is {with_article(loaded.variant)}"
    config = loaded.body
    if loaded.task is not None and loaded.task.name != NAME:
        raise InputError(
            f"{who} that was fine-tuned for {loaded.task.name}; evaluate {loaded.task.name}, or "
            "give one of retrieval"
        )
    if loaded.task is not None and loaded.task.blind:
        raise InputError(
            f"{who} that was trained without images (blind=true): all images get the "
            "same rank, so its recalls are chance level"
        )
    variant = get_variant(loaded.variant)
    contrast = variant.contrasts and config.contrast
    if variant.makes_features:
        raise InputError(f"{who}, which reads pixels and boxes; retrieval feeds regions' features")
    if not contrast and not _has_matching_head(loaded):
        raise InputError(
            f"{who} without a matching or contrastive head, which retrieval needs for "
            "ranking; train a model with such an objective"
        )
    if loaded.feeding is not None and loaded.feeding.kind not in ("regions", "pixels"):
        raise InputError(f"{who} last trained on {loaded.feeding.kind} only; train it on pairs")
    if first_stage is not None and rerank is None:
        raise InputError(
            "--first-stage selects candidates to rank again; give their number with --rerank K"
        )
    if rerank is not None:
        if not ((contrast or first_stage) and _has_matching_head(loaded)):
            raise InputError(
                f"--rerank {rerank}: {who}, which does not have both a contrastive and "
                "a matching head; remove --rerank, or select with another model or with "
                "words (--first-stage)"
            )
        if rerank < 1:
            raise InputError(f"--rerank {rerank}: expected at least 1")
    if getattr(config, "num_tasks", 0):
        raise InputError(f"{who} that needs a task token, which retrieval does not provide")
    return "contrast" if contrast and first_stage is None else "matching"


def _has_matching_head(loaded: LoadedCheckpoint) -> bool:
    variant = get_variant(loaded.variant)
    paths = (variant.match_head, variant.match_logit)
    return all(get_part(loaded.model, path) is not None for path in paths)


def find_feeding(loaded: LoadedCheckpoint, max_regions: int | None = None) -> Feeding:
    """Returns the model's feeding at the end of its training; for a published model, its paper's.

    ``max_regions`` overrides its number of regions. Raises InputError for less than one.
    """
    feeding = loaded.feeding
    if feeding is None:
        feeding = get_training(loaded.variant).feeding()
        if not getattr(loaded.body, "global_region", True):
            feeding = dataclasses.replace(feeding, whole_image="none")
    if max_regions is not None:
        if max_regions < 1:
            raise InputError(f"--max-regions {max_regions}: expected at least 1")
        feeding = dataclasses.replace(feeding, max_regions=max_regions)
    if feeding.kind == "pixels":
        feeding = dataclasses.replace(feeding, image_size=loaded.body.image_size)
    return feeding


def longest_text(loaded: LoadedCheckpoint, feeding: Feeding) -> int:
    """Returns how many tokens of a text the model is fed."""
    longest: int = loaded.body.max_text_tokens
    return min(feeding.max_tokens or longest, longest)


def notes_on_regions(
    loaded: LoadedCheckpoint, regions: RegionReader, feeding: Feeding
) -> list[str]:
    """Returns notes on the regions that a reader of the metrics must know.

    Raises InputError if they are another detector's than the checkpoint was trained on.
    """
    same_detector = require_detector(regions.detector_fingerprint, loaded, "--checkpoint")
    config = loaded.body
    if (width := config.region_width) != regions.feature_dim:
        raise InputError(
            f"--regions have features {regions.feature_dim} wide, the checkpoint takes {width}; "
            "extract these images with the detector of the training"
        )
    check_global_features(regions, config)
    notes = []
    if not same_detector:
        unknown = regions.detector_fingerprint is None
        side = "The regions do" if unknown else "The checkpoint does"
        notes.append(
            f"{side} not record which detector was used, so it is not checked that it "
            "is the detector of the training."
        )
    if str(regions.producer.get("weights", "")).startswith("random"):
        notes.append(
            "The detector of the regions has random weights, so the regions are meaningless."
        )
    if feeding.region_order == "confidence" and not are_ranked(regions):
        notes.append("The regions have no class scores, so they are used in the table's order.")
    return notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
    """Counts how many of the ranked pairs and images the checkpoint was trained on."""

    pairs: int
    images: int

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the counts as in ``metrics.json``."""
        return {"pairs_trained_on": self.pairs, "images_trained_on": self.images}


def count_overlap(trained_on: TrainedOn | None, candidates: Candidates) -> Overlap | None:
    """Counts the data that training and evaluation share; None if the checkpoint has no record."""
    if trained_on is None:
        return None
    return Overlap(
        pairs=count_known((pair.pair_id for pair in candidates.pairs), trained_on.pairs),
        images=count_known(candidates.image_ids, trained_on.images),
    )


def notes_on_training(
    loaded: LoadedCheckpoint, overlap: Overlap | None, candidates: Candidates
) -> list[str]:
    """Returns notes on the checkpoint's training data that a reader must know."""
    training, notes = loaded.training, list[str]()
    if training.step == 0 and loaded.feeding is None and not training.stage:
        notes.append("The checkpoint was converted; its inputs are as published.")
        if loaded.variant not in VARIANTS:
            notes.append(
                f"This {loaded.variant} has heads of several tasks; the figures are "
                "only meaningful if it was fine-tuned for retrieval."
            )
    elif training.step == 0 and (loaded.trained_on is None or not len(loaded.trained_on.pairs)):
        return ["The checkpoint is untrained: its weights are random, and so are the figures."]
    if overlap is None or loaded.trained_on is None:
        return [*notes, "The checkpoint does not record which pairs it was trained on."]
    if overlap.pairs or overlap.images:
        knows = "by heart" if overlap.pairs else "in part: other captions of these images"
        notes.append(
            f"The checkpoint was trained on {overlap.pairs} of these "
            f"{len(candidates.pairs)} pairs and {overlap.images} of these "
            f"{len(candidates.image_ids)} images: the figures show what it has memorised {knows}."
        )
    if not loaded.trained_on.complete:
        notes.append(
            "The weights that its training started from do not record their training data."
        )
    return notes


def notes_on_ties(metrics: Mapping[str, float]) -> list[str]:
    """Returns a warning for each direction whose R@1 depends on how equal scores are ordered."""
    notes = []
    for direction in DIRECTIONS:
        low, high = metrics[f"{direction}/r1"], metrics[f"{direction}/r1_optimistic"]
        if high - low > TIE_WARNING:
            notes.append(
                f"{direction}: {int(metrics[f'{direction}/ties'])} queries have ties; R@1 would be "
                f"{percent(high)} % if ties counted as correct; it is {percent(low)} %."
            )
    return notes


def notes_on_shortlists(metrics: Mapping[str, float]) -> list[str]:
    """Returns notes on the most recall that a first stage can cost, if there was one."""
    if "image_retrieval/listed" not in metrics:
        return []
    texts, images = (1 - metrics[f"{kind}_retrieval/listed"] for kind in ("image", "text"))
    return [
        f"The first stage excluded the right image of {percent(texts)} % of the texts "
        f"and the right text of {percent(images)} % of the images; it lowers the "
        "recalls by at most that."
    ]


def notes_on_many(count: int, shape: tuple[int, ...]) -> list[str]:
    """Returns a note if ``--rerank`` asks for ``count`` or more of all candidates."""
    if count < max(shape):
        return []
    return [
        f"--rerank {count} is at least the number of images and texts: all pairs are "
        "scored, and the first stage has no effect."
    ]
