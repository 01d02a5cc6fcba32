"""Holds the shared parts of all tasks' metrics: joining by id, shares with errors, and percent.

Figures are fractions under flat names; an undefined one is None, ``null`` in ``metrics.json``.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import ROUND_HALF_UP, Decimal
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError

K = TypeVar("K", bound=int | str)
V = TypeVar("V")

Figures = dict[str, float | None]

NO_SPLIT = "train"  # the split of rows that name none
NAMED = 5  # ids at fault that a message names
NOISE = 10  # decimals of a percentage beyond which binary fractions are not the decimal ones meant


def by_id(items: Iterable[tuple[K, V]], source: str) -> dict[K, V]:
    """Returns items by their ids. Raises InputError, which names ``source``, for repeated ids."""
    items = list(items)
    joined = dict(items)
    if len(joined) < len(items):
        counts: dict[K, int] = {}
        for key, _ in items:
            counts[key] = counts.get(key, 0) + 1
        repeated = [key for key, count in counts.items() if count > 1]
        raise InputError(f"{source}: {_ids(repeated)} more than once; give each id once")
    return joined


def require_same_ids(predicted: Set[K], labelled: Set[K], source: str) -> None:
    """Raises InputError, which names ``source``, unless each labelled id is predicted and no other.

    Ids are never matched by their position: a prediction too few would shift all others.
    """
    faults = {
        "missing": sorted(labelled - predicted, key=_in_order),
        "not among the examples": sorted(predicted - labelled, key=_in_order),
    }
    descriptions = [f"{_ids(ids)} {what}" for what, ids in faults.items() if ids]
    if descriptions:
        raise InputError(
            f"{source}: {'; '.join(descriptions)}; predict each of the {len(labelled)} examples "
            "once"
        )


def _in_order(key: int | str) -> tuple[int, str]:
    return len(str(key)), str(key)


def _ids(ids: Sequence[int | str]) -> str:
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{', '.join(map(str, ids[:NAMED]))}{more}"


def require_finite(scores: Mapping[K, NDArray[np.floating]], source: str) -> None:
    """Raises InputError, which names ``source``, if an id has a NaN or infinite score."""
    bad = [key for key, values in scores.items() if not np.isfinite(values).all()]
    if bad:
        raise InputError(
            f"{source}: {_ids(bad)} with NaN or infinite scores; compute these scores again"
        )


def standard_error(share: float, n: int) -> float:
    """Returns the binomial standard error of a share of ``n`` examples.

    For a mean of scores between 0 and 1 it is an upper bound of the error.
    """
    return float(np.sqrt(share * (1 - share) / n))


def share(name: str, scores: Sequence[float] | Sequence[bool] | NDArray[np.generic]) -> Figures:
    """Returns the mean of scores in 0..1, or the share of true values, as ``name``, its standard
    error as ``name_stderr`` and their number as ``name_n``; without scores the first two are None.
    """
    n = len(scores)
    mean = float(np.asarray(scores, dtype=np.float64).mean()) if n else None
    error = None if mean is None else standard_error(mean, n)
    return {name: mean, f"{name}_stderr": error, f"{name}_n": n}


def shares_by_group(
    name: str, scores: Mapping[K, float], groups: Mapping[K, str | None]
) -> Figures:
    """Returns each group's :func:`share`, ``name/GROUP``; scores without a group do not count."""
    members: dict[str, list[float]] = {}
    for key, score in scores.items():
        if (group := groups[key]) is not None:
            members.setdefault(group, []).append(score)
    figures: Figures = {}
    for group in sorted(members):
        figures |= share(f"{name}/{group}", members[group])
    return figures


def percent(fraction: float, decimals: int = 1) -> str:
    """Returns a fraction as percent, halves away from zero: 0.68125 as 68.13 with two decimals."""
    exact = Decimal(repr(round(fraction * 100, NOISE)))
    return str(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
