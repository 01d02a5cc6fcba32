"""What epochs visit of mixed sources: so many in each, by rules that a table of pairs can check."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.ids import key64
from vlmill.train.loading.mixture import Mixture, SourcePairs, select_captions
from vlmill.train.loading.order import PairOrder
from vlmill.train.recipes import Loading, MixedSource

captions = st.lists(st.integers(1, 6), min_size=1, max_size=12)  # of each image
weights = st.sampled_from([0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.25])
mosts = st.none() | st.integers(1, 7)


def source(per_image: list[int], first: int = 0, **rule: float | None) -> SourcePairs:
    """Pairs from row ``first`` of the table on."""
    images = np.repeat(np.arange(len(per_image)), per_image)
    keys = np.array([key64(f"{first + i}") for i in range(len(images))], dtype=np.uint64)
    return SourcePairs(
        rule=MixedSource(source="vg", **rule),  # type: ignore[arg-type]
        positions=np.arange(first, first + len(images)),
        keys=keys,
        images=images,
    )


def mixture(num_other: int, *sources: SourcePairs) -> Mixture:
    count = num_other + sum(len(one.positions) for one in sources)
    return Mixture(rows=np.arange(100, 100 + count), sources=sources)


@settings(max_examples=60, deadline=None)
@given(per_image=captions, weight=weights, most=mosts, epoch=st.integers(0, 5))
def test_an_epoch_visits_what_weight_and_captions_say(
    per_image: list[int], weight: float, most: int | None, epoch: int
) -> None:
    pairs = source(per_image, weight=weight, captions_per_picture=most)
    counts = pairs.visits(0, 0, epoch)
    in_a_round = sum(min(most or count, count) for count in per_image)
    assert counts.sum() == pairs.epoch_visits
    assert abs(pairs.epoch_visits - weight * in_a_round) <= 1 and pairs.epoch_visits >= 1
    whole = int(weight)
    assert counts.max() <= whole + 1
    of_images = np.bincount(pairs.images, weights=counts)
    for count, visits in zip(per_image, of_images, strict=True):
        in_round = min(most or count, count)
        assert whole * in_round <= visits <= (whole + 1) * in_round
    if most is None:
        assert counts.min() >= whole


def test_rounds_and_epochs_draw_anew_and_seeds_differ() -> None:
    pairs = source([50] * 20, captions_per_picture=5)
    drawn = [pairs.visits(seed, 0, epoch).tobytes() for seed in (0, 1) for epoch in range(3)]
    assert len(set(drawn)) == 6
    twice = source([50] * 20, weight=2, captions_per_picture=5).visits(0, 0, 0)
    assert (twice > 0).sum() > 150  # of 100 visits a round, few of the same captions


def test_half_a_source_is_drawn_from_all_of_its_images_alike() -> None:
    pairs = source([50] * 200 + [1] * 200, weight=0.5, captions_per_picture=1)
    counts = sum(pairs.visits(0, 0, epoch).astype(int) for epoch in range(40))
    of_images = np.bincount(pairs.images, weights=counts)
    many, single = of_images[:200].mean(), of_images[200:].mean()
    assert abs(many - 20) < 1 and abs(single - 20) < 1


def test_captions_by_hand() -> None:
    images = np.array([3, 3, 3, 8, 9, 9])
    draws = np.array([30, 10, 20, 50, 7, 6], dtype=np.uint64) << np.uint64(50)
    assert select_captions(images, draws, 1).tolist() == [0, 1, 0, 1, 0, 1]
    assert select_captions(images, draws, 2).tolist() == [0, 1, 1, 1, 1, 1]
    assert not len(select_captions(images[:0], draws[:0], 1))


def test_visits_of_a_pair_are_counted_and_other_sources_come_once() -> None:
    mixed = mixture(4, source([1, 1], first=4, weight=3.0))
    rows, visits = mixed.epoch(0, 0, 0)
    assert rows.tolist() == [100, 101, 102, 103, 104, 104, 104, 105, 105, 105]
    assert visits.tolist() == [0, 0, 0, 0, 0, 1, 2, 0, 1, 2]
    assert mixed.epoch_visits == 10


@settings(max_examples=40, deadline=None)
@given(
    per_image=captions,
    weight=weights,
    most=mosts,
    window=st.integers(1, 60),
    block=st.integers(1, 20),
    size=st.integers(1, 7),
)
def test_batches_hold_an_epoch_of_the_mixture_whatever_was_asked_before(
    per_image: list[int], weight: float, most: int | None, window: int, block: int, size: int
) -> None:
    def order() -> PairOrder:
        mixed = mixture(9, source(per_image, 9, weight=weight, captions_per_picture=most))
        return PairOrder(
            rows=mixed.rows,
            lengths=None,
            loading=Loading(window=window, block=block),
            seed=3,
            stage=1,
            size=size,
            mixture=mixed,
        )

    made = order()
    batches = [made.batch(i) for i in range(made.count)]  # `size` epochs
    by_epoch = [Counter[tuple[int, int]]() for _ in range(size)]
    for visit in (visit for batch in batches for visit in batch):
        by_epoch[visit.epoch][visit.row, visit.repeat] += 1
        assert visit.row in visit.near
    assert made.mixture is not None
    for epoch, visited in enumerate(by_epoch):
        rows, repeats = made.mixture.epoch(3, 1, epoch)
        assert visited == Counter(zip(rows.tolist(), repeats.tolist(), strict=True))
    last = len(batches) - 1
    assert [v.row for v in order().batch(last)] == [v.row for v in batches[last]]
