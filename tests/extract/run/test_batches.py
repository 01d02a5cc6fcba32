"""Batches: formed by the plan alone, equal to one by one, and never lost by one bad image."""

import dataclasses
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import start_batch
from vlmill.extract.images.plan import InputImage, plan_images
from vlmill.extract.run import batches
from vlmill.extract.run import devices as engine
from vlmill.extract.run import workers as decoding
from vlmill.extract.run.batches import ExtractionResult, extract_windows, form_batches, row_images
from vlmill.extract.run.devices import WorkerSettings, split_windows
from vlmill.extract.run.job import Job, run
from vlmill.extract.run.workers import PreparedImage, inline
from vlmill.extract.verify import verify
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.rejects import Reason, Rejected, reject
from vlmill.schemas.tables import REGIONS, REJECTS, table_of_rows

SIDES = ((96, 72), (72, 96), (90, 90), (96, 72), (96, 72))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images of three shapes, two of them bad and one a copy."""
    folder = tmp_path_factory.mktemp("mixed")
    for number in range(20):
        blobs = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        out = io.BytesIO()
        size = SIDES[number % len(SIDES)]
        Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC).save(out, "JPEG")
        (folder / f"{number:02}.jpg").write_bytes(out.getvalue())
    (folder / "03.jpg").write_bytes(b"")
    (folder / "11.jpg").write_bytes((folder / "11.jpg").read_bytes()[:300])
    (folder / "16.jpg").write_bytes((folder / "02.jpg").read_bytes())
    return folder


@pytest.fixture
def batched(config: ExtractConfig) -> ExtractConfig:
    storage = dataclasses.replace(config.storage, dtype="float32", images_per_shard=7)
    return dataclasses.replace(config, batch_size=2, storage=storage)


def job_of(folder: Path, output: Path, detector: Detector, config: ExtractConfig) -> Job:
    return Job(plan=plan_images([str(folder)]), output=output, detector=detector, config=config)


def windows(
    folder: Path, detector: Detector, config: ExtractConfig
) -> Iterator[Iterator[PreparedImage]]:
    source = inline(detector.model.config, config.limits)
    for window in split_windows(plan_images([str(folder)]), config.window):
        yield source(window)


def everything(folder: Path, detector: Detector, config: ExtractConfig) -> list[ExtractionResult]:
    found = extract_windows(windows(folder, detector, config), detector, config, None)
    return [one for window in found for one in window]


def names(images: list[InputImage]) -> list[str]:
    return [Path(image.path).stem for image in images]


def tables_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_batches_are_of_one_shape_in_the_order_of_the_plan(
    mixed: Path, detector: Detector, config: ExtractConfig
) -> None:
    ready = inline(detector.model.config, config.limits)(plan_images([str(mixed)]))
    results: list[ExtractionResult | None] = []
    found = []
    for seats in form_batches(ready, results, 3, None):
        assert len({seat.query.image.size for seat in seats}) == 1
        found.append(names([seat.ready.image for seat in seats]))
    full = [["00", "04", "05"], ["08", "09", "10"], ["02", "07", "12"], ["13", "14", "15"]]
    assert found == [*full, ["01", "06"], ["16", "17"], ["18", "19"]]
    rejected = [number for number, one in enumerate(results) if one is not None]
    assert rejected == [3, 11]


def test_rows_of_batches_are_those_of_each_alone(
    mixed: Path, tmp_path: Path, detector: Detector, batched: ExtractConfig
) -> None:
    alone = dataclasses.replace(batched, batch_size=1)
    outputs = []
    for name, settings in {"alone": alone, "batched": batched}.items():
        assert run(job_of(mixed, tmp_path / name, detector, settings)) == (17, 3)
        assert verify(tmp_path / name) == []
        outputs.append(RegionReader(tmp_path / name))
    assert outputs[0].image_ids == outputs[1].image_ids
    for one, other in zip(*outputs, strict=True):
        assert one.features is not None and other.features is not None
        np.testing.assert_array_equal(one.class_ids, other.class_ids)
        np.testing.assert_allclose(other.boxes, one.boxes, atol=1e-3)
        scale = np.abs(one.features).max()
        np.testing.assert_allclose(other.features, one.features, atol=1e-5 * scale)
    tables = [read_table(tmp_path / name, REJECTS) for name in ("alone", "batched")]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("workers", "ring_bytes"),
    [
        (0, 0),
        pytest.param(2, 1 << 30, marks=pytest.mark.nightly),
        (2, 1 << 18),  # a ring that is full
    ],
)
def test_rows_of_images_that_the_device_resizes(
    mixed: Path,
    tmp_path: Path,
    detector: Detector,
    batched: ExtractConfig,
    workers: int,
    ring_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, from workers' pixels to rows: the same as those that are resized here, also
    where only some images have a slot of shared memory.
    """
    monkeypatch.setattr(decoding, "RING_BYTES", ring_bytes)
    monkeypatch.setattr(batches, "batches_ahead", lambda _: 1)
    outputs = []
    for there in (False, True):
        monkeypatch.setattr(engine, "resizes_pixels", lambda _, there=there: there)
        job = job_of(mixed, tmp_path / str(there), detector, batched)
        assert run(job, worker_settings=WorkerSettings(workers=workers)) == (17, 3)
        outputs.append(tables_of(job.output))
    assert outputs[0] == outputs[1]


