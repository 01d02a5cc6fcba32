"""A file's tensors are held against a network's: the first few of each kind are named."""

import torch

from vlmill.models.detector.fit import describe_mismatches


def test_tensors_that_fit_have_nothing_said_of_them() -> None:
    ours = {"a": torch.ones(2), "b": torch.ones(3, 1)}
    assert describe_mismatches(ours, {name: tensor + 1 for name, tensor in ours.items()}) == ""


def test_each_kind_is_named_and_most_are_counted() -> None:
    ours = {**{f"w{i}": torch.ones(2) for i in range(200)}, "b": torch.ones(3, 1)}
    said = describe_mismatches(ours, {"b": torch.ones(1, 3), "c": torch.ones(1)})
    assert said == "missing w0, w1, w2 and 197 more; unexpected c; b is (1, 3), expected (3, 1)"
