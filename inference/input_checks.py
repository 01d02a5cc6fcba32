"""Tells which images and texts have no numbers, and why; the others have theirs."""

import sys
import warnings
from collections import Counter
from collections.abc import Sequence

from vlmill.schemas.rejects import Reason, reason_counts


def without_words(count: int, good: Sequence[int]) -> dict[int, Reason]:
    """Returns which of ``count`` texts are not among the ``good`` ones, which have a word."""
    return dict.fromkeys(sorted(set(range(count)) - set(good)), Reason.NO_TEXT)


def warn_faults(what: str, faults: dict[int, Reason]) -> None:
    """Warns of images or texts that have no numbers: how many, why, and which come first."""
    if not faults:
        return
    counts = reason_counts(Counter(faults.values()))
    first = ", ".join(map(str, sorted(faults)[:5]))
    warn(
        f"{len(faults)} {what} have no result ({counts}), their values are NaN: {first}"
        f"{' and others' if len(faults) > 5 else ''}"
    )


def warn(message: str) -> None:
    """Warns, at the line of a user that has called this package: its own lines say nothing to who
    reads the warning, and Python tells the same words at the same line only once.
    """
    frame, level, package_level = sys._getframe().f_back, 2, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "vlmill":
            package_level = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=package_level + 1)
