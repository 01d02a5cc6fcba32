"""From samples to what the model takes, by hand."""

import dataclasses
import pickle
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.loading.oracles import mean_after_masking, mean_of_unmasked, without

from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.train.loading.batch import Batch, HostBatch, full_image
from vlmill.train.loading.collate import collate, padded_locations
from vlmill.train.loading.features import load_features
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.sample import Sample, SampledRegions, StoredFeatures
from vlmill.train.recipes import Feeding


def sample(
    words: int, regions: int, matching: bool, masked: tuple[int, ...], **about: Any
) -> Sample:
    """``words`` tokens 10, 11, ... and as many regions with feature i + 1; ``masked`` of both."""
    tokens = np.arange(10, 10 + words)
    row = RegionRow(
        image_id="a",
        width=200,
        height=100,
        boxes=np.tile(np.array([20, 10, 60, 50], np.float32), (regions, 1)),
        features=np.repeat(np.arange(1, regions + 1, dtype=np.float16), 2).reshape(regions, 2),
        class_ids=np.arange(regions, dtype=np.int16),
        **about,
    )
    flags, region_flags = np.isin(np.arange(words), masked), np.isin(np.arange(regions), masked)
    return Sample(
        pair_id=f"{words}-{regions}",
        text=MaskedTokens(original=tokens, tokens=np.where(flags, 4, tokens), masked=flags),
        regions=SampledRegions(
            row=row,
            features=StoredFeatures(num_regions=regions, location=None),
            boxes=row.boxes,
            masks=MaskedRegions(masked=region_flags, zeroed=region_flags),
            num_shown=regions,
        ),
        matching=matching,
    )


def made(
    *samples: Sample,
    feeding: Feeding = Feeding(),  # noqa: B008  # frozen
    mismatched: bool = False,
) -> Batch:
    """A batch of these samples, features put in by hand."""
    planned = collate(samples, feeding, mismatched_words=mismatched, mismatched_regions=mismatched)
    return with_features(planned, samples).to("cpu")


def with_features(planned: HostBatch, samples: tuple[Sample, ...]) -> HostBatch:
    if "hidden" not in planned.tensors:
        return planned
    features = torch.zeros(*planned.tensors["hidden"].shape, 2, dtype=torch.float16)
    first = int(planned.whole_image != "none")
    for i, one in enumerate(samples):
        if one.regions is not None and one.regions.row.features is not None:
            stored = torch.tensor(one.regions.row.features)
            features[i, first : first + len(stored)] = stored
    return dataclasses.replace(planned, tensors=planned.tensors | {"features": features})


def test_a_batch_by_hand() -> None:
    batch = made(sample(3, 1, True, (1,)), sample(2, 2, True, (0, 1)))
    assert batch.inputs.tokens.tolist() == [[10, 4, 12], [4, 4, 0]]
    assert batch.original_tokens is not None
    assert batch.original_tokens.tolist() == [[10, 11, 12], [10, 11, 0]]
    assert batch.inputs.token_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.inputs.region_features.tolist() == [[[1, 1], [0, 0]], [[0, 0], [0, 0]]]
    assert batch.inputs.region_mask.tolist() == [[True, False], [True, True]]
    torch.testing.assert_close(
        batch.inputs.region_locations[0, 0], torch.tensor([0.1, 0.1, 0.3, 0.5, 0.08])
    )
    assert batch.masked_tokens.tolist() == [1, 3, 4]
    assert batch.token_targets.tolist() == [11, 10, 11]
    assert batch.masked_regions.tolist() == [2, 3]
    assert batch.class_targets.tolist() == [0, 1]
    assert batch.feature_targets.tolist() == [[1, 1], [2, 2]]
    assert batch.matching.tolist() == [1, 1]
    assert batch.pair_ids == ("3-1", "2-2")
    batch.inputs.validate()


def test_mismatched_pairs_are_masked_but_have_nothing_to_guess() -> None:
    batch = made(sample(2, 2, False, (0, 1)))
    assert batch.inputs.tokens.tolist() == [[4, 4]]
    assert batch.inputs.region_features.abs().sum() == 0
    assert len(batch.masked_tokens) == len(batch.masked_regions) == 0
    assert batch.feature_targets.shape == (0, 2)
    assert batch.matching.tolist() == [0]


