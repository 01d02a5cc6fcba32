"""Regions: what is encoded is what is read, by any order of access."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.commands import InputError
from vlmill.schemas.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.shards import ShardWriter
from vlmill.schemas.tables import REGIONS


def row(name: str, count: int, dim: int = 6, **changes: Any) -> RegionRow:
    random = np.random.default_rng(sum(name.encode()))
    corners = random.uniform(0, 50, (count, 2))
    values: dict[str, Any] = {
        "image_id": name,
        "width": 200,
        "height": 100,
        "boxes": np.hstack([corners, corners + 20]).astype(np.float32),
        "features": random.normal(size=(count, dim)).astype(np.float16),
        "class_ids": random.integers(0, 1600, count).astype(np.int16),
        "class_scores": random.random(count).astype(np.float32),
        "class_probs": random.random((count, 3)).astype(np.float16),
    }
    return RegionRow(**{**values, **changes})


def write(
    folder: Path, groups: list[list[RegionRow]], index: int = 0, total: int = 1, **about: Any
) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=6, class_probs_dim=3)
    with ShardWriter(folder, REGIONS, index, total, producer=about, arrays=arrays) as writer:
        for rows in groups:
            writer.write(encode_regions(rows, dtype="float16"))


def assert_equal(found: RegionRow, expected: RegionRow) -> None:
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(found, name), value)
            assert getattr(found, name).dtype == value.dtype
        else:
            assert getattr(found, name) == value


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_round_trip_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, counts: list[list[int]], order: Any
) -> None:
    folder = tmp_path_factory.mktemp("regions")
    groups = [[row(f"{g}/{k}", n) for k, n in enumerate(c)] for g, c in enumerate(counts)]
    write(folder, groups)
    reader = RegionReader(folder, cached_groups=1)
    rows = [r for group in groups for r in group]
    assert reader.image_ids == [r.image_id for r in rows]
    order.shuffle(rows)
    for expected in rows:
        assert_equal(reader[expected.image_id], expected)


def test_several_shards_are_one_table(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 2)], [row("b", 0)]], 0, 2, detector_fingerprint="f1")
    write(tmp_path, [[row("c", 3)]], 1, 2, detector_fingerprint="f1")
    reader = RegionReader(tmp_path)
    assert [r.image_id for r in reader] == ["a", "b", "c"]
    assert (len(reader), reader.feature_dim, reader.detector_fingerprint) == (3, 6, "f1")
    assert "a" in reader
    assert "d" not in reader
    with pytest.raises(KeyError):
        reader["d"]


def test_shards_of_two_detectors_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 1)]], 0, 2, detector_fingerprint="f1")
    write(tmp_path, [[row("b", 1)]], 1, 2, detector_fingerprint="f2")
    with pytest.raises(InputError, match="different detectors"):
        RegionReader(tmp_path)


def test_an_image_with_two_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 1)], [row("a", 2)]])
    with pytest.raises(InputError, match="a has two rows"):
        RegionReader(tmp_path)


def test_what_the_producer_lacks_stays_none(tmp_path: Path) -> None:
    bare = row("a", 2, class_ids=None, class_scores=None, class_probs=None)
    write(tmp_path, [[bare]])
    found = RegionReader(tmp_path)["a"]
    assert (found.class_ids, found.class_probs, found.global_feature) == (None, None, None)
    assert RegionReader(tmp_path).detector_fingerprint is None


def test_bytes_that_do_not_fit_the_boxes_are_reported(tmp_path: Path) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=7)
    with ShardWriter(tmp_path, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([row("a", 2, class_probs=None)], dtype="float16"))
    with pytest.raises(InputError, match=r"a: features has 24 bytes, 2 boxes x 7 float16 are 28"):
        RegionReader(tmp_path)["a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((1, 6))}, "1 features for 2 boxes"),
        ({"boxes": np.zeros((2, 5), np.float32)}, r"boxes are \(2, 5\)"),
        ({"boxes": np.full((2, 4), np.nan, np.float32)}, "not finite"),
        ({"features": np.full((2, 6), 70_000.0)}, "store them as float32"),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_regions([row("a", 2, **changes)], dtype="float16")
