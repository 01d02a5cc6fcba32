"""Without ``layers/cpu`` the models still work, and compute the same numbers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tests.models.pair_cases import READERS, loss_of, padded_pairs
from torch import Tensor, nn

from vlmill.models import VARIANTS, PixelInputs, preset
from vlmill.models.layers import operators

ROOT = Path(__file__).parents[4]
SCRIPT = """
import sys
import torch
from tests.models.layers.cpu import test_without_folder as case
from vlmill.models.layers import operators

assert not operators.HAS_CPU and operators.__file__.startswith(sys.argv[1])
torch.save(case.losses_and_gradients(), sys.argv[2])
"""


def losses_and_gradients() -> dict[str, Tensor]:
    """Of every model, by name: without dropout, whose draws differ, and once with it."""
    numbers: dict[str, Tensor] = {}
    for name, sizes in READERS.items():
        config = preset(name, **sizes)
        variant = next(v for v in VARIANTS.values() if isinstance(config, v.config))
        torch.manual_seed(0)
        model: Any = variant.model(config)
        options = {"task": torch.arange(3)} if "num_tasks" in sizes else {}
        inputs = padded_pairs([7, 4, 6], [5, 6, 3])
        numbers |= gradients(name, model.eval(), loss_of(model, inputs, **options))
        assert loss_of(model.train(), inputs, **options).isfinite()
    # Its relative positions are a learned bias of attention.
    config = preset("vlmo-small", vocab_size=50, image_size=32, drop_path=0.0)
    torch.manual_seed(0)
    vlmo = VARIANTS["vlmo"].model(config)
    mask = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    pixels = torch.linspace(-1, 1, 3 * 3 * 32 * 32).view(3, 3, 32, 32)
    inputs_of_pixels = PixelInputs(tokens=mask * 3, token_mask=mask, pixels=pixels)
    return numbers | gradients("vlmo", vlmo, vlmo(inputs_of_pixels).pooled.square().sum())


def gradients(name: str, model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """A loss and its gradients, by name."""
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters())
    numbers = {f"{name} {p}": v.grad for p, v in parameters.items() if v.grad is not None}
    return {f"{name} loss": loss.detach(), **numbers}


def test_models_compute_the_same_without_the_folder(tmp_path: Path) -> None:
    """In another process, from a copy of the package that lacks it."""
    package = tmp_path / "vlmill"
    package.mkdir()
    shutil.copy(ROOT / "src/vlmill/__init__.py", package)
    for folder in ("models", "schemas"):
        ignored = shutil.ignore_patterns("cpu", "__pycache__")
        shutil.copytree(ROOT / folder, package / folder, ignore=ignored)
    file = tmp_path / "numbers.pt"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert operators.HAS_CPU
    torch.testing.assert_close(
        torch.load(file, weights_only=True), losses_and_gradients(), atol=1e-5, rtol=1e-4
    )
