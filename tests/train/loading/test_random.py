"""Random numbers by counting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.loading.random import BLOCK, Uniforms, scrambled, stream_starts, streams, uniforms


def test_splitmix64_by_its_published_numbers() -> None:
    """Of seed 1234567: those that implementations of it are checked by."""
    steps = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = scrambled(np.uint64(1234567) + steps).tolist()
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
