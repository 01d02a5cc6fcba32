"""Every test may have its own precision."""

from collections.abc import Iterator

import pytest
from accelerate.state import AcceleratorState


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """Forgets the precision, which accelerate keeps for a process, also of wider fixtures."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
