"""The kernels for GPUs, where there is none: interpreted, and compiled for one."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not there for this system")
@pytest.mark.parametrize("way", ["interpret", pytest.param("compile", marks=pytest.mark.nightly)])
def test_kernels(way: str, tmp_path: Path) -> None:
    """In another process: Triton is told to interpret before it sees a kernel."""
    settings = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    if way == "interpret":
        settings["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "tests.models.detector.kernel_cases", way]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | settings, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
