"""Selects the rows of the table of pairs for training, and the rows for validation.

A stage may name splits (``train_splits``, ``validation_splits``); otherwise the table of names in
:mod:`vlmill.schemas.splits` decides. A split that any stage names is used as that stage names it,
regardless of that table, so that no pair is trained on in one stage and validated on in another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.splits import check_splits, find_use, split_name
from vlmill.train.loading.arrays import Keys
from vlmill.train.settings.spec import RunSettings, TrainingStage

Splits = frozenset[str | None]  # as written in the table

ALL_KEYS = 1 << 64
DRAWN_SHARE = 0.01  # share of the images that are held out where no split is for validation
DRAWN_LEAST, DRAWN_MOST = 100, 5_000  # images
DRAWN_LARGEST_SHARE = 0.1  # for few images, overrides DRAWN_LEAST


def unit_key(row: Mapping[str, Any]) -> int:
    """Returns the hash of a row's image, which keeps an image's captions together; for a text
    without an image that of its pair.
    """
    return key64(row["pair_id"] if row["image_id"] is None else row["image_id"])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Selects rows of the table: rows of ``splits`` whose :func:`unit_key` is from ``first`` to
    below ``end``. Without ``splits``, it uses the splits that the table of names assigns to
    training.
    """

    splits: Splits | None = None
    first: int = 0
    end: int = ALL_KEYS

    def has(self, row: Mapping[str, Any]) -> bool:
        """Returns whether a row with ``pair_id``, ``image_id`` and ``split`` is selected."""
        split = row["split"]
        if not (find_use(split) == "train" if self.splits is None else split in self.splits):
            return False
        if (self.first, self.end) == (0, ALL_KEYS):
            return True
        return self.first <= unit_key(row) < self.end


FOR_TRAINING = Rows()


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Holds the splits that each stage trains on and validates on, in the order of the stages.

    ``draws``: no pair is in a split for validation; some images that would be trained on are held
    out for it.
    """

    training: tuple[Splits, ...]
    validation: tuple[Splits, ...]
    draws: bool = False

    @property
    def trained(self) -> Splits:
        """Returns the splits that any stage trains on."""
        return frozenset[str | None]().union(*self.training)

    @property
    def validated(self) -> Splits:
        """Returns the splits that any stage is validated on."""
        return frozenset[str | None]().union(*self.validation)


def plan_splits(
    recipe: RunSettings, table: Iterable[str | None], flag: str = "--pairs"
) -> SplitPlan:
    """Plans how a run uses the splits of its ``table``.

    ``flag`` names the table. Raises InputError for splits that a stage names and the table lacks,
    and for splits that neither a stage nor the table of names knows.
    """
    splits, stages = frozenset(table), recipe.stages
    for number, stage in enumerate(stages):
        for field in ("train_splits", "validation_splits"):
            _require(getattr(stage, field), splits, f"stages.{number}.{field}: {flag}")
    learnt = _named(stage.train_splits for stage in stages)
    measured = _named(stage.validation_splits for stage in stages)
    if not all(stage.train_splits for stage in stages):
        check_splits((s for s in splits if split_name(s) not in learnt | measured), flag)

    def trained(stage: TrainingStage) -> Splits:
        if stage.train_splits:
            return _among(splits, stage.train_splits)
        return frozenset(
            s for s in splits if find_use(s) == "train" and split_name(s) not in measured
        )

    def validated(stage: TrainingStage) -> Splits:
        if stage.validation_splits:
            return _among(splits, stage.validation_splits)
        return frozenset(
            s for s in splits if find_use(s) == "validation" and split_name(s) not in learnt
        )

    training = tuple(trained(stage) for stage in stages)
    validation = tuple(validated(stage) for stage in stages)
    draws = bool(recipe.validate_every) and not any(validation)
    return SplitPlan(training=training, validation=training if draws else validation, draws=draws)


def _named(fields: Iterable[Sequence[str]]) -> frozenset[str]:
    return frozenset(split_name(name) for names in fields for name in names)


def _among(splits: Splits, names: Sequence[str]) -> Splits:
    return frozenset(s for s in splits if split_name(s) in _named([names]))


def _require(names: Sequence[str], splits: Splits, where: str) -> None:
    known = _named([[split_name(s) for s in splits]])
    if missing := [name for name in names if split_name(name) not in known]:
        split_list = ", ".join(sorted({"null" if s is None else s for s in splits})) or "none"
        raise InputError(
            f"{where} has no split {', '.join(missing)} (it has {split_list}); name "
            "existing splits, or remove the field"
        )


def holdout_threshold(keys: Keys) -> int:
    """Returns the :func:`unit_key` below which images are held out, given the keys of all rows.

    One image in a hundred is held out, at least 100 and at most 5,000, but for few images at most a
    tenth; at least one if there are two. It depends on the ids only: every seed has the same.
    """
    units = np.unique(keys)
    count = max(DRAWN_SHARE * len(units), DRAWN_LEAST)
    count = min(count, DRAWN_MOST, DRAWN_LARGEST_SHARE * len(units))
    return int(units[max(int(count), 1)]) if len(units) > 1 else 0


def describe_plan(plan: SplitPlan, splits: Mapping[str | None, int]) -> str:
    """Describes how a plan uses the pairs of each split, in a sentence."""
    uses = {"trains on": plan.trained}
    if not plan.draws:
        uses["keeps for validation"] = plan.validated - plan.trained
    uses["leaves out"] = frozenset(splits) - plan.trained - plan.validated
    parts = [
        f"{use} "
        + ", ".join(f"{name or 'null'} ({splits[name]})" for name in sorted(names, key=str))
        for use, names in uses.items()
        if names
    ]
    return f"splits: {'; '.join(parts)}"
