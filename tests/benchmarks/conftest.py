"""What the tests of training have, for the benchmarks that train."""

from tests.train.conftest import fresh_accelerator

__all__ = ["fresh_accelerator"]
