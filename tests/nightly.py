"""Parameters of tests: the cases of ``make test``, and the nightly ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def stand_for(names: Iterable[str], *kept: str) -> list[Any]:
    """Returns all names; those that are not ``kept`` run in ``make test-nightly`` alone.

    Raises AssertionError for a kept name that is not among them.
    """
    every = list(names)
    assert set(kept) <= set(every), f"{sorted(set(kept) - set(every))} are not among {every}"
    return [pytest.param(name, marks=() if name in kept else pytest.mark.nightly) for name in every]
