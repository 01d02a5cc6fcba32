"""Tells which pictures and texts have no numbers, and why; the others have theirs."""

import warnings
from collections import Counter
from collections.abc import Sequence

from vlmill.schemas.rejects import Reason, reason_counts


def without_words(count: int, good: Sequence[int]) -> dict[int, Reason]:
    """Returns which of ``count`` texts are not among the ``good`` ones, which have a word."""
    return dict.fromkeys(sorted(set(range(count)) - set(good)), Reason.NO_TEXT)


def warn_of(what: str, faults: dict[int, Reason]) -> None:
    """Warns of pictures or texts that have no numbers: how many, why, and which come first."""
    if not faults:
        return
    counts = reason_counts(Counter(faults.values()))
    first = ", ".join(map(str, sorted(faults)[:5]))
    warnings.warn(
        f"{len(faults)} {what} have no numbers ({counts}), NaN stands for them: {first}"
        f"{' and others' if len(faults) > 5 else ''}",
        stacklevel=4,
    )
