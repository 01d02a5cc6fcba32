"""The ring of shared memory: slots come back, whatever happens to a worker or to who reads."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds.hostile_images import IMAGES, photograph

from vlmill.extract.config import ExtractConfig, InputLimits
from vlmill.extract.detect.detector import Detector
from vlmill.extract.images.plan import HeldImage, plan_images
from vlmill.extract.images.resize import NetworkInput, PixelInput, max_input_bytes, network_input
from vlmill.extract.run import workers
from vlmill.extract.run.workers import (
    DecodeTask,
    PixelRing,
    PreparedImage,
    SlotArray,
    inline,
    open_source,
)
from vlmill.models.detector.config import CONVENTIONS, DetectorConfig
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.schemas.rejects import Reason, Rejected

CPU = torch.device("cpu")


def test_a_slot_comes_back_with_the_last_array_in_it() -> None:
    ring = PixelRing(2, 4096, CPU)
    slot = ring.take()
    assert slot is not None and ring.num_free == 1
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    written = ring.memory.write(slot, values)
    assert written == SlotArray(shape=(3, 4), dtype="<f4")
    array = ring.open(slot, written)
    np.testing.assert_array_equal(array, values)
    row = torch.from_numpy(array[1:])[0]
    del array
    gc.collect()
    assert ring.num_free == 1 and row.tolist() == [4, 5, 6, 7]
    assert {ring.take(), ring.take()} == {1 - slot, None}
    ring.release(1 - slot)
    del row
    assert ring.num_free == 2
    ring.close()


def test_arrays_of_two_slots_share_nothing() -> None:
    ring = PixelRing(2, 4096, CPU)
    arrays = []
    for number in range(2):
        slot = ring.take()
        assert slot is not None
        full = np.full(4096, number, np.uint8)
        assert ring.memory.holds(full)
        arrays.append(ring.open(slot, ring.memory.write(slot, full)))
    assert not ring.memory.holds(np.zeros(4097, np.uint8))
    assert [set(array.tolist()) for array in arrays] == [{0}, {1}]


class Driver:
    """Stands for CUDA's runtime, which pins memory or refuses."""

    def __init__(self, status: int) -> None:
        self.status, self.calls = status, list[tuple[Any, ...]]()

    def cudaHostRegister(self, *arguments: int) -> int:
        self.calls.append(("register", *arguments))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.mark.parametrize("status", [0, 2])
