"""Sets of recordings as parameters, and what the report says of each."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import GOLDEN, PARTS, REPORT
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import HANDLERS

EVERYTHING = "VLMILL_GOLDEN"


def asked_sets(config: pytest.Config) -> list[GoldenSet]:
    """The sets of ``--golden`` and ``--part``; without a part, of every part that is built."""
    root = config.getoption("--golden") or GOLDEN
    if not (root / "index.json").is_file():
        raise pytest.UsageError(
            f"--golden {root}: no index.json there; give a folder of recordings"
        )
    return sets_of(root, config.getoption("--part"))


def sets_of(root: Any, parts: list[str] | None) -> list[GoldenSet]:
    """Those of the parts that are asked for, or of every part that is built."""
    if parts:
        return [golden for part in dict.fromkeys(parts) for golden in read_index(root, part)]
    return [golden for golden in read_index(root) if golden.part in HANDLERS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a set."""
    if "golden_set" in metafunc.fixturenames:
        sets = asked_sets(metafunc.config)
        if not sets:
            parts = ", ".join(metafunc.config.getoption("--part") or PARTS)
            raise pytest.UsageError(f"--part {parts}: no such sets")
        metafunc.parametrize("golden_set", sets, ids=[golden.name for golden in sets])
    if "recording" in metafunc.fixturenames:
        metafunc.parametrize("recording", recordings(metafunc.config))


def recordings(config: pytest.Config) -> list[Any]:
    """Every recording in the folders of VLMILL_GOLDEN, for the run of all tests; a reason to skip
    where there are none.
    """
    root = os.environ.get(EVERYTHING)
    if config.getoption("--golden") or not root:
        asked = "--golden says which recordings to compare"
        reason = asked if config.getoption("--golden") else f"{EVERYTHING} names no recordings"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]
    asked_parts = config.getoption("--part")
    sets = [one for place in root.split(os.pathsep) for one in sets_of(Path(place), asked_parts)]
    return [pytest.param(golden, id=golden.name) for golden in sets]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What ``--report`` will hold: status, reason and deviations by set."""
    return request.config.stash[REPORT]
