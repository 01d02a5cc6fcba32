"""Every recorded tensor of the published systems against ours.

pytest tests/parity --golden DIR [--part detector] [--report FILE]
"""

from typing import Any

from tests.parity.golden import GoldenSet
from tests.parity.handlers import compare


def test_set(golden_set: GoldenSet, report: dict[str, Any]) -> None:
    result = report[golden_set.name] = compare(golden_set)
    assert result["status"] == "passed", result["reason"]


def test_set_of_all_recordings(recording: GoldenSet) -> None:
    result = compare(recording)
    assert result["status"] == "passed", result["reason"]
