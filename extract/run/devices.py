"""Forms batches and computes rows, in this process or on several devices in processes.

The plan is divided into windows of consecutive images. The computation of a window depends only on
its images, so every run forms the same batches with any workers, and results are in the order of
the plan, bit-identical.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.images.given_boxes import GivenBoxes
from vlmill.extract.images.plan import InputImage
from vlmill.extract.run.batches import ExtractionResult, extract_windows, resizes_pixels
from vlmill.extract.run.workers import PreparedImage, open_source, under_way
from vlmill.runtime.processes import live_as_long_as_the_parent, process_context

Window = Sequence[InputImage]
Engine = Callable[[Iterable[Window]], Iterator[Sequence[ExtractionResult]]]
"""Windows to their results, in order; it may take some windows before it gives the first."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Holds the number of decoding processes, and the devices if there are several.

    ``open_detector`` opens the detector of a process on its device; it is sent to the process, so
    it must be a module's function or a partial of one.
    """

    workers: int = 0
    devices: Sequence[str] = ()
    open_detector: Callable[[str], Detector] | None = None


def split_windows(images: Sequence[InputImage], size: int) -> Iterator[Window]:
    """Yields a part's images, ``size`` at a time."""
    for start in range(0, len(images), size):
        yield images[start : start + size]


@contextmanager
def start_engine(
    worker_settings: WorkerSettings,
    detector: Detector,
    config: ExtractConfig,
    given_boxes: GivenBoxes | None,
) -> Iterator[Engine]:
    """Extracts in this process, or on several devices."""
    if len(worker_settings.devices) > 1:
        with devices(worker_settings, config, given_boxes) as engine:
            yield engine
        return
    with one_device(worker_settings.workers, detector, config, given_boxes) as engine:
        yield engine


@contextmanager
def one_device(
    workers: int, detector: Detector, config: ExtractConfig, given_boxes: GivenBoxes | None
) -> Iterator[Engine]:
    """Extracts in this process, on the detector's device."""
    spec, resize = detector.model.config, not resizes_pixels(detector)
    crops = detector.global_networks.crops if detector.global_networks is not None else ()
    with open_source(
        spec,
        config.limits,
        workers,
        config.batch_size,
        resize=resize,
        crops=crops,
        device=detector.device,
    ) as source:

        def engine(windows: Iterable[Window]) -> Iterator[Sequence[ExtractionResult]]:
            sizes: deque[int] = deque()

            def images() -> Iterator[InputImage]:
                for window in windows:
                    sizes.append(len(window))
                    yield from window

            ready = source(images())

            def decode_windows() -> Iterator[Iterator[PreparedImage]]:
                for first in ready:  # its window's size is known by now
                    yield chain((first,), islice(ready, sizes.popleft() - 1))

            return extract_windows(decode_windows(), detector, config, given_boxes)

        yield engine


@dataclass(kw_only=True)
class DeviceWorker:
    """Holds a device's process, and the number of its images without a result."""

    process: BaseProcess
    connection: Connection
    images: int = 0

    def send(self, window: Window | None) -> None:
        """Sends a window to the process, or None after the last one."""
        try:
            self.connection.send(window)
        except OSError:
            raise self.ended() from None

    def receive(self) -> Sequence[ExtractionResult]:
        """Returns the results of the oldest window that was sent and not received."""
        try:
            results: Sequence[ExtractionResult] = self.connection.recv()
        except (EOFError, OSError):
            raise self.ended() from None
        self.images -= len(results)
        return results

    def ended(self) -> ChildProcessError:
        """Returns the error for a process that has ended."""
        self.process.join(timeout=5)
        return ChildProcessError(
            f"the process of --device {self.process.name} ended with status "
            f"{self.process.exitcode}; the same command continues where it stopped"
        )


@contextmanager
def devices(
    worker_settings: WorkerSettings, config: ExtractConfig, given_boxes: GivenBoxes | None
) -> Iterator[Engine]:
    """Extracts on several devices, one process each: windows are sent to the least busy one."""
    workers = -(-worker_settings.workers // len(worker_settings.devices))
    # A window is returned when the next one has been decoded (extract_windows), and decoding runs
    # ahead of that: with fewer windows a process would wait for images, and this one for it.
    enough = 2 * config.window + under_way(workers, config.batch_size)
    device_workers: list[DeviceWorker] = []

    def engine(windows: Iterable[Window]) -> Iterator[Sequence[ExtractionResult]]:
        sent: deque[DeviceWorker] = deque()
        for window in windows:
            target = min(device_workers, key=lambda station: station.images)
            target.send(window)
            target.images += len(window)
            sent.append(target)
            while min(device_worker.images for device_worker in device_workers) > enough:
                yield sent.popleft().receive()
        for device_worker in device_workers:
            device_worker.send(None)
        while sent:
            yield sent.popleft().receive()

    try:
        for number in range(len(worker_settings.devices)):
            device_workers.append(start_device_worker(number, worker_settings, config, given_boxes))
        yield engine
    finally:
        for worker in device_workers:
            worker.connection.close()
            worker.process.terminate()
            worker.process.join()


def start_device_worker(
    number: int,
    worker_settings: WorkerSettings,
    config: ExtractConfig,
    given_boxes: GivenBoxes | None,
) -> DeviceWorker:
    """Starts the process of one of the devices."""
    assert worker_settings.open_detector is not None
    context, count, device = (
        process_context(__name__),
        len(worker_settings.devices),
        worker_settings.devices[number],
    )
    # --workers is their total number.
    workers = worker_settings.workers // count + (number < worker_settings.workers % count)
    parent_end, child_end = context.Pipe()
    # As many as one process has: another number of threads rounds differently on a CPU.
    threads = torch.get_num_threads()
    arguments = (
        child_end,
        worker_settings.open_detector,
        device,
        config,
        given_boxes,
        workers,
        threads,
    )
    process = context.Process(target=serve, args=arguments, name=device)
    process.start()
    child_end.close()
    return DeviceWorker(process=process, connection=parent_end)


def serve(
    connection: Connection,
    open_detector: Callable[[str], Detector],
    device: str,
    config: ExtractConfig,
    given_boxes: GivenBoxes | None,
    workers: int,
    threads: int,
) -> None:
    """Works as a device's process: receives windows and sends results until a None comes."""
    live_as_long_as_the_parent()
    if torch.device(device).type == "cpu":
        torch.set_num_threads(threads)
    detector = open_detector(device)
    received: queue.SimpleQueue[Window | None] = queue.SimpleQueue()

    def receive() -> None:
        # Always open: otherwise both ends could wait for the other one to read.
        with suppress(EOFError, OSError):  # the other end is closed: no windows follow
            while (window := connection.recv()) is not None:
                received.put(window)
        received.put(None)

    threading.Thread(target=receive, daemon=True).start()
    windows: Iterator[Window] = iter(received.get, None)
    with one_device(workers, detector, config, given_boxes) as engine:
        for results in engine(windows):
            connection.send(results)
