"""The order of pairs: each once in an epoch, near each other on disk, whatever is asked first."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.ids import key64
from vlmill.train.loading.arrays import Ids, Keys
from vlmill.train.loading.mixture import Mixture, SourcePairs
from vlmill.train.loading.order import AlternatingOrder, PairOrder, select_share
from vlmill.train.recipes import Loading, MixedSource, recipe_named


def order(count: int, size: int = 4, seed: int = 0, **loading: int) -> PairOrder:
    lengths = np.random.default_rng(1).integers(1, 100, size=count)
    return PairOrder(
        rows=np.arange(count),
        lengths=lengths,
        loading=Loading(**loading),
        seed=seed,
        stage=0,
        size=size,
    )


sizes = st.integers(1, 60)


@settings(max_examples=80, deadline=None)
@given(count=sizes, window=sizes, block=sizes, size=st.integers(1, 7), bucket=st.integers(1, 4))
def test_batches_hold_every_pair_once_an_epoch(
    count: int, window: int, block: int, size: int, bucket: int
) -> None:
    made = order(count, size, window=window, block=block, bucket=bucket)
    batches = bucket * count  # whole groups of batches, of `size` epochs each
    visits = [visit for i in range(batches) for visit in made.batch(i)]
    by_epoch: dict[int, list[int]] = {}
    for visit in visits:
        by_epoch.setdefault(visit.epoch, []).append(visit.row)
        assert visit.row in visit.near
    assert len(by_epoch) == bucket * size
    assert all(sorted(rows) == list(range(count)) for rows in by_epoch.values())


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    one, other = order(50, window=10, block=3, bucket=3), order(50, window=10, block=3, bucket=3)
    forward = [[v.row for v in one.batch(i)] for i in range(30)]
    backward = [[v.row for v in other.batch(i)] for i in reversed(range(30))][::-1]
    assert forward == backward


@given(bucket=st.integers(1, 4), parts=st.integers(1, 4), size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_step_has_the_same_pairs_in_any_number_of_parts(
    bucket: int, parts: int, size: int
) -> None:
    whole = order(50, size * parts, window=10, block=3, bucket=bucket)
    cut = replace(whole, size=size, parts=parts)
    for step in range(12):
        visits = [v for part in range(parts) for v in cut.batch(step * parts + part)]
        assert [(v.epoch, v.row) for v in visits] == [(v.epoch, v.row) for v in whole.batch(step)]


def test_small_data_are_shuffled_as_a_whole_and_epochs_and_seeds_differ() -> None:
    made = order(100)
    first, second = list(made.epoch(0)), list(made.epoch(1))
    assert first != second and first != list(range(100))
    assert list(order(100, seed=1).epoch(0)) != first


def test_windows_are_runs_from_anywhere() -> None:
    made = order(6400, window=640, block=64)
    rows = np.array(list(made.epoch(0))).reshape(10, 640)
    for window in rows:
        blocks, counts = np.unique(window // 64, return_counts=True)
        assert len(blocks) == 10 and (counts == 64).all()
        assert np.abs(np.diff(window)).mean() > 500  # not run after run
    assert np.ptp(rows[0]) > 3200


def same_image_pairs(made: PairOrder, captions: int, batches: int = 40) -> float:
    """Pairs of captions of one image in a batch, where each has ``captions`` in a row."""
    counts = [
        np.unique([visit.row // captions for visit in made.batch(i)], return_counts=True)[1]
        for i in range(batches)
    ]
    return float(np.mean([(count * (count - 1) // 2).sum() for count in counts]))


def test_pairs_from_anywhere_bring_few_captions_of_a_image_together() -> None:
    """As few as a shuffle of all pairs: C(64, 2) x 7 / 9599. A window of runs has 13 times that."""
    expected = 64 * 63 / 2 * 7 / 9599
    (stage,) = recipe_named("vlmo-base").stages
    assert stage.loading.block == 1
    anywhere = order(9600, 64, window=640, block=stage.loading.block)
    assert 0.5 * expected < same_image_pairs(anywhere, 8) < 2 * expected
    assert same_image_pairs(order(9600, 64, window=640, block=64), 8) > 10 * expected


def test_buckets_bring_like_lengths_together() -> None:
    plain, buckets = order(4000, size=8), order(4000, size=8, bucket=50)

    def spread(made: PairOrder) -> float:
        assert made.lengths is not None
        return float(
            np.mean([np.ptp(made.lengths[[v.row for v in made.batch(i)]]) for i in range(100)])
        )

    assert spread(buckets) < 0.1 * spread(plain)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(20, 60),
    size=st.integers(1, 3),
    parts=st.integers(1, 3),
    step=st.integers(0, 9),
)
def test_no_two_places_of_a_step_have_the_same_first_spare(
    count: int, size: int, parts: int, step: int
) -> None:
    made = order(count, size, window=7, block=3)
    batches = range(step * parts, (step + 1) * parts)
    within = {visit.row for at in batches for visit in made.batch(at)}
    spares = [next(made.spares(at, slot, parts)) for at in batches for slot in range(size)]
    assert len({spare.row for spare in spares} | within) == len(within) + size * parts
    whole = order(count, size * parts, window=7, block=3)
    of_whole = [next(whole.spares(step, slot, 1)) for slot in range(size * parts)]
    assert [(s.epoch, s.row) for s in spares] == [(s.epoch, s.row) for s in of_whole]


def test_the_first_place_is_taken_by_the_next_pair_and_all_pairs_are_spares_at_last() -> None:
    made = order(12, 4)
    after = [visit.row for visit in made.batch(1)]
    assert [next(made.spares(0, slot, 1)).row for slot in range(4)] == after
    within = {visit.row for visit in made.batch(0)}
    rows = [spare.row for spare in made.spares(0, 2, 1)]
    first_of_the_step = min(at for at, row in enumerate(rows) if row in within)
    assert set(rows[:first_of_the_step]) == set(range(12)) - within and set(rows) == set(range(12))


def test_pairs_that_an_epoch_repeats_leave_all_others_as_spares() -> None:
    """An epoch of 90 visits: row 0 comes 81 times, and the nine others once each."""
    rule = MixedSource(source="vg", weight=81)
    often = SourcePairs(
        rule=rule, positions=np.arange(1), keys=np.zeros(1, dtype=np.uint64), images=np.arange(1)
    )
    mixed = replace(order(10, 2), mixture=Mixture(rows=np.arange(10), sources=(often,)))
    assert {spare.row for spare in mixed.spares(0, 0, 1)} == set(range(10))


def test_data_as_small_as_a_step_have_the_pairs_of_the_step_alone() -> None:
    assert {spare.row for spare in order(3, 4).spares(0, 1, 1)} == {0, 1, 2}
    assert next(order(5, 4).spares(0, 3, 1)).row not in {v.row for v in order(5, 4).batch(0)}


def test_lists_take_turns_step_by_step() -> None:
    """Two batches a step; the shorter list comes round sooner, each in its own order."""
    first, second = order(10, 2), replace(order(6, 2), rows=np.arange(100, 106), stage=1)
    made = AlternatingOrder(orders=(first, second), parts=2)
    assert sorted(made.rows.tolist()) == [*range(10), *range(100, 106)]
    found = [made.batch(index) for index in range(12)]
    for index, batch in enumerate(found):
        step, part = divmod(index, 2)
        own = (first, second)[step % 2].batch(step // 2 * 2 + part)
        assert [visit.row for visit in batch] == [visit.row for visit in own]
    assert all((batch[0].row >= 100) == (index // 2 % 2 == 1) for index, batch in enumerate(found))
    spare = next(made.spares(2, 0, 2))
    assert spare.row >= 100 and spare.row not in {v.row for i in (2, 3) for v in made.batch(i)}


KEYS = np.array([key64(f"pair-{i}") for i in range(4000)], dtype=np.uint64)
ROWS = np.arange(len(KEYS))


def chosen_keys(keys: Keys, rows: Ids, share: float, most: int | None) -> set[int]:
    return set(keys[rows[select_share(keys, rows, share, most)]].tolist())


def test_a_share_is_about_its_size_and_all_is_all() -> None:
    assert select_share(KEYS, ROWS, 1.0, None).tolist() == ROWS.tolist()
    assert len(select_share(KEYS, ROWS, 0.25, None)) == pytest.approx(1000, abs=100)
    assert len(select_share(KEYS, ROWS, 1.0, 300)) == 300
    assert len(select_share(KEYS, ROWS, 1.0, 5000)) == 4000
    assert not len(select_share(KEYS, ROWS[:0], 0.5, 3))


@given(
    shares=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)),
    most=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    order=st.permutations(range(40)),
)
def test_smaller_shares_lie_within_larger_ones_in_any_order_of_rows(
    shares: tuple[float, float], most: tuple[int, int], order: list[int]
) -> None:
    rows = ROWS.reshape(40, 100)[order].ravel()
    larger = chosen_keys(KEYS, ROWS, max(shares), max(most))
    for share, count in zip(shares, most, strict=True):
        places = select_share(KEYS, rows, share, count)
        assert places.tolist() == sorted(places.tolist())
        assert chosen_keys(KEYS, rows, share, count) == chosen_keys(KEYS, ROWS, share, count)
        assert chosen_keys(KEYS, rows, share, count) <= larger


def test_a_pair_is_chosen_whatever_other_pairs_there_are() -> None:
    alone = chosen_keys(KEYS, ROWS[:500], 0.3, None)
    assert alone == chosen_keys(KEYS, ROWS, 0.3, None) & set(KEYS[:500].tolist())
