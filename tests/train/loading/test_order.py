"""The order of pairs: each once in an epoch, near each other on disk, whatever is asked first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.train.loading.order import PairOrder
from vlmill.train.recipes import Loading


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


def test_buckets_bring_like_lengths_together() -> None:
    plain, buckets = order(4000, size=8), order(4000, size=8, bucket=50)

    def spread(made: PairOrder) -> float:
        assert made.lengths is not None
        return float(
            np.mean([np.ptp(made.lengths[[v.row for v in made.batch(i)]]) for i in range(100)])
        )

    assert spread(buckets) < 0.1 * spread(plain)
