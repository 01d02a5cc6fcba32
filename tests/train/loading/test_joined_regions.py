"""Detected and annotated regions of an image come as one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.factories import Tables

from vlmill.runtime.readers.joined_regions import JoinedRegions
from vlmill.schemas.errors import InputError
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.joined_regions import count_shown, joined_regions, whole_weights
from vlmill.train.loading.sample import Sample
from vlmill.train.settings.parts import Feeding


def tables(folder: Path, *, empty: tuple[str, ...] = ()) -> JoinedRegions:
    """Five detected and three annotated regions of two images."""
    detected, annotated = Tables(folder / "detected"), Tables(folder / "annotated")
    detected.write_regions(["a", "b"], empty=empty)
    annotated.write_regions(["b", "a"], boxes=3)
    return JoinedRegions(detected.regions, annotated.regions)


@pytest.mark.parametrize(("most", "shown"), [(9, (5, 3)), (6, (3, 3)), (2, (0, 2))])
def test_annotated_regions_are_the_last_to_go(
    tmp_path: Path, most: int, shown: tuple[int, int]
) -> None:
    reader = pickle.loads(pickle.dumps(tables(tmp_path)))
    assert count_shown(5, 3, most) == shown
    feeding = Feeding(max_regions=most, whole_image="mean")
    regions = joined_regions(reader, 0, feeding)
    detected, annotated = reader["a"], reader.annotated["a"]
    boxes = np.concatenate([detected.boxes[: shown[0]], annotated.boxes[: shown[1]]])
    assert regions.boxes[: regions.num_shown].tolist() == boxes.tolist()
    host = read_features(collate([Sample(pair_id="x", regions=regions)], feeding), reader)
    (features,) = host.to("cpu").inputs.region_features
    assert len(features) == 1 + sum(shown)
    parts = [(detected.features, shown[0]), (annotated.features, shown[1])]
    rows = np.concatenate([values[:count] for values, count in parts])
    np.testing.assert_array_equal(features[1:], rows.astype(np.float32))
    means = [values.astype(np.float64).mean(0) for values, _ in parts]
    np.testing.assert_allclose(features[0], (means[0] * 6 + means[1] * 4) / 10, rtol=1e-5)


@pytest.mark.parametrize("with_annotated", [True, False])
def test_of_expressions_the_annotated_regions_go_first(
    tmp_path: Path, with_annotated: bool
) -> None:
    """All that were detected count for the full image, shown or not, as in training so later."""
    reader = tables(tmp_path)
    assert count_shown(5, 3, 6, detected_first=True) == (5, 1)
    feeding = Feeding(max_regions=4, whole_image="mean", boxes="joined-in-training")
    regions = joined_regions(reader, 0, feeding, with_annotated=with_annotated)
    detected = reader["a"]
    assert detected.features is not None and (regions.num_shown, regions.first_annotated) == (4, 4)
    assert len(regions.boxes) == (8 if with_annotated else 5)
    host = read_features(collate([Sample(pair_id="x", regions=regions)], feeding), reader)
    (features,) = host.to("cpu").inputs.region_features
    np.testing.assert_array_equal(features[1:], detected.features[:4].astype(np.float32))
    mean = detected.features.astype(np.float64).mean(0)
    np.testing.assert_allclose(features[0], mean, rtol=1e-5, atol=1e-7)


def test_one_kind_alone_counts_for_the_full_image(tmp_path: Path) -> None:
    np.testing.assert_allclose(whole_weights(0, 4), 0.25)
    np.testing.assert_allclose(whole_weights(2, 0), 0.5)
    assert whole_weights(0, 0).size == 0
    reader = tables(tmp_path, empty=("a",))
    regions = joined_regions(reader, 0, Feeding(whole_image="mean"))
    assert regions.boxes.tolist() == reader.annotated["a"].boxes.tolist()
    trained = Feeding(whole_image="mean", boxes="joined-in-training")
    shares = joined_regions(reader, 1, trained).weights
    assert shares is not None
    np.testing.assert_allclose(shares, [0.2] * 5 + [0] * 3)
    plain = joined_regions(reader, 1, Feeding(whole_image="mean"))
    batch = [Sample(pair_id=key, regions=r) for key, r in (("a", regions), ("b", plain))]
    host = read_features(collate(batch, Feeding(whole_image="mean")), reader).to("cpu")
    features = reader.annotated["a"].features
    assert features is not None
    mean = features.astype(np.float64).mean(0)
    np.testing.assert_allclose(host.inputs.region_features[0, 0], mean, rtol=1e-5)


def test_tables_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    one, other = Tables(tmp_path / "one"), Tables(tmp_path / "other")
    one.write_regions(["a", "c"])
    other.write_regions(["a"], fingerprint="detector-b")
    with pytest.raises(InputError, match=r"--annotated-regions .* detector detector-b"):
        JoinedRegions(one.regions, other.regions)
    third = Tables(tmp_path / "third")
    third.write_regions(["a"])
    reader = JoinedRegions(one.regions, third.regions)
    with pytest.raises(InputError, match="--annotated-regions: c has no row"):
        joined_regions(reader, 1, Feeding())
