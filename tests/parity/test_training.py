"""The training rules' comparisons: every recorded number, moved a little, has to fail."""

from typing import Any

import pytest
import torch
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, numbers, read_index
from tests.parity.handlers import compare
from torch import Tensor

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

SETS = {golden.name: golden for golden in read_index(GOLDEN, "training")}


def copy_of(name: str, **changed: dict[str, Any]) -> GoldenSet:
    """A set with other ``tensors`` or ``values`` than its files have."""
    golden = GoldenSet(GOLDEN, name, SETS[name].entry)
    golden.__dict__.update(changed)  # where cached properties are kept
    return golden


def moved(golden: GoldenSet, key: str, recorded: Tensor) -> Tensor:
    """Its last number by three times what is allowed."""
    allowed = float(golden.allowed(key, recorded).flatten()[-1])
    changed = recorded.clone().flatten()
    if changed.dtype == torch.bool:
        changed[-1] = ~changed[-1]
    elif changed.is_floating_point():
        changed[-1] += 3 * allowed or 1e-6
    else:
        back = changed.dtype == torch.uint8 and changed[-1] > 128
        changed[-1] += int(max(3 * allowed, 1)) * (-1 if back else 1)
    return changed.reshape(recorded.shape)


def moved_value(golden: GoldenSet, key: str, recorded: Any) -> Any:
    """A number by three times what is allowed; anything else becomes a text."""
    number = numbers(recorded)
    if number is None or not number.numel():
        return [*recorded, "x"] if isinstance(recorded, list) else f"{recorded}x"
    return moved(golden, key, number).tolist()


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_recorded_number_counts(name: str) -> None:
    """All moved at once: comparisons are fed no output but the names of parameters."""
    result = compare(copy_of(name))
    assert (result["status"], result["reason"]) == ("passed", "")
    golden, compared = SETS[name], result["tensors"]
    assert isinstance(compared, dict)
    keys = [key for key in compared if not key.endswith(".params")]
    tensors = {k: moved(golden, k, v) for k, v in golden.tensors.items() if k in keys}
    values = {k: moved_value(golden, k, v) for k, v in golden.values.items() if k in keys}
    changed = copy_of(
        name, tensors={**golden.tensors, **tensors}, values={**golden.values, **values}
    )
    again = compare(changed)["tensors"]
    assert isinstance(again, dict)
    assert [key for key in keys if again[key]["ok"]] == []


def test_a_parameter_in_another_group_fails() -> None:
    name, prefix = "vlmo/optimiser", "groups_and_schedule:vqa.groups"
    values = dict(SETS[name].values)
    first, second = (values[f"{prefix}.{i}.params"] for i in range(2))
    values |= {f"{prefix}.0.params": first[1:], f"{prefix}.1.params": [*second, first[0]]}
    result = compare(copy_of(name, values=values))
    assert result["status"] == "failed" and f"{prefix}.1.params" in str(result["reason"])


def test_a_draw_that_is_left_over_fails() -> None:
    """A rule that drew less than the published code cannot pass by luck."""
    name, key = "interbert/data_ops", "text_cases:mlm15.0.uniform_draws"
    values = dict(SETS[name].values)
    values[key] = [*values[key], 0.5]
    result = compare(copy_of(name, values=values))
    assert result["status"] == "failed" and "draws are left" in str(result["reason"])
