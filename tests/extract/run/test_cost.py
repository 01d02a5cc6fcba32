"""What extraction says that it will cost is what it writes."""

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vlmill.extract import cli
from vlmill.extract.config import ExtractConfig, Selection, Storage
from vlmill.extract.detect.detector import Detector
from vlmill.extract.images.plan import InputImage, plan_images
from vlmill.extract.run.cost import estimate_cost, list_remaining, measure, output_bytes, row_bytes
from vlmill.extract.run.devices import WorkerSettings
from vlmill.extract.run.job import Job, run
from vlmill.runtime.console import cost
from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.readers.regions import region_arrays
from vlmill.schemas.errors import InputError


def test_a_row_by_hand() -> None:
    arrays = region_arrays(dtype="float16", feature_dim=2048)
    assert row_bytes(arrays, 100) == 100 * (2048 * 2 + 16)
    whole = region_arrays(
        dtype="float32", feature_dim=4, class_probs_dim=1601, top_k=10, global_dim=8
    )
    assert row_bytes(whole, 2) == 2 * (4 * 4 + 10 * 4 + 10 * 2 + 16) + 8 * 4


def test_the_least_follows_the_rule_and_the_proposals() -> None:
    arrays = region_arrays(dtype="float16", feature_dim=10)
    config = ExtractConfig(selection=Selection(min_boxes=10, max_boxes=36))
    assert output_bytes(5, config, arrays, 300) == (5 * 10 * 36, 5 * 36 * 36)
    assert output_bytes(5, config, arrays, 4) == (5 * 4 * 36, 5 * 4 * 36)
    packed = dataclasses.replace(config, storage=Storage(compression="zstd"))
    assert output_bytes(5, packed, arrays, 300) == (0, 5 * 36 * 36)


def test_the_estimate_is_below_what_is_written(
    detector: Detector, config: ExtractConfig, shared_images: Path, tmp_path: Path
) -> None:
    names = [str(shared_images / f"{n}.jpg") for n in (0, 2, 4)]
    job = Job(plan=plan_images(names), output=tmp_path, detector=detector, config=config)
    estimate = estimate_cost(job, job.plan)
    run(job)
    shard = read_manifest(tmp_path)["shards"][0]
    features = pq.read_table(tmp_path / shard.name, columns=["features"])
    assert estimate.min_bytes == estimate.max_bytes
    assert features.nbytes <= estimate.min_bytes <= shard.bytes
    assert list_remaining(job, range(job.num_shards)) == []


def test_images_that_cannot_be_read_take_no_room(
    detector: Detector, config: ExtractConfig, tmp_path: Path
) -> None:
    plan = [InputImage(path="a.jpg"), InputImage(path="a.jpg", kind="repeated")]
    job = Job(plan=plan, output=tmp_path, detector=detector, config=config)
    assert estimate_cost(job, plan).min_bytes == estimate_cost(job, plan[:1]).min_bytes
    assert estimate_cost(job, plan).inputs["of these"].startswith("1 repeated")


def test_a_rate_is_measured_on_real_images(
    detector: Detector, config: ExtractConfig, shared_images: Path, tmp_path: Path
) -> None:
    names = [str(shared_images / f"{n}.jpg") for n in (0, 2)]
    output = tmp_path / "out"
    job = Job(plan=plan_images(names), output=output, detector=detector, config=config)
    assert measure(job, WorkerSettings()).items == 2
    assert not output.exists()


ARCH = ("--arch", "tiny", "--short-side", "64", "--long-side", "112")


def test_a_dry_run_writes_nothing(
    shared_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(shared_images / "0.jpg"), "--output", str(tmp_path / "out"), *ARCH]
    assert cli.command([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "INPUT 1 image" in said and "measured on 1" in said and "nothing" in said
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_refused(
    shared_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "free_bytes", lambda _: 1000)
    words = ["run", str(shared_images / "0.jpg"), "--output", str(tmp_path / "out"), *ARCH]
    with pytest.raises(InputError, match="--force"):
        cli.command(words)
    assert not (tmp_path / "out").exists()
    assert cli.command([*words, "--force"]) == 0
    inputs = read_manifest(tmp_path / "out")["inputs"]
    assert [(entry.flag, entry.rule) for entry in inputs] == [("INPUT", "ends")]
