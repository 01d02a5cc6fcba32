"""Compares the tensors of a file with the tensors of a network."""

from collections.abc import Mapping, Sequence

from torch import Tensor

MOST_NAMED = 3  # per type of difference: a file of another network differs in hundreds of names


def describe_mismatches(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Describes the differences in names and shapes: the first few of each type, "" if there are
    none.
    """
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    kinds = {
        "missing ": [name for name in expected if name not in tensors],
        "unexpected ": [name for name in tensors if name not in expected],
        "": shapes,
    }
    return "; ".join(kind + _first(items) for kind, items in kinds.items() if items)


def _first(items: Sequence[str]) -> str:
    more = len(items) - MOST_NAMED
    return ", ".join(items[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
