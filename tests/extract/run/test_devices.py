"""Worker processes, several devices, given boxes: same rows, same order, everything counted."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from vlmill.extract.cli import command
from vlmill.extract.verify import verify
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import REJECTS

ROOT = Path(__file__).parents[3]
SMALL = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--max-boxes", "6"]
SMALL += ["--min-boxes", "6", "--images-per-shard", "4"]


def run(*arguments: object) -> Path:
    """Runs the command; returns its output folder, the last argument."""
    assert (
        command(["run", *SMALL, *(str(a) for a in arguments[:-1]), "--output", str(arguments[-1])])
        == 0
    )
    return Path(str(arguments[-1]))


def tables_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def alone(shared_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(shared_images, tmp_path_factory.mktemp("alone") / "out")


@pytest.mark.parametrize(
    "flags",
    [
        # Both are in the test below, of batches.
        pytest.param(["--workers", "2"], marks=pytest.mark.nightly),
        ["--device", "cpu,cpu", "--workers", "1"],
    ],
)
def test_the_same_bytes_by_more_processes(
    shared_images: Path, alone: Path, tmp_path: Path, flags: list[str]
) -> None:
    assert tables_of(run(shared_images, *flags, tmp_path / "out")) == tables_of(alone)


def test_the_same_batches_by_more_processes(shared_images: Path, tmp_path: Path) -> None:
    """Whole windows go to a device, the last one of a part being shorter."""
    flags = ["--batch-size", "2", "--images-per-shard", "9"]
    outputs = [
        run(shared_images, *flags, *crew, tmp_path / str(number))
        for number, crew in enumerate(([], ["--device", "cpu,cpu", "--workers", "3"]))
    ]
    assert tables_of(outputs[0]) == tables_of(outputs[1])
    assert RegionReader(outputs[0]).producer["batch_size"] == 2


def test_known_ids_that_repeat(jpeg: Callable[[int], bytes], tmp_path: Path) -> None:
    """The first image of an id counts, whatever became of it and whoever worked ahead."""
    for name, data in {"a": jpeg(1), "b": b"", "c": jpeg(2)}.items():
        (tmp_path / f"{name}.jpg").write_bytes(data)
    (tmp_path / "more").mkdir()
    for name in ("a", "b", "d"):
        (tmp_path / "more" / f"{name}.png").write_bytes(jpeg(3))
    outputs = [
        run(tmp_path, "--ids", "name", "--workers", n, tmp_path.with_name(f"out{n}"))
        for n in (0, 1)
    ]
    assert tables_of(outputs[0]) == tables_of(outputs[1])
    assert RegionReader(outputs[0]).image_ids == ["a", "c", "d"]
    rejects = [(r["key"], r["reason"]) for r in read_table(outputs[0], REJECTS).to_pylist()]
    assert rejects == [("b", "empty"), ("a", "duplicate"), ("b", "duplicate")]


def test_a_killed_run_leaves_no_process(shared_images: Path, alone: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["run", *SMALL, str(shared_images), "--output", str(output), "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmill.extract.cli", *arguments], env=environment
    )
    while not list(output.glob("regions-*.parquet")):
        with pytest.raises(subprocess.TimeoutExpired):  # else it ended without a shard
            process.wait(timeout=0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert children
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert command(arguments[:-2]) == 0  # the number of workers may change in between
    assert tables_of(output) == tables_of(alone)


def test_given_boxes_keep_their_rows_in_order(jpeg: Callable[[int], bytes], tmp_path: Path) -> None:
    images, boxes = tmp_path / "pictures", tmp_path / "boxes.jsonl"
    images.mkdir()
    for number in range(6):
        (images / f"{number}.jpg").write_bytes(jpeg(number))
    given = {
        "0": [[50, 40, 90, 70], [0, 0, 95, 71], [0, 0, 95, 71], [-0.5, 2, 96.5, 30]],
        compute_image_id(jpeg(1)): [[10, 10, 20, 20]],
        "2": [],
        "gone": [[1, 2, 3, 4]],
        "3": [[1, 2]],
        "4": [[-3, 2, 200, 30]],
        "5": [[7, 7, 7, 9]],
    }
    lines = [json.dumps({"image_id": k, "boxes": v}) for k, v in given.items()]
    boxes.write_text("\n".join(lines))
    flags = ["--boxes", boxes, "--global-feature", "--dtype", "float32", "--class-probs", "full"]
    output = run(images, *flags, tmp_path / "out")
    reader = RegionReader(output)
    rows = [reader[compute_image_id(jpeg(n))] for n in range(3)]
    assert [row.boxes.tolist() for row in rows] == [given["0"], [[10, 10, 20, 20]], []]
    first = rows[0]
    assert first.features is not None and first.global_feature is not None
    np.testing.assert_array_equal(first.features[1], first.features[2])
    np.testing.assert_allclose(first.features[1], first.global_feature, rtol=1e-3, atol=1e-4)
    assert rows[1].class_ids is not None and rows[1].class_probs is not None
    assert rows[1].class_ids[0] == rows[1].class_probs[0, 1:].argmax()
    assert rows[2].features is not None and rows[2].features.shape == (0, reader.feature_dim)
    rejects = [(Path(r["key"]).stem, r["reason"]) for r in read_table(output, REJECTS).to_pylist()]
    bad = [(number, "bad_boxes") for number in "345"]
    assert rejects == [*bad, ("gone", "missing_image")]
    assert verify(output) == []
    alone = RegionReader(run(images / "0.jpg", *flags[2:], tmp_path / "detected"))
    detected = next(iter(alone)).global_feature
    np.testing.assert_array_equal(detected, first.global_feature)


def test_detected_boxes_given_again_have_the_same_features(
    shared_images: Path, tmp_path: Path
) -> None:
    """The published detector of bottom-up attention writes proposals, so they can be given."""
    image, flags = shared_images / "1.jpg", ["--dtype", "float32"]
    row = next(iter(RegionReader(run(image, *flags, tmp_path / "detected"))))
    line = json.dumps({"image_id": row.image_id, "boxes": row.boxes.tolist()})
    (tmp_path / "boxes").write_text(line)
    arguments = (image, *flags, "--boxes", tmp_path / "boxes", tmp_path / "given")
    again = next(iter(RegionReader(run(*arguments))))
    np.testing.assert_array_equal(again.boxes, row.boxes)
    assert row.features is not None and again.features is not None
    np.testing.assert_allclose(again.features, row.features, atol=1e-5)


def test_a_tar_of_images_and_captions(jpeg: Callable[[int], bytes], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for number in range(3):
            for name, data in {f"{number}.jpg": jpeg(number), f"{number}.txt": b"a"}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    output = run(tmp_path / "shard.tar", tmp_path / "out")
    assert RegionReader(output).image_ids == ["0", "1", "2"]
