"""What is checked before retrieval is evaluated, and what its reader must be told."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from vlmill.schemas.commands import InputError
from vlmill.schemas.reading import read_table
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.tables import PAIRS
from vlmill.train.checkpoint import LoadedCheckpoint
from vlmill.train.data import HELD_OUT_SPLITS, pairs_digest
from vlmill.train.tasks.retrieval import Candidates, Pair
from vlmill.train.tasks.retrieval_report import DIRECTIONS, percent

TIE_WARNING = 0.001  # the gap between R@1 by the two rules for equal scores that is worth a note


def read_pairs(pairs: str, split: str | None = None) -> list[Pair]:
    """The pairs to rank: all of a table, or those of one split. Raises InputError for none."""
    table = read_table(
        pairs, PAIRS, columns=["pair_id", "image_id", "text", "split"], flag="--pairs"
    )
    found = sorted({str(value) for value in table.column("split").unique().to_pylist()})
    if split is not None:
        table = table.filter(pc.equal(table.column("split"), split))
    if not table.num_rows:
        there = "an empty table" if not found else f"its splits are {', '.join(found)}"
        raise InputError(f"--pairs {pairs}: nothing to rank; {there}")
    return [Pair(**row) for row in table.to_pylist()]


def check_candidates(
    candidates: Candidates, rejects: Sequence[Mapping[str, object]], fold_images: int | None
) -> None:
    """Raise InputError if no pair is left, or the pictures do not fill whole folds."""
    if not candidates.pairs:
        reasons = Counter(row["reason"] for row in rejects)
        raise InputError(
            f"--pairs: none of {len(rejects)} pairs can be scored "
            f"({', '.join(f'{n} {reason}' for reason, n in reasons.items())}); "
            "give the --regions of their pictures"
        )
    num_images = len(candidates.image_ids)
    if fold_images is not None and (fold_images < 1 or num_images % fold_images):
        raise InputError(
            f"--fold-images {fold_images} does not divide the {num_images} pictures into whole "
            "folds; give a divisor"
        )


def check_matching_head(loaded: LoadedCheckpoint) -> None:
    """Raise InputError if the model cannot say whether a text and a picture belong together."""
    model = loaded.model
    if not hasattr(model, "match_logit") or getattr(model, "match_head", model) is None:
        raise InputError(
            f"--checkpoint {loaded.path} is a {loaded.variant} without a matching head, by which "
            "retrieval ranks; train one with the matching objective"
        )


def notes_on_data(
    loaded: LoadedCheckpoint, regions: RegionReader, table: str, pairs: Sequence[Pair]
) -> list[str]:
    """What a reader of the figures must know of checkpoint, regions and pairs.

    ``pairs`` are those of ``table`` that are ranked.

    Raises InputError if the regions are another detector's than the checkpoint was trained on.
    """
    expected, found = loaded.detector_fingerprint, regions.detector_fingerprint
    if expected is not None and found is not None and expected != found:
        raise InputError(
            f"--regions come from detector {found[:16]}, the checkpoint was trained on "
            f"{expected[:16]}; extract these pictures with the detector of the training"
        )
    if (width := loaded.config.region_width) != regions.feature_dim:
        raise InputError(
            f"--regions have features {regions.feature_dim} wide, the checkpoint takes {width}; "
            "extract these pictures with the detector of the training"
        )
    notes = []
    if expected is None or found is None:
        side = "The regions do" if found is None else "The checkpoint does"
        notes.append(
            f"{side} not say which detector was used: that it is the training's is unchecked."
        )
    if str(regions.producer.get("weights", "")).startswith("random"):
        notes.append("The regions' detector has random weights: it recognises nothing.")
    training = loaded.training
    if training.step == 0:
        notes.append("The checkpoint is untrained: figures are those of random weights.")
    elif pairs_digest(table)[1] == training.pairs_digest:
        # Training reads the same table, but for its held-out splits.
        learnt = sum(pair.split not in HELD_OUT_SPLITS for pair in pairs)
        if learnt:
            notes.append(
                f"The checkpoint was trained on {learnt} of these {len(pairs)} pairs: the figures "
                "show what it knows by heart."
            )
    return notes


def notes_on_ties(metrics: Mapping[str, float]) -> list[str]:
    """A warning for each direction whose R@1 depends on how equal scores are ordered."""
    notes = []
    for direction in DIRECTIONS:
        low, high = metrics[f"{direction}/r1"], metrics[f"{direction}/r1_optimistic"]
        if high - low > TIE_WARNING:
            notes.append(
                f"{direction}: {int(metrics[f'{direction}/ties'])} queries have ties; R@1 would be "
                f"{percent(high)} % if equal scores counted for the model, and is {percent(low)} %."
            )
    return notes
