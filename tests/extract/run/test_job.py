"""Runs of extraction: accounting, resuming after kills, checking."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlmill.extract.cli import command
from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import extract_regions, predict_regions
from vlmill.extract.images.decode import decode
from vlmill.extract.images.plan import plan_images
from vlmill.extract.images.resize import network_input
from vlmill.extract.run import job as run_module
from vlmill.extract.run.batches import get_unique_row
from vlmill.extract.run.job import Job, run
from vlmill.extract.verify import row_problems, verify
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import REJECTS

ROOT = Path(__file__).parents[3]
MakeJob = Callable[..., Job]


@pytest.fixture
def job(shared_images: Path, detector: Detector, config: ExtractConfig, tmp_path: Path) -> MakeJob:
    def make(output: str = "out", **storage: Any) -> Job:
        changed = dataclasses.replace(
            config, storage=dataclasses.replace(config.storage, **storage)
        )
        plan = plan_images([str(shared_images)])
        return Job(plan=plan, output=tmp_path / output, detector=detector, config=changed)

    return make


def tables_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "_plan.json"}


def test_every_image_has_a_row_or_a_reject(jpeg: Callable[[int], bytes], finished: Path) -> None:
    reader = RegionReader(finished)
    assert reader.image_ids == [compute_image_id(jpeg(number)) for number in range(7)]
    rejects = read_table(finished, REJECTS).to_pylist()
    assert [(Path(r["key"]).stem, r["reason"]) for r in rejects] == [
        ("3-empty", "empty"),
        ("4-cut", "unreadable_image"),
        ("5-again", "duplicate"),
    ]
    named = re.compile(r".*/5-again\.jpg has the same bytes as the earlier .*/1\.jpg")
    assert named.fullmatch(rejects[-1]["detail"])
    assert verify(finished) == []


def test_a_row_is_what_the_image_alone_gives(
    jpeg: Callable[[int], bytes], finished: Path, detector: Detector, config: ExtractConfig
) -> None:
    reader = RegionReader(finished)
    alone = extract_regions(compute_image_id(jpeg(4)), jpeg(4), detector, config)
    row = reader[alone.image_id]
    assert row.features is not None and row.features.shape == (8, 256)
    assert alone.features is not None
    assert np.array_equal(row.features, alone.features)
    assert np.array_equal(row.boxes, alone.boxes)
    assert (row.width, row.height) == (96, 72)
    assert reader.detector_fingerprint == detector.fingerprint
    assert reader.producer["weights"] == "random weights, seed 3"


def test_what_is_stored_follows_the_settings(job: MakeJob) -> None:
    run(job("none", class_probs="none"))
    run(job("full", class_probs="full", dtype="float32", compression="zstd"))
    bare, full = (next(iter(RegionReader(job(name).output))) for name in ("none", "full"))
    assert bare.class_ids is None and bare.class_probs is None
    assert full.class_ids is not None
    assert full.class_probs is not None and full.class_probs.shape == (8, 51)
    np.testing.assert_allclose(full.class_probs.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(full.class_probs[:, 1:].argmax(axis=1), full.class_ids)
    assert full.features is not None and full.features.dtype == np.float32
    assert bare.features is not None
    np.testing.assert_allclose(bare.features, full.features, rtol=1e-3, atol=1e-6)


def test_the_highest_probabilities_are_those_of_the_full_distribution(job: MakeJob) -> None:
    run(job("full", class_probs="full"))
    run(job("top", class_probs="topk:4", dtype="bfloat16"))
    tops = RegionReader(job("top").output)
    assert tops.arrays["class_probs"] == {"dtype": "bfloat16", "dim": 4, "of": 51}
    for full, top in zip(RegionReader(job("full").output), tops, strict=True):
        assert full.class_probs is not None
        assert top.class_probs is not None and top.class_prob_ids is not None
        kept = np.take_along_axis(full.class_probs, top.class_prob_ids.astype(int), axis=1)
        np.testing.assert_allclose(top.class_probs, kept, rtol=2**-7)
        np.testing.assert_array_equal(kept[:, 0], full.class_probs.max(axis=1))
    assert verify(job("top").output) == []


def test_more_probabilities_than_classes_are_all_of_them(job: MakeJob) -> None:
    run(job("top", class_probs="topk:60000"))
    row = next(iter(RegionReader(job("top").output)))
    assert row.class_probs is not None and row.class_probs.shape == (8, 51)


@pytest.mark.parametrize("choice", ["", "topk", "topk:0", "topk:-1", "topk:x", "full:3", "best"])
def test_an_unknown_choice_of_probabilities_is_refused(choice: str) -> None:
    with pytest.raises(ValueError, match="--class-probs"):
        Storage(class_probs=choice)


@pytest.mark.parametrize("images_done", [0, 4, 9])
def test_an_interrupted_run_continues_to_the_same_bytes(
    job: MakeJob, first_run: Path, monkeypatch: pytest.MonkeyPatch, images_done: int
) -> None:
    calls = 0
    original = get_unique_row

    def interrupted(*arguments: Any) -> object:
        nonlocal calls
        calls += 1
        if calls > images_done:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "get_unique_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(job())
    finished = images_done // 3
    assert len(list(job().output.glob("regions-*"))) == finished
    stamps = {p: p.stat().st_mtime_ns for p in job().output.glob("re*.parquet")}
    assert run(job()) == (7, 3)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert tables_of(job().output) == tables_of(first_run)


def test_a_killed_run_continues_to_the_same_bytes(images: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    flags = ["--arch", "tiny", "--short-side", "48", "--long-side", "64"]
    flags += ["--images-per-shard", "1", "--output"]
    arguments = ["run", str(images / "[0-3]*.jpg"), *flags]
    module = [sys.executable, "-m", "vlmill.extract.cli"]
    process = subprocess.Popen([*module, *arguments, str(killed)], env=environment)
    while not list(killed.glob("regions-*.parquet")):
        with pytest.raises(subprocess.TimeoutExpired):  # else it ended without a shard
            process.wait(timeout=0.05)
    process.kill()
    process.wait()
    for output in (killed, whole):
        assert command([*arguments, str(output)]) == 0
    assert tables_of(killed) == tables_of(whole)
    assert verify(killed) == []


def test_a_finished_run_is_left_alone(
    job: MakeJob, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables_of(finished)
    assert run(job()) == (7, 3)
    assert "finished already" in capsys.readouterr().err
    assert tables_of(finished) == before


def test_other_settings_on_the_same_output_are_refused(job: MakeJob, finished: Path) -> None:
    with pytest.raises(InputError, match="other settings"):
        run(job(dtype="float32"))
    assert run(job(dtype="float32"), fresh=True) == (7, 3)
    row = next(iter(RegionReader(finished)))
    assert row.features is not None and row.features.dtype == np.float32


@pytest.mark.parametrize("position", [0.02, 0.5, 0.98])
def test_verify_finds_a_flipped_byte(finished: Path, position: float) -> None:
    path = finished / "regions-00001-of-00004.parquet"
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)
    assert any(path.name in problem for problem in verify(finished))


def test_a_damaged_shard_of_a_killed_run_is_made_again(
    job: MakeJob, finished: Path, first_run: Path
) -> None:
    (finished / "_manifest.json").unlink()
    path = finished / "regions-00001-of-00004.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert run(job()) == (7, 3)
    assert tables_of(finished) == tables_of(first_run)


def test_verify_refuses_an_unfinished_run(finished: Path) -> None:
    (finished / "_manifest.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        verify(finished)


def test_verify_looks_into_the_rows(finished: Path) -> None:
    row = next(iter(RegionReader(finished)))
    assert row_problems(row) == []
    assert row.features is not None and row.class_scores is not None
    assert row.attribute_ids is not None
    assert row_problems(dataclasses.replace(row, width=10))
    assert row_problems(dataclasses.replace(row, class_scores=row.class_scores + 1))
    assert row_problems(dataclasses.replace(row, features=row.features * np.float16("inf")))
    assert row_problems(dataclasses.replace(row, attribute_ids=row.attribute_ids[1:]))


def test_a_image_without_boxes_has_its_row(
    jpeg: Callable[[int], bytes], detector: Detector, config: ExtractConfig, tmp_path: Path
) -> None:
    nothing = dataclasses.replace(config.selection, threshold=1.0, min_boxes=0)
    config = dataclasses.replace(config, selection=nothing, storage=Storage(class_probs="full"))
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg(1))
    job = Job(
        plan=plan_images([str(path)]), output=tmp_path / "o", detector=detector, config=config
    )
    assert run(job) == (1, 0)
    (row,) = RegionReader(job.output)
    assert row.boxes.shape == (0, 4)
    assert row.features is not None and row.features.shape == (0, 256)
    assert verify(job.output) == []


def test_mutated_images_are_all_accounted_for(
    jpeg: Callable[[int], bytes], detector: Detector, config: ExtractConfig, tmp_path: Path
) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "pictures"
    folder.mkdir()
    for number in range(100):
        data = bytearray(jpeg(number))
        for _ in range(int(rng.integers(1, 20))):
            data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
        cut = len(data) if number % 3 else int(rng.integers(0, len(data)))
        (folder / f"{number}.jpg").write_bytes(bytes(data[:cut]))
    plan = plan_images([str(folder)], "name")
    output = tmp_path / "out"
    regions, rejects = run(Job(plan=plan, output=output, detector=detector, config=config))
    assert regions > 5 and rejects > 5
    keys = [row["key"] for row in read_table(output, REJECTS).to_pylist()]
    assert sorted([*keys, *RegionReader(output).image_ids], key=int) == [str(n) for n in range(100)]
    assert verify(output) == []


def test_fast_is_close_says_so_and_does_not_mix(job: MakeJob, first_run: Path) -> None:
    exact_job = job(dtype="float32")
    config = dataclasses.replace(exact_job.config, precision="fast")
    fast_job = dataclasses.replace(exact_job, config=config)
    assert run(fast_job) == (7, 3)
    assert verify(fast_job.output) == []
    reader = RegionReader(fast_job.output)
    assert reader.producer["precision"] == "fast"
    given = {i: row.boxes for i, row in zip(reader.image_ids, RegionReader(first_run), strict=True)}
    for row in reader:
        assert row.class_scores is not None and row.features is not None
        assert not np.array_equal(row.boxes, given[row.image_id])
        assert row.boxes.shape == (8, 4) and row.features.shape == (8, 256)
    with pytest.raises(InputError, match="other settings"):
        run(exact_job)


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_features_by_precision_for_the_same_boxes(
    jpeg: Callable[[int], bytes], detector: Detector, config: ExtractConfig, precision: Any
) -> None:
    """Float32 to the bit whatever ran before; bfloat16 by its steps of 2^-8, which a softmax over
    large logits makes larger.
    """
    storage = Storage(dtype="float32", class_probs="full", global_feature=True)
    exact = dataclasses.replace(config, storage=storage)
    other = dataclasses.replace(exact, precision=precision)
    image = network_input(decode(jpeg(2), config.limits), detector.model.config, config.limits)
    boxes = np.array([[3, 4, 60, 50], [20, 10, 90, 70]], dtype=np.float32)
    want = predict_regions("a", image, detector, exact, boxes)
    found = predict_regions("a", image, detector, other, boxes)
    for name in ("features", "class_probs", "global_feature"):
        one, two = getattr(want, name), getattr(found, name)
        assert one.dtype == two.dtype == np.float32
        difference = np.abs(one - two).max() / np.abs(one).max()
        if precision == "exact":
            assert difference == 0
        else:
            assert 0 < difference < (0.15 if name == "class_probs" else 0.03)
    assert found.class_probs is not None
    np.testing.assert_allclose(found.class_probs.sum(axis=1), 1, atol=1e-5)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("lacking", [True, False])
def test_fast_says_that_a_processor_lacks_the_units_for_it(
    images: Path,
    tmp_path: Path,
    detector: Detector,
    config: ExtractConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lacking: bool,
) -> None:
    monkeypatch.setattr(run_module, "lacks_bfloat16_units", lambda _: lacking)
    plan = plan_images([str(images / "0.jpg")])
    for precision in ("exact", "fast"):
        own = dataclasses.replace(config, precision=precision)
        output = tmp_path / precision
        assert run(Job(plan=plan, output=output, detector=detector, config=own)) == (1, 0)
        said = "no bfloat16 units" in capsys.readouterr().err
        assert said == (lacking and precision == "fast")
