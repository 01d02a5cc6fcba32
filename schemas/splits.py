"""Defines the names of splits for training, validation and test as one closed table.

An unknown split stops the reader: if a misspelt test set were silently used for training, every
figure would be wrong.
"""

from collections.abc import Iterable
from typing import Literal

from vlmill.schemas.errors import InputError

Use = Literal["train", "validation", "test"]

_NAMES: dict[Use, tuple[str, ...]] = {
    "train": (
        *("train", "train2014", "train2017", "trainval", "restval"),
        *("nominival", "valminusminival2014"),
    ),
    "validation": (
        *("val", "valid", "validation", "dev", "minival"),
        *("val2014", "val2017", "minival2014", "dev_matched", "dev_mismatched"),
        *("dev_seen", "dev_unseen"),
    ),
    "test": (
        *("test", "test2014", "test2015", "test2017", "test1", "test2", "testA", "testB"),
        *("test-P", "test-dev", "test-std", "test_matched", "test_mismatched"),
        *("testdev", "challenge", "test_seen", "test_unseen"),
    ),
}
USES: dict[str, Use] = {name.lower(): use for use, names in _NAMES.items() for name in names}


def split_name(split: str | None) -> str:
    """Returns a split's name as names are compared: without its case; null is ``train``."""
    return "train" if split is None else split.strip().lower()


def find_use(split: str | None) -> Use | None:
    """Returns the use of a split, ignoring case; None for an unknown name.

    Rows without a split (null) are used for training.
    """
    return USES.get(split_name(split))


def check_splits(splits: Iterable[str | None], flag: str) -> None:
    """Raises InputError for unknown names of splits, with the known names."""
    unknown = sorted({split for split in splits if split is not None and find_use(split) is None})
    if unknown:
        names = "; ".join(f"{use}: {', '.join(known)}" for use, known in _NAMES.items())
        raise InputError(
            f"{flag}: the split {', '.join(map(repr, unknown[:8]))} is neither trained on nor held "
            f"out ({names}); rename it, or name the splits to train on: train_splits=[...]"
        )
