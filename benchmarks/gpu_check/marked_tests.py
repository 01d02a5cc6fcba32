"""Runs the tests marked ``gpu``, without the plugins and options that the whole suite needs."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.own_process import ROOT

# The project's own options name plugins that a bare machine lacks. Without a GPU, --nightly has the
# tests compare the CPU with itself.
OPTIONS = (
    *("-q", "-m", "gpu", "--nightly", "-o", "addopts="),
    *("--import-mode=importlib", "-p", "no:cacheprovider"),
)
RAN = (0, 1)  # pytest's exit statuses after which there are results


def marked(setting: Setting) -> dict[str, object]:
    """Says how many passed, and the names of those that did not."""
    results = setting.folder / "results.xml"
    # Small, one file stands for all: the whole suite runs them anyway.
    files = marked_files()[-1:] if setting.tiny else marked_files()
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={results}", *files]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    status = subprocess.run(command, cwd=ROOT, env=alone).returncode
    if status not in RAN:
        raise RuntimeError(f"pytest ended with status {status}")
    cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [name_of(case) for case in cases if has(case, "failure", "error")]
    skipped = [name_of(case) for case in cases if has(case, "skipped")]
    passed = len(cases) - len(failed) - len(skipped)
    counts = {"value": passed, "unit": "tests passed", "failed": failed, "skipped": skipped}
    if failed or not passed:
        reason = f"{len(failed)} of {len(cases)} tests failed"
        return {"status": "failed", "reason": reason, **counts}
    return counts


def marked_files() -> list[str]:
    """Returns the files that have such tests: others may import what is not there."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if has_mark(path)]


def has_mark(path: Path) -> bool:
    """Says whether a file marks tests ``gpu``."""
    return "pytest.mark.gpu" in path.read_text(encoding="utf-8")


def has(case: ElementTree.Element, *kinds: str) -> bool:
    """Says whether a test ended in one of these ways."""
    return any(case.find(kind) is not None for kind in kinds)


def name_of(case: ElementTree.Element) -> str:
    """Returns the test's module and name."""
    return f"{case.get('classname')}::{case.get('name')}"
