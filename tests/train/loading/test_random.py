"""Random numbers by counting."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.loading.random import (
    BLOCK,
    KEYS_AT_ONCE,
    Uniforms,
    permutation,
    scramble,
    stream_starts,
    streams,
    uniforms,
)


def test_splitmix64_by_its_published_numbers() -> None:
    """Of seed 1234567: those that implementations of it are checked by."""
    steps = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = scramble(np.uint64(1234567) + steps).tolist()
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_numbers_are_uniform_and_streams_have_nothing_in_common() -> None:
    keys = np.arange(2000, dtype=np.uint64)
    drawn = uniforms(stream_starts(0, 0, np.zeros(2000, dtype=np.int64), keys), 0, 100)
    assert drawn.min() >= 0 and drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert np.abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 0.95)
    around = drawn - 0.5
    for one, other in ((around[:-1], around[1:]), (around[:, :-1], around[:, 1:])):
        assert abs((one * other).mean()) < 4 / 12 / np.sqrt(one.size)


def test_each_of_seed_stage_epoch_and_pair_gives_other_numbers() -> None:
    one = (1, 2, [3], np.array([4], dtype=np.uint64))
    others = [(0, 2, [3], one[3]), (1, 0, [3], one[3]), (1, 2, [0], one[3])]
    others += [(1, 2, [3], one[3] + np.uint64(1)), (2, 1, [3], one[3])]
    found = {int(stream_starts(*arguments)[0]) for arguments in (one, *others)}
    assert len(found) == 6


@given(st.lists(st.integers(0, 200), max_size=8))
def test_one_by_one_or_many_are_the_same_numbers(counts: list[int]) -> None:
    (given_some,) = streams(1, 2, [0], np.array([5], dtype=np.uint64))
    alone = Uniforms(int(stream_starts(1, 2, [0], np.array([5], dtype=np.uint64))[0]))
    many = [number for count in counts for number in given_some.many(count).tolist()]
    assert many == [alone.random() for _ in range(sum(counts))]


def test_a_shuffle_keeps_what_it_shuffles() -> None:
    values = list(range(BLOCK + 50))
    draws = Uniforms(3)
    draws.shuffle(values)
    assert sorted(values) == list(range(BLOCK + 50)) != values
    assert {draws.integers(2, 5) for _ in range(100)} == {2, 3, 4}


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_permutation_has_every_number_once(start: int, count: int) -> None:
    order = permutation(start, count)
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(count))
    assert order.tolist() == permutation(start, count).tolist()


def test_every_order_is_as_likely() -> None:
    counts = Counter(tuple(permutation(start, 4).tolist()) for start in range(24_000))
    assert counts.keys() == set(permutations(range(4)))
    deviation = sum((count - 1000) ** 2 for count in counts.values()) / 1000
    assert deviation < 23 + 4 * np.sqrt(2 * 23)  # chi-square with 23 degrees of freedom


@pytest.mark.parametrize("count", [1000, KEYS_AT_ONCE + 1, 3_000_000])
def test_places_say_nothing_of_numbers(count: int) -> None:
    one, other = permutation(1, count), permutation(2, count)
    assert np.array_equal(np.bincount(one), np.ones(count))
    scaled = (one - (count - 1) / 2) / (count / np.sqrt(12))
    among = (other - (count - 1) / 2) / (count / np.sqrt(12))
    evenly = (np.arange(count) - (count - 1) / 2) / (count / np.sqrt(12))
    for left, right in ((scaled, evenly), (scaled, among), (scaled[:-1], scaled[1:])):
        assert abs((left * right).mean()) < 4 / np.sqrt(count)
    rising = (one[1:] > one[:-1]).sum()
    assert abs(rising - count / 2) < 4 * np.sqrt(count / 12)
    # Each tenth of the places holds about as many of each tenth of the numbers.
    cells = np.bincount(10 * (np.arange(count) * 10 // count) + one * 10 // count, minlength=100)
    assert np.abs(cells - count / 100).max() < 5 * np.sqrt(count / 100)
