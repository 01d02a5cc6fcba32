"""The world's circle on a handful of images: its boxes, a detector, its regions, two models."""

import json
from pathlib import Path

import detector_world
import numpy as np
import pyarrow.parquet as pq
import pytest
from proof.tables import WorldTables
from shell import KEYS
from worlds import Detector, World, write_boxes, write_world

from vlmill.runtime.readers.regions import RegionReader

pytestmark = pytest.mark.nightly


def test_boxes_are_those_of_the_images_that_the_world_draws(tmp_path: Path) -> None:
    world = World()
    detector = Detector(extra_boxes=0, class_error=0.0)
    write_world(tmp_path / "world", world, pairs=3, held_out=2, detector=detector)
    write_boxes(tmp_path / "boxes", world, pairs=3, held_out=2)
    rows = pq.read_table(next((tmp_path / "boxes").glob("boxes-*"))).to_pylist()
    given = {row.image_id: row for row in RegionReader(tmp_path / "world")}
    assert [row["split"] for row in rows] == ["train"] * 3 + ["test"] * 2
    assert given.keys() == {row["image_id"] for row in rows}
    for row in rows:
        of_world = given[row["image_id"]]
        assert of_world.class_ids is not None
        ours = sorted(
            (*box, kind) for box, kind in zip(row["boxes"], row["class_ids"], strict=True)
        )
        theirs = [
            (*box, kind)
            for box, kind in zip(
                np.asarray(of_world.boxes).tolist(), of_world.class_ids.tolist(), strict=True
            )
        ]
        assert ours == sorted(theirs)


def test_the_detector_sees_images_as_the_world_draws_them(tmp_path: Path) -> None:
    tables = WorldTables(folder=tmp_path, pairs=3, held_out=2)
    settings = detector_world.detector_settings(tables.world, 100, 2)
    assert settings.short_sides == (128,) and settings.detector.short_side == 128
    assert settings.detector.num_classes == 54 and settings.detector.num_attributes == 3
    assert settings.solver.drops == (80, 95)


@pytest.mark.long
def test_the_circle_closes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--pairs", "16", "--held-out", "4", "--validation", "2"]
    command = [*sizes, "--detector-steps", "2", "--steps", "2", "--output", str(tmp_path / "out")]
    assert detector_world.main(command) == 0
    said = capsys.readouterr().out
    lines = {line["name"]: line for line in map(json.loads, said.splitlines())}
    assert all(line.keys() >= set(KEYS) for line in lines.values())
    assert "detector_world/detector/vg/map" in lines
    for direction in ("image_retrieval", "text_retrieval"):
        last = lines[f"detector_world/{direction}/r1"]
        given = lines[f"learning/imagebert-small/given/seed-0/{direction}/r1"]
        assert last["peer_value"] == given["value"]
    regions = list(RegionReader(tmp_path / "out" / "regions"))
    assert len(regions) == 20 and all(len(row.boxes) >= 2 for row in regions)
    assert detector_world.main(command) == 0  # nothing is done again
    assert capsys.readouterr().out == said
