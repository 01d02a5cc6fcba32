"""Settings that have to stand before the first import of torch."""

import os
from pathlib import Path

import pytest

# The suite's tensors are tiny: with more threads, and other work on the machine, most of its time
# is spent waiting for threads (measured: 8.5 s against 0.14 s in one test of 28 forward passes).
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"
PARTS = ("detector", "models", "training", "finetuning", "evaluation")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests/parity; here, because pytest asks for them before it looks into folders."""
    group = parser.getgroup("parity", "recordings of the published systems (tests/parity)")
    group.addoption("--golden", type=Path, metavar="DIR", help=f"recordings (default: {GOLDEN})")
    group.addoption("--part", choices=PARTS, help="of the recordings (default: every part built)")
    group.addoption("--report", type=Path, metavar="FILE", help="write each deviation as JSON")