def test_mismatched_pairs_are_asked_where_the_masking_says_so() -> None:
    batch = made(sample(2, 2, False, (0, 1)), mismatched=True)
    assert batch.token_targets.tolist() == [10, 11]
    assert batch.feature_targets.tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("kind", ["mean", "rest"])
def test_the_full_image_comes_first(kind: Literal["mean", "rest"]) -> None:
    batch = made(sample(2, 3, True, (1,)), feeding=Feeding(whole_image=kind))
    assert batch.inputs.region_mask.shape == (1, 4)
    ends = (200, 100) if kind == "mean" else (199, 99)
    corners = torch.tensor([0, 0, ends[0] / 200, ends[1] / 100])
    torch.testing.assert_close(batch.inputs.region_locations[0, 0, :4], corners)
    expected = 4 / 3 if kind == "mean" else 2.0  # of 1, (2) and 3
    found = batch.inputs.region_features[0]
    torch.testing.assert_close(found[:, 0], torch.tensor([expected, 1, 0, 3]), rtol=1e-4, atol=0)
    assert batch.masked_regions.tolist() == [2]
    assert batch.feature_targets.tolist() == [[2, 2]]
    flags = batch.inputs.masked_regions
    assert (flags is None) == (kind == "mean")
    if flags is not None:
        assert flags.tolist() == [[False, False, True, False]]


@given(
    count=st.integers(0, 6),
    padding=st.integers(0, 3),
    hidden=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_the_images_feature_is_that_of_the_rules(
    count: int, padding: int, hidden: list[bool]
) -> None:
    features = np.random.default_rng(count).random((count, 4), dtype=np.float32)
    zeroed = np.array(hidden[:count], dtype=np.bool_)
    seen = without(features, zeroed)
    batch = torch.zeros(1, count + padding, 4)
    batch[0, :count] = torch.tensor(seen)
    flags = torch.zeros(1, count + padding, dtype=torch.bool)
    flags[0, :count] = torch.tensor(zeroed)
    counts = torch.tensor([count])
    mean = full_image(batch, counts, flags, "mean")[0].numpy()
    np.testing.assert_allclose(mean, mean_after_masking(seen), rtol=1e-5, atol=1e-6)
    rest = full_image(batch, counts, flags, "rest")[0].numpy()
    whole = features.sum(axis=0) / max(count, 1)
    np.testing.assert_allclose(rest, mean_of_unmasked(features, whole, zeroed), atol=1e-4)


def test_the_rules_of_the_image_s_feature_by_hand() -> None:
    features = np.array([[2, 4], [4, 8], [6, 3]], dtype=np.float32)
    zeroed = np.array([False, True, False])
    masked = without(features, zeroed)
    assert masked.tolist() == [[2, 4], [0, 0], [6, 3]]
    np.testing.assert_allclose(mean_after_masking(masked), [8 / 3, 7 / 3], rtol=1e-6)
    mean = features.mean(axis=0)
    np.testing.assert_allclose(mean_of_unmasked(features, mean, zeroed), [4, 3.5], rtol=1e-5)
    assert mean_of_unmasked(features, mean, np.ones(3, dtype=np.bool_)).tolist() == [0, 0]


def test_distributions_of_the_guessed_regions() -> None:
    probs = np.array([[0.5, 0.5, 0], [0, 0, 1]], np.float16)
    with_probs = sample(2, 2, True, (1,), class_probs=probs)
    distribution = Feeding(region_targets="distribution")
    batch = made(with_probs, feeding=distribution)
    assert batch.class_distributions is not None
    assert batch.class_distributions.tolist() == [[0, 0, 1]]
    assert made(with_probs).class_distributions is None
    assert made(sample(2, 2, True, (1,)), feeding=distribution).class_distributions is None


def test_the_highest_probabilities_are_put_in_their_columns() -> None:
    about = {
        "class_probs": np.array([[0.75, 0.125]], np.float16),
        "class_prob_ids": np.array([[3, 0]], np.uint16),
    }
    one = sample(2, 1, True, (0,), **about)
    planned = collate([one], Feeding(region_targets="distribution"), num_classes=5)
    found = with_features(planned, (one,)).to("cpu").class_distributions
    assert found is not None and found.tolist() == [[0.125, 0, 0, 0.75, 0]]


def test_texts_alone_come_last_without_regions() -> None:
    tokens = np.array([7, 8])
    alone = Sample(
        pair_id="text",
        text=MaskedTokens(original=tokens, tokens=np.array([4, 8]), masked=np.array([True, False])),
    )
    batch = made(sample(3, 1, True, (1,)), alone)
    assert batch.num_texts == 1 and batch.matching.tolist() == [1]
    assert batch.inputs.region_mask.tolist() == [[True], [False]]
    assert batch.masked_tokens.tolist() == [1, 3]
    only = made(alone)
    assert only.num_texts == 0 and only.inputs.region_features.shape[1] == 0
    assert only.token_targets.tolist() == [7]


def test_unknown_classes_are_ignored() -> None:
    one = sample(2, 3, True, (0, 1, 2))
    assert one.regions is not None
    for classes, background, expected in (
        (np.array([4, -1, 5], np.int16), False, [4, -100, 5]),
        (np.array([4, -1, 5], np.int16), True, [5, -100, 6]),
        (None, True, [-100] * 3),
    ):
        row = dataclasses.replace(one.regions.row, class_ids=classes)
        regions = dataclasses.replace(one.regions, row=row)
        feeding = Feeding(region_targets="distribution" if background else "class")
        batch = made(dataclasses.replace(one, regions=regions), feeding=feeding)
        assert batch.class_targets.tolist() == expected


def test_a_row_without_features_says_what_to_do() -> None:
    row = RegionRow(image_id="a", width=1, height=1, boxes=np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match="a has no features"):
        load_features(row, 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1e30])
