"""Memory that is used again, and only when nobody refers to it."""

import gc

import torch

from vlmill.train.loading.features import KEPT, Buffers


def test_memory_of_a_tensor_that_is_gone_is_used_again() -> None:
    buffers = Buffers()
    one = buffers.empty((3, 100), torch.float16)
    place = one.data_ptr()
    assert one.shape == (3, 100) and one.dtype == torch.float16 and place % 64 == 0
    view = one[1:].view(torch.int16)
    del one
    assert buffers.empty((3, 100), torch.float16).data_ptr() != place  # a view is left
    del view
    gc.collect()
    found = buffers.empty((2, 70), torch.float32)
    assert found.data_ptr() == place and found.shape == (2, 70)


def test_much_larger_memory_is_not_taken_and_little_is_kept() -> None:
    buffers = Buffers()
    place = buffers.empty((1000,), torch.float32).data_ptr()
    small = buffers.empty((10,), torch.float32)
    assert small.data_ptr() != place
    held = [buffers.empty((1000,), torch.float32) for _ in range(10)]
    places = {tensor.data_ptr() for tensor in held}
    assert len(places) == 10
    del held
    gc.collect()
    again = [buffers.empty((1000,), torch.float32) for _ in range(KEPT)]
    assert {tensor.data_ptr() for tensor in again} <= places


def test_nothing_at_all() -> None:
    assert Buffers().empty((0, 5), torch.float16).shape == (0, 5)
