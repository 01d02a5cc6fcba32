"""Full images' vectors in the rows of a run: whose they are, resumed, checked, refused."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlmill.extract.cli import command
from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.image_level.crop import middle
from vlmill.extract.image_level.networks import FullImages, open_global_networks
from vlmill.extract.images.decode import decode
from vlmill.extract.images.plan import plan_images
from vlmill.extract.run import job as run_module
from vlmill.extract.run.batches import get_unique_row
from vlmill.extract.run.devices import WorkerSettings
from vlmill.extract.run.job import Job, run
from vlmill.extract.verify import verify
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionReader, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import REGIONS

NAMES = ("googlenet", "densenet121")
SMALL = ["--arch", "tiny", "--short-side", "64", "--long-side", "112"]
MakeJob = Callable[..., Job]


@pytest.fixture(scope="session")
def whole() -> FullImages:
    return open_global_networks(NAMES, None, seed=0, device=torch.device("cpu"))


@pytest.fixture
def job(
    shared_images: Path,
    detector: Detector,
    whole: FullImages,
    config: ExtractConfig,
    tmp_path: Path,
) -> MakeJob:
    def make(output: str = "out", **changes: Any) -> Job:
        return Job(
            plan=plan_images([str(shared_images)]),
            output=tmp_path / output,
            detector=dataclasses.replace(detector, global_networks=whole),
            config=dataclasses.replace(config, **changes),
        )

    return make


def rows_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("re*.parquet"))}


def test_each_row_has_its_own_images_vectors(
    job: MakeJob,
    jpeg: Callable[[int], bytes],
    first_run: Path,
    whole: FullImages,
    config: ExtractConfig,
) -> None:
    run(job())
    assert verify(job().output) == []
    reader, without = RegionReader(job().output), RegionReader(first_run)
    assert reader.image_ids == without.image_ids
    assert reader.producer["global_cnn"] == whole.record()
    assert reader.arrays["global_feature"] == {"dtype": "float16", "dim": 2048}
    (crop,) = whole.crops
    for number in range(7):
        row = reader[compute_image_id(jpeg(number))]
        pixels = decode(jpeg(number), config.limits)
        with torch.inference_mode():
            expected = whole.vectors([{crop: middle(pixels, crop)}])[0].numpy()
        assert row.global_feature is not None
        np.testing.assert_array_equal(row.global_feature, expected.astype(np.float16))
        assert np.array_equal(row.features, without[row.image_id].features)  # type: ignore[arg-type]


def test_workers_change_nothing_and_batches_hardly(job: MakeJob) -> None:
    run(job("alone"))
    run(job("workers"), worker_settings=WorkerSettings(workers=2))
    assert rows_of(job("alone").output) == rows_of(job("workers").output)
    run(job("batches", batch_size=4))
    pairs = zip(RegionReader(job("alone").output), RegionReader(job("batches").output), strict=True)
    for one, other in pairs:
        assert one.image_id == other.image_id
        np.testing.assert_allclose(one.global_feature, other.global_feature, rtol=2e-3, atol=1e-3)  # type: ignore[arg-type]


def test_a_killed_run_goes_on_to_the_same_bytes_and_with_no_other_networks(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job("whole"))
    calls = 0
    original = get_unique_row

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise KeyboardInterrupt
        return original(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "get_unique_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(job())
    started = job()
    assert started.detector.global_networks is not None
    fewer = dataclasses.replace(
        started.detector.global_networks, networks=started.detector.global_networks.networks[:1]
    )
    for whole in (None, fewer):
        other = dataclasses.replace(started.detector, global_networks=whole)
        with pytest.raises(InputError, match="global_cnn"):
            run(dataclasses.replace(started, detector=other))
    run(started)
    assert rows_of(job().output) == rows_of(job("whole").output)


def test_verify_misses_vectors_of_another_width(job: MakeJob, tmp_path: Path) -> None:
    made = job()
    run(made)
    rows = list(RegionReader(made.output))
    short = [dataclasses.replace(rows[0], global_feature=np.ones(3)), *rows[1:]]
    short[1] = dataclasses.replace(rows[1], global_feature=None)
    problems = []
    for number, row in enumerate(short[:2]):
        folder = tmp_path / f"short-{number}"
        arrays = region_arrays(dtype="float16", feature_dim=256, global_dim=3)
        with ShardWriter(folder, REGIONS, 0, 1, producer=made.producer(), arrays=arrays) as writer:
            writer.write(encode_regions([row], dtype="float16"))
        write_manifest(folder, [writer.shard], job="extract-rois run", settings={})
        problems += verify(folder)
    assert [p.partition(": ")[2] for p in problems] == [
        "a global_feature of 3 numbers, not the networks' 2048",
        "a global_feature of 0 numbers, not the networks' 2048",
    ]


def test_the_command_says_that_weights_are_random(
    shared_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(shared_images / "1.jpg")
    flags = [image, "--output", str(tmp_path / "out"), *SMALL, "--global-cnn", "googlenet"]
    assert command(["run", *flags]) == 0
    told = capsys.readouterr().err
    assert "no --global-weights, so googlenet have RANDOM weights with --seed 0" in told
    (record,) = RegionReader(tmp_path / "out").producer["global_cnn"]
    assert record["weights"] == "random weights, seed 0" and record["width"] == 1024


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--global-weights", "a.pth"], "--global-weights: name the networks"),
        (["--global-cnn", "googlenet", "--global-feature"], "both are global_feature; give one"),
        (["--global-cnn", "alexnet"], "no such network; give densenet121"),
        (
            ["--global-cnn", "googlenet", "--global-weights", "a.pth", "b.pth"],
            "2 files for 1 networks",
        ),
        (["--global-cnn", "googlenet", "--global-weights", "none.pth"], "none.pth: no such file"),
    ],
)
def test_mistakes_cost_one_line(
    flags: list[str], message: str, shared_images: Path, tmp_path: Path
) -> None:
    run_flags = ["run", str(shared_images), "--output", str(tmp_path / "out"), *SMALL, *flags]
    with pytest.raises(InputError, match=message) as told:
        command(run_flags)
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()
