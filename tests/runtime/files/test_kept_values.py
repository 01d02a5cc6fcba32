"""Keys whose numbers and values lie on the disk."""

import random
import tracemalloc

import pytest

from vlmill.pipelines.manifest.cleaning import Claims, NamedClaims
from vlmill.runtime.files import kept_values as kept
from vlmill.runtime.files.kept_values import NumberStore, ValueStore
from vlmill.schemas.rejects import Reason


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"YOUNG": 64, "PAGE": 8, "FAN": 3, "CACHED": 4, "BLOCK": 40}.items():
        monkeypatch.setattr(kept, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("most", [500, 1 << 63, 1 << 64])
def test_numbers_are_those_of_a_dict(most: int) -> None:
    draw, numbers, wanted = random.Random(3), NumberStore(), dict[int, int]()
    known = [0]
    for turn in range(2_000):
        key = draw.randrange(most) if turn % 3 else draw.choice(known)
        assert numbers.get(key) == wanted.get(key)
        known.append(key)
        if draw.random() < 0.5:
            wanted[key] = turn
            numbers.put(key, turn)
        else:
            assert numbers.claim(key, turn) == wanted.get(key)
            wanted.setdefault(key, turn)
    assert all(numbers.get(key) == number for key, number in wanted.items())
    assert numbers.get(-1) is None and numbers.get(1 << 70) is None


@pytest.mark.usefixtures("small")
def test_values_come_back_as_they_were() -> None:
    values = ValueStore[tuple[str, int | None]](lambda value: value, lambda packed: packed)
    for key in range(300):
        values.put(key * 7, (f"caf\xe9 \ud800 {key}" * (key % 5), None if key % 2 else 2**70))
        assert values.get(key * 7) is not None and values.get(key * 7 + 1) is None
    values.put(7, ("again", 1))
    for key in (*range(299, -1, -1), *range(300)):
        expected = (f"caf\xe9 \ud800 {key}" * (key % 5), None if key % 2 else 2**70)
        assert values.get(key * 7) == (("again", 1) if key == 1 else expected)


@pytest.mark.usefixtures("small")
def test_ids_that_came_earlier_are_told_however_long_ago() -> None:
    claims, named = Claims(), NamedClaims()
    for number in range(500):
        assert claims.claim(number, f"text {number}") is None
        assert named.claim(f"id {number}", f"text {number}") is None
    for claimed in (claims.claim(3, "text 3"), named.claim("id 3", "text 3")):
        assert claimed is not None and claimed.reason is Reason.DUPLICATE
    for claimed in (claims.claim(3, "another"), named.claim("id 3", "another")):
        assert claimed is not None and claimed.reason is Reason.ID_CONFLICT


def test_memory_does_not_grow_with_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"YOUNG": 256, "PAGE": 16, "CACHED": 64}.items():
        monkeypatch.setattr(kept, name, value)
    monkeypatch.setattr(kept, "FILTER_BITS", 16)
    monkeypatch.setattr(kept, "_SHIFT", 48)
    peaks = []
    tracemalloc.start()
    try:
        claims, values = Claims(), ValueStore[str](str, str)
        for number in range(16_000):
            claims.claim(number * 3, "text")
            values.put(number, f"value {number}")
            if number in (3_999, 15_999):
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    # A run keeps the first key of each of these small pages; a set and a dictionary take 300 bytes.
    assert peaks[1] - peaks[0] < 12 * 12_000
