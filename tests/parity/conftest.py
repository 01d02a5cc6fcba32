"""Sets of recordings as parameters, and the report over all of them."""

import json
import os
from typing import Any

import pytest
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import HANDLERS

REPORT = pytest.StashKey[dict[str, Any]]()
EVERYTHING = "VLMILL_GOLDEN"


def asked_sets(config: pytest.Config) -> list[GoldenSet]:
    """The sets of ``--golden`` and ``--part``; without a part, of every part that is built."""
    root = config.getoption("--golden") or GOLDEN
    if not (root / "index.json").is_file():
        raise pytest.UsageError(
            f"--golden {root}: no index.json there; give a folder of recordings"
        )
    return sets_of(root, config.getoption("--part"))


def sets_of(root: Any, part: str | None) -> list[GoldenSet]:
    sets = read_index(root, part)
    return sets if part else [golden for golden in sets if golden.part in HANDLERS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a set."""
    if "golden_set" in metafunc.fixturenames:
        sets = asked_sets(metafunc.config)
        if not sets:
            raise pytest.UsageError(f"--part {metafunc.config.getoption('--part')}: no such sets")
        metafunc.parametrize("golden_set", sets, ids=[golden.name for golden in sets])
    if "recording" in metafunc.fixturenames:
        metafunc.parametrize("recording", recordings(metafunc.config))


def recordings(config: pytest.Config) -> list[Any]:
    """Every recording there is, for the run of all tests; a reason to skip where there are none."""
    root = os.environ.get(EVERYTHING)
    if config.getoption("--golden") or not root:
        asked = "--golden says which recordings to compare"
        reason = asked if config.getoption("--golden") else f"{EVERYTHING} names no recordings"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]
    sets = sets_of(type(GOLDEN)(root), config.getoption("--part"))
    return [pytest.param(golden, id=golden.name) for golden in sets]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What ``--report`` will hold: status, reason and deviations by set."""
    return request.config.stash.setdefault(REPORT, {})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the report, also when sets failed."""
    path = session.config.getoption("--report")
    if path is not None and not session.config.option.collectonly:
        results = session.config.stash.setdefault(REPORT, {})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
