"""Attention with a bias that all sequences share: the kernels where there is no GPU, and who takes
them.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.models.detector.placed import Placed

from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.gpu.biased_attention import reads_bias_once
from vlmill.models.layers.packing import Layout, make_joint_layout
from vlmill.models.positions import Cells

ROOT = Path(__file__).parents[3]


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not there for this system")
@pytest.mark.parametrize(
    ("module", "case"),
    [
        ("bias_kernel_cases", "numbers"),
        ("bias_kernel_cases", "interpret"),
        ("bias_kernel_cases", "compile"),
        ("kernel_blocks_case", ""),
    ],
)
def test_kernels(module: str, case: str, tmp_path: Path) -> None:
    """In another process: Triton is told to interpret before it sees a kernel."""
    settings = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    if case != "compile":
        settings["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", f"tests.models.layers.{module}", *([case] if case else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | settings, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_kernels_take_rows_on_a_gpu_without_dropout() -> None:
    there = Placed(torch.empty(3, 2, 64, dtype=torch.bfloat16))
    assert reads_bias_once(there, 0.0) and reads_bias_once(Placed(torch.empty(3, 2, 16)), 0.0)
    assert not reads_bias_once(there, 0.1)
    assert not reads_bias_once(torch.empty(3, 2, 64), 0.0)
    assert not reads_bias_once(Placed(torch.empty(3, 2, 34)), 0.0)
    assert not reads_bias_once(Placed(torch.empty(3, 2, 64, dtype=torch.float64)), 0.0)


def test_on_a_cpu_the_setting_changes_nothing() -> None:
    torch.manual_seed(0)
    layer, hidden, bias = SelfAttention(32, 2), torch.randn(2, 5, 32), torch.randn(2, 5, 5)
    expected = layer(hidden, Layout((2, 5)), bias)
    layer.bias_kernel = True
    assert torch.equal(layer(hidden, Layout((2, 5)), bias), expected)


def test_rows_of_cells() -> None:
    """Texts of 2 and 1 tokens before images of 1 and 2 patches; all texts' rows come first."""
    text, image = torch.tensor([[True, True], [True, False]]), torch.tensor([[True, False]] * 2)
    image[1, 1] = True
    cells = Cells(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 3]))
    layout, _ = make_joint_layout(text, image, cells)
    rows = layout.rows_of_cells()
    assert rows is not None and rows.tolist() == [[0, 1, 3, -1], [2, -1, 4, 5]]
    assert layout.mask_of_grid() is None
    grid, _ = make_joint_layout(text, image, pack=False)
    assert grid.rows_of_cells() is None and grid.mask_of_grid() is grid.key_mask
