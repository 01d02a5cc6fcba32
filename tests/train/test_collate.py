import numpy as np
import pytest
import torch

from vlmill.schemas.commands import InputError
from vlmill.schemas.regions import RegionRow
from vlmill.train.collate import PretrainSample, box_locations, collate, regions_of
from vlmill.train.masking import MaskedTokens
from vlmill.train.region_masking import MaskedRegions


def sample(words: int, regions: int, matching: bool, masked: tuple[int, ...]) -> PretrainSample:
    """``words`` tokens 10, 11, ... and as many regions with feature i + 1; ``masked`` of both."""
    tokens = np.arange(10, 10 + words)
    row = RegionRow(
        image_id="a",
        width=200,
        height=100,
        boxes=np.tile(np.array([20, 10, 60, 50], np.float32), (regions, 1)),
        features=np.repeat(np.arange(1, regions + 1, dtype=np.float16), 2).reshape(regions, 2),
        class_ids=np.arange(regions, dtype=np.int16),
    )
    flags = np.isin(np.arange(words), masked)
    region_flags = np.isin(np.arange(regions), masked)
    return PretrainSample(
        pair_id=f"{words}-{regions}",
        original_tokens=tokens,
        tokens=MaskedTokens(tokens=np.where(flags, 4, tokens), masked=flags),
        regions=regions_of(row, 100),
        region_masks=MaskedRegions(masked=region_flags, zeroed=region_flags),
        matching=matching,
    )


def test_a_batch_by_hand() -> None:
    batch = collate([sample(3, 1, True, (1,)), sample(2, 2, True, (0, 1))])
    assert batch.inputs.tokens.tolist() == [[10, 4, 12], [4, 4, 0]]
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
    batch = collate([sample(2, 2, False, (0, 1))])
    assert batch.inputs.tokens.tolist() == [[4, 4]]
    assert batch.inputs.region_features.abs().sum() == 0
    assert len(batch.masked_tokens) == len(batch.masked_regions) == 0
    assert batch.feature_targets.shape == (0, 2)
    assert batch.matching.tolist() == [0]


def test_only_the_first_regions_are_read_and_unknown_classes_ignored() -> None:
    row = RegionRow(
        image_id="a",
        width=10,
        height=10,
        boxes=np.zeros((3, 4), np.float32),
        features=np.ones((3, 2), np.float16),
        class_ids=np.array([4, -1, 5], np.int16),
    )
    regions = regions_of(row, 2)
    assert regions.features.shape == (2, 2) and regions.features.dtype == np.float32
    assert regions.class_ids.tolist() == [4, -100]


def test_a_row_without_features_says_what_to_do() -> None:
    row = RegionRow(image_id="a", width=1, height=1, boxes=np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match="a has no features"):
        regions_of(row, 10)


def test_boxes_beyond_the_picture_are_cut_at_its_edge() -> None:
    boxes = np.array([[-10, -10, 300, 50]], np.float32)
    np.testing.assert_allclose(box_locations(boxes, 200, 100), np.array([[0, 0, 1, 0.5, 0.5]]))
    assert box_locations(np.empty((0, 4), np.float32), 200, 100).shape == (0, 5)
