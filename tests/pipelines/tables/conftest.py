"""The job in this process, but for the tests of its processes."""

import pytest

from vlmill.runtime.units import flags


@pytest.fixture(autouse=True)
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting processes takes longer than the few rows of a test."""
    monkeypatch.setattr(flags, "all_cores", lambda: 1)
