"""Warns of invalid images and texts."""

import sys
import warnings
from collections import Counter
from collections.abc import Sequence

from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Reason, reason_counts


def without_words(count: int, good: Sequence[int]) -> dict[int, Reason]:
    """Returns which of ``count`` texts are not among the ``good`` ones, which have a word."""
    return dict.fromkeys(sorted(set(range(count)) - set(good)), Reason.NO_TEXT)


def warn_faults(what: str, faults: dict[int, Reason]) -> None:
    """Warns about inputs without a result: their number, the reasons and the first ones.

    ``what`` is the noun in the singular, "image" or "text".
    """
    if not faults:
        return
    counts = reason_counts(Counter(faults.values()))
    first = ", ".join(map(str, sorted(faults)[:5]))
    warn(
        f"{format_count(len(faults), what)} without a result ({counts}), NaN instead: {first}"
        f"{' and others' if len(faults) > 5 else ''}"
    )


def warn(message: str) -> None:
    """Warns with the line of the caller outside of this package.

    A line inside the package does not help the user, and Python prints the same text at the same
    line only once.
    """
    frame, level, package_level = sys._getframe().f_back, 2, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "vlmill":
            package_level = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=package_level + 1)