def test_memory_is_pinned_for_a_gpu_where_the_driver_allows_it(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = Driver(status)
    devices: list[torch.device] = []
    cleared: list[torch.device] = []

    def enter(device: torch.device) -> AbstractContextManager[None]:
        devices.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(workers, "clear_error", cleared.append)
    device = torch.device("cuda:1")
    ring = PixelRing(3, 4096, device)
    slot = ring.take()
    assert slot is not None
    address = ring.memory.view(slot, 1).ctypes.data - 4096 * slot
    ring.close()
    ring.close()
    register = ("register", address, 3 * 4096, 1)
    said = capsys.readouterr().err
    if status:
        assert driver.calls == [register] and cleared == [device]
        assert "--device cuda:1: 0 MiB of memory" in said and "error 2" in said
    else:
        assert driver.calls == [register, ("unregister", address)]
        assert devices == [device, device] and not cleared and not said


@pytest.mark.parametrize("family", list(CONVENTIONS))
def test_an_input_is_never_larger_than_a_slot(family: str) -> None:
    spec = CONVENTIONS[family]()
    for limits in (InputLimits(), InputLimits(short_side=64, long_side=112)):
        for shape in ((480, 640), (97, 111), (640, 427), (500, 5000), (333, 334)):
            pixels = np.zeros((*shape, 3), np.uint8)
            tensor = network_input(pixels, spec, limits).tensor
            assert tensor.nbytes <= max_input_bytes(spec, limits)


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[PixelRing]:
    """The rings that are opened."""
    opened: list[PixelRing] = []

    def remember(*arguments: Any) -> PixelRing:
        opened.append(PixelRing(*arguments))
        return opened[-1]

    monkeypatch.setattr(workers, "PixelRing", remember)
    return opened


def assert_same(found: PreparedImage, expected: PreparedImage) -> None:
    assert (found.image, found.image_id) == (expected.image, expected.image_id)
    assert type(found.result) is type(expected.result)
    if isinstance(found.result, Rejected) or isinstance(expected.result, Rejected):
        assert str(found.result) == str(expected.result)
        return
    if isinstance(found.result, PixelInput):
        assert isinstance(expected.result, PixelInput)
        np.testing.assert_array_equal(found.result.pixels, expected.result.pixels)
    else:
        assert isinstance(expected.result, NetworkInput)
        assert torch.equal(found.result.tensor, expected.result.tensor)
    assert found.result.size == expected.result.size


@pytest.mark.parametrize(
    ("ring_bytes", "resize"),
    [
        *[(0, False), (1 << 18, True), (1 << 30, False)],
        *(
            pytest.param(size, resize, marks=pytest.mark.nightly)
            for size, resize in [(0, True), (1 << 18, False), (1 << 30, True)]
        ),
    ],
)
def test_images_are_the_same_with_few_slots_many_or_none(
    shared_images: Path,
    detector: Detector,
    config: ExtractConfig,
    rings: list[PixelRing],
    monkeypatch: pytest.MonkeyPatch,
    ring_bytes: int,
    resize: bool,
) -> None:
    monkeypatch.setattr(workers, "RING_BYTES", ring_bytes)
    plan = plan_images([str(shared_images)])
    expected = list(inline(detector.model.config, config.limits, resize=resize)(plan))
    with open_source(
        detector.model.config, config.limits, 2, config.batch_size, resize=resize
    ) as source:
        for _ in range(2):  # the slots are used once more
            found = list(source(plan))
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
            del found, one, other
        assert [ring.num_free for ring in rings] == [ring.memory.num_slots for ring in rings]
    slots = {0: [], 1 << 18: [3], 1 << 30: [7]}  # of 86,016 bytes: 64 x 112 pixels
    assert [ring.memory.num_slots for ring in rings] == slots[ring_bytes]


def test_who_stops_early_loses_no_slot(
    shared_images: Path, detector: Detector, config: ExtractConfig, rings: list[PixelRing]
) -> None:
    plan = plan_images([str(shared_images)])
    with open_source(detector.model.config, config.limits, 2) as source:
        first = next(iter(source(plan)))
        assert isinstance(first.result, NetworkInput)
        (ring,) = rings
        del first
        assert len(list(source(plan))) == len(plan)
    gc.collect()
    assert ring.num_free == ring.memory.num_slots


class Killed:
    """Kills a worker process as soon as an image has been asked for."""

    def __init__(self, original: Callable[..., "Future[PreparedImage]"]) -> None:
        self.original, self.times = original, 0

    def submit(
        self, pool: BoundedPool[DecodeTask, PreparedImage], task: DecodeTask
    ) -> "Future[PreparedImage]":
        future = self.original(pool, task)
        if self.times < 3 and pool.process_ids:
            os.kill(pool.process_ids[0], signal.SIGKILL)
            self.times += 1
        return future


def test_a_killed_worker_loses_no_slot_and_spoils_none(
    shared_images: Path,
    detector: Detector,
    config: ExtractConfig,
    rings: list[PixelRing],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = 4 * plan_images([str(shared_images)])
    expected = list(inline(detector.model.config, config.limits)(plan))
    killed = Killed(BoundedPool.submit)
    monkeypatch.setattr(BoundedPool, "submit", lambda pool, task: killed.submit(pool, task))
    with open_source(detector.model.config, config.limits, 2) as source:
        for number, one in enumerate(source(plan)):
            if isinstance(one.result, Rejected) and one.result.reason == "too_expensive":
                continue  # its process was killed twice
            assert_same(one, expected[number])
        del one
    assert killed.times == 3
    (ring,) = rings
    assert ring.num_free == ring.memory.num_slots


def held(name: str, data: bytes) -> HeldImage:
    return HeldImage(path="", data=data, image_id=name)


def test_killed_process_is_replaced_and_costly_images_are_rejects() -> None:
    good, costly = photograph("JPEG", 200), IMAGES["JPEG, 3,000 scans"].make()
    with open_source(DetectorConfig(), InputLimits(), 1, resize=False) as source:
        (first,) = source([held("a", good)])
        for process in multiprocessing.active_children():
            process.kill()
        prepared = list(source([held("b", good), held("c", costly), held("d", good)]))
    assert not isinstance(first.result, Rejected)
    assert [ready.image_id for ready in prepared] == ["b", "c", "d"]
    reasons = [
        ready.result.reason if isinstance(ready.result, Rejected) else None for ready in prepared
    ]
    assert reasons == [None, Reason.TOO_EXPENSIVE, None]
