"""Pickles that are read in a process of their own."""

import pickle
from typing import Any

import numpy as np
import pytest

from vlmill.models.convert import unpickling
from vlmill.models.convert.plain_pickle import BadPickle
from vlmill.models.convert.unpickling import check_bounds, read_pickled_list

LISTS = b"\x80\x02" + b"]" * 1_000_000  # one in the other's place, 56 bytes each
NONES = b"\x80\x02" + b"N0" * 9_000_000 + b"]."


def test_a_list_of_plain_data_comes_back() -> None:
    listed: list[Any] = [{b"a": 1.5, b"\xc3\xa9": [b"x", None]}, "\ud800", 2**70, (True,)]
    assert list(read_pickled_list(pickle.dumps(listed), encoding="bytes")) == listed
    begun = read_pickled_list(pickle.dumps([1, 2]))
    assert next(begun) == 1
    begun.close()  # its process ends with it


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(print), "asks for builtins.print"),
        (pickle.dumps({"a": 1}), "holds a dict, expected a list"),
        (pickle.dumps([1])[:-2], "a damaged pickle"),
        (b"", "a damaged pickle: it is cut"),
        (b"[1]", "a damaged pickle, or none"),
        (pickle.dumps([np.zeros(2)]), "an element is not plain data"),
    ],
)
def test_anything_else_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(BadPickle, match=said):
        list(read_pickled_list(content))


def test_memory_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "MEMORY", 32 << 20)
    for read in (check_bounds, lambda content: list(read_pickled_list(content))):
        with pytest.raises(BadPickle, match="needs more memory than the limit"):
            read(LISTS)
    monkeypatch.undo()
    monkeypatch.setattr(unpickling, "SECONDS", 1)
    with pytest.raises(BadPickle, match="more than 1 seconds of processor time"):
        check_bounds(NONES)