def test_images_that_are_not_finite_are_found(dtype: torch.dtype, value: float) -> None:
    largest = min(torch.finfo(dtype).max, 9.9e9)  # the sum of such is above what is allowed
    features = torch.full((3, 4, 2), largest, dtype=dtype)
    boxes = torch.zeros(2, 4, 5)
    tensors = {"features": features, "region_locations": boxes}
    batch = HostBatch(tensors=tensors, pair_ids=("p", "q", "r"), image_ids=("a", "b"))
    assert batch.not_finite() == []
    features[2] = torch.tensor(value).to(dtype)  # a row without an image
    assert batch.not_finite() == []
    features[1, 3, 1] = torch.tensor(value).to(dtype)
    assert batch.not_finite() == ["b"]
    boxes[0, 0, 0] = value
    assert batch.not_finite() == batch.not_finite(quick=True) == ["a", "b"]
    assert dataclasses.replace(batch, image_ids=()).not_finite() == []
    tensors["features"], tensors["region_locations"] = features[:, :0], boxes[:, :0]
    assert batch.not_finite() == []


def test_boxes_beyond_the_image_are_cut_at_its_edge() -> None:
    boxes = np.array([[-10, -10, 300, 50]], np.float32)
    (locations,) = padded_locations([boxes], [(200, 100)], 2)
    np.testing.assert_allclose(locations, np.array([[0, 0, 1, 0.5, 0.5], [0] * 5]))
    assert padded_locations([boxes[:0]], [(200, 100)], 0).shape == (1, 0, 5)


def test_a_planned_batch_travels_as_it_is() -> None:
    planned = collate([sample(3, 1, True, (1,)), sample(2, 2, True, (0, 1))], Feeding())
    came = pickle.loads(pickle.dumps(planned))
    assert came.tensors.keys() == planned.tensors.keys()
    for name, tensor in planned.tensors.items():
        assert came.tensors[name].dtype == tensor.dtype and torch.equal(came.tensors[name], tensor)
    assert (came.pair_ids, came.image_ids) == (("3-1", "2-2"), ("a", "a"))
    assert [stored.num_regions for stored in came.stored] == [1, 2]


def test_a_image_alone_has_no_token() -> None:
    one = sample(3, 2, True, ())
    assert one.regions is not None
    batch = made(Sample(pair_id="a", regions=one.regions))
    assert batch.inputs.tokens.shape == (1, 0) and batch.inputs.region_mask.tolist() == [[True] * 2]
    assert len(batch.masked_tokens) == len(batch.masked_regions) == 0
