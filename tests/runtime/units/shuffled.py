"""A runner for tests: the units of each step in another order than that of their numbers."""

from collections.abc import Sequence
from typing import Any

from vlmill.runtime.units.step import Step


def run_backwards(job: Any, steps: Sequence[Step[Any]]) -> None:
    """Does the last unit of each step first."""
    for step in steps:
        for unit in reversed(step.units(job)):
            step.run(job, unit)