def test_an_interrupted_run_of_batches_continues_to_the_same_bytes(
    mixed: Path, tmp_path: Path, detector: Detector, batched: ExtractConfig
) -> None:
    whole, part = (job_of(mixed, tmp_path / name, detector, batched) for name in ("a", "b"))
    run(whole)
    run(part)
    (part.output / "_manifest.json").unlink()
    for name in ("regions-00001-of-00003.parquet", "rejects-00001-of-00003.parquet"):
        (part.output / name).unlink()
    assert run(part) == (17, 3)
    assert tables_of(part.output) == tables_of(whole.output)


class Broken:
    """Fails on batches with a certain image, as a device without memory does."""

    def __init__(self, original: Callable[..., Any], bad: str, late: bool) -> None:
        self.original, self.bad, self.late = original, bad, late
        self.batches: list[int] = []

    def __call__(self, queries: Any, *rest: Any) -> Callable[[], Any]:
        self.batches.append(len(queries))
        finish = self.original(queries, *rest)
        if all(query.image_id != self.bad for query in queries):
            return finish  # type: ignore[no-any-return]

        def fail() -> None:
            raise torch.OutOfMemoryError("no memory left\nfor this")

        return fail if self.late else fail()  # type: ignore[return-value, func-returns-value]


@pytest.mark.parametrize("late", [False, True])
def test_a_image_on_which_the_network_fails_costs_itself_only(
    mixed: Path,
    detector: Detector,
    batched: ExtractConfig,
    monkeypatch: pytest.MonkeyPatch,
    late: bool,
) -> None:
    whole = [
        one
        for w in extract_windows(windows(mixed, detector, batched), detector, batched, None)
        for one in w
    ]
    bad = whole[4].image_id
    assert bad is not None
    broken = Broken(start_batch, bad, late)
    monkeypatch.setattr(batches, "start_batch", broken)
    found = [
        one
        for w in extract_windows(windows(mixed, detector, batched), detector, batched, None)
        for one in w
    ]
    assert max(broken.batches) == 2
    assert names([one.image for one in found]) == [f"{n:02}" for n in range(20)]
    for number, (one, want) in enumerate(zip(found, whole, strict=True)):
        assert isinstance(one.result, Rejected) == (number in (3, 4, 11))
        if isinstance(one.result, RegionRow):
            assert isinstance(want.result, RegionRow)
            np.testing.assert_allclose(one.result.boxes, want.result.boxes, atol=1e-3)
    assert isinstance(found[4].result, Rejected)
    assert found[4].result.reason == "network_failed"
    assert found[4].result.detail == "OutOfMemoryError: no memory left"


def test_results_wait_one_batch_at_most_on_a_device_that_works_ahead(
    mixed: Path, detector: Detector, batched: ExtractConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, here on the CPU: the same rows, and a window no later than after the next."""
    expected = [one.result for one in everything(mixed, detector, batched)]
    monkeypatch.setattr(batches, "batches_ahead", lambda _: 1)
    read = 0

    def counted() -> Iterator[Iterator[PreparedImage]]:
        nonlocal read
        for window in windows(mixed, detector, batched):
            read += 1
            yield window

    given_back = []
    for number, window in enumerate(extract_windows(counted(), detector, batched, None)):
        assert read <= number + 2
        given_back += [one.result for one in window]
    for one, want in zip(given_back, expected, strict=True):
        assert type(one) is type(want)
        if isinstance(one, RegionRow) and isinstance(want, RegionRow):
            np.testing.assert_array_equal(one.class_ids, want.class_ids)
            np.testing.assert_allclose(one.boxes, want.boxes, atol=1e-3)


def test_rows_of_a_finished_part_know_their_images(tmp_path: Path) -> None:
    """Also where one path is there twice: the later one is the duplicate."""
    images = [InputImage(path=name) for name in ("a", "b", "cut", "a", "c")]
    rows: list[dict[str, object]] = [
        {"image_id": name, "width": 1, "height": 1, "num_boxes": 0, "boxes": []}
        for name in ("hash-a", "hash-b", "hash-c")
    ]
    write_shard(tmp_path, REGIONS, table_of_rows(rows, REGIONS))
    rejects = [
        reject("regions", "cut", Reason.UNREADABLE_IMAGE),
        reject("regions", "a", Reason.DUPLICATE),
    ]
    write_shard(tmp_path, REJECTS, rejects)
    (regions_file,), (rejects_file,) = tmp_path.glob("regions-*"), tmp_path.glob("rejects-*")
    found = row_images(images, regions_file, rejects_file)
    assert found == {"hash-a": images[0], "hash-b": images[1], "hash-c": images[4]}
    assert found["hash-a"] is images[0]
