"""Pictures made ready for their rows: here, in worker processes, or whole on several devices.

Whatever the way, results come in the order of the pictures and are the same bit for bit: every
picture goes through alone. No more than a fixed number is under way, so memory does not grow.
"""

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import torch

from vlmill.extract.config import ExtractConfig, InputLimits
from vlmill.extract.given import GivenBoxes
from vlmill.extract.inputs import Picture, PictureReader
from vlmill.extract.predict import predict_regions
from vlmill.extract.preprocess import NetworkInput, Rejected, decode, network_input
from vlmill.extract.weights import Detector
from vlmill.models.detector_config import DetectorConfig
from vlmill.schemas.regions import RegionRow
from vlmill.schemas.rejects import Reason

# Each is a decoded and resized picture of up to 7 MB (600 x 1000 x 3 float32).
UNDER_WAY_PER_WORKER = 2
DEVICE_AHEAD = 2


def process_context() -> BaseContext:
    """How processes are started: as forks of one that has imported everything and run nothing.

    A fork of this process may hang, because it has run torch; to import anew takes each process
    seconds. Where there is no such server (Windows), they do import anew.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@dataclass(frozen=True, kw_only=True)
class Ready:
    """How far a picture is: its network input, its row, or why it gets none."""

    picture: Picture
    image_id: str | None  # None: it could not be read
    result: NetworkInput | RegionRow | Rejected


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who works: processes that decode, and the devices if there are several.

    ``open_detector`` gives a process its detector on a device; it is sent there, so it must be a
    function of a module or a partial of one.
    """

    workers: int = 0
    devices: Sequence[str] = ()
    open_detector: Callable[[str], Detector] | None = None


Skip = Callable[[Picture], bool]
Source = Callable[[Iterable[Picture], Skip], Iterator[Ready]]


def prepare(
    picture: Picture, reader: PictureReader, spec: DetectorConfig, limits: InputLimits
) -> Ready:
    """Reads, decodes and resizes."""
    image_id: str | None = None
    try:
        image_id, data = reader.read(picture)
        made: NetworkInput | Rejected = network_input(decode(data, limits), spec, limits)
    except Rejected as why:
        made = why
    return Ready(picture=picture, image_id=image_id, result=made)


def skipped(picture: Picture) -> Ready:
    """What stands for a picture whose id came earlier: nobody looks at it."""
    why = Rejected(Reason.DUPLICATE, f"{picture.image_id} came earlier")
    return Ready(picture=picture, image_id=picture.image_id, result=why)


def inline(spec: DetectorConfig, limits: InputLimits) -> Source:
    """Prepares each picture when it is asked for."""
    reader = PictureReader(limits.max_bytes)

    def source(pictures: Iterable[Picture], skip: Skip) -> Iterator[Ready]:
        for picture in pictures:
            yield skipped(picture) if skip(picture) else prepare(picture, reader, spec, limits)

    return source


@contextmanager
def pool(spec: DetectorConfig, limits: InputLimits, workers: int) -> Iterator[Source]:
    """Prepares pictures in worker processes, a few ahead."""
    executor = ProcessPoolExecutor(
        workers, mp_context=process_context(), initializer=start_worker, initargs=(spec, limits)
    )

    def source(pictures: Iterable[Picture], skip: Skip) -> Iterator[Ready]:
        under_way: deque[tuple[Picture, Future[Ready] | None]] = deque()
        try:
            for picture in pictures:
                task = None if skip(picture) else executor.submit(prepare_here, picture)
                under_way.append((picture, task))
                if len(under_way) > UNDER_WAY_PER_WORKER * workers:
                    yield result_of(*under_way.popleft())
            while under_way:
                yield result_of(*under_way.popleft())
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process of --workers was ended from outside (memory?); "
                "the same command continues where it stopped"
            ) from None

    try:
        yield source
    finally:
        executor.shutdown(cancel_futures=True)


def result_of(picture: Picture, task: "Future[Ready] | None") -> Ready:
    """A task's result, its tensor a tensor again."""
    if task is None:
        return skipped(picture)
    ready = task.result()
    return unpacked(ready)


def packed(ready: Ready) -> Ready:
    """With an array in place of the tensor: torch would send a file of shared memory for each."""
    if not isinstance(ready.result, NetworkInput):
        return ready
    array = dataclasses.replace(ready.result, tensor=ready.result.tensor.numpy())  # type: ignore[arg-type]
    return dataclasses.replace(ready, result=array)


def unpacked(ready: Ready) -> Ready:
    """The tensor again."""
    if not isinstance(ready.result, NetworkInput):
        return ready
    tensor = torch.from_numpy(ready.result.tensor)
    return dataclasses.replace(ready, result=dataclasses.replace(ready.result, tensor=tensor))


# --- in a worker process --------------------------------------------------------------------------

_here: Callable[[Picture], Ready] | None = None


def start_worker(spec: DetectorConfig, limits: InputLimits) -> None:
    """Readies a worker process."""
    global _here
    live_as_long_as_the_parent()
    torch.set_num_threads(1)
    reader = PictureReader(limits.max_bytes)

    def here(picture: Picture) -> Ready:
        return packed(prepare(picture, reader, spec, limits))

    _here = here


def prepare_here(picture: Picture) -> Ready:
    """A worker's task."""
    assert _here is not None
    return _here(picture)


def live_as_long_as_the_parent() -> None:
    """Ends this process when the parent does, even by SIGKILL; interrupts are the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def watch() -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


# --- several devices ------------------------------------------------------------------------------


@contextmanager
def devices(crew: Crew, config: ExtractConfig, given: GivenBoxes | None) -> Iterator[Source]:
    """Extracts on several devices, a process each: pictures go round, rows come back in order."""
    assert crew.open_detector is not None
    context, count = process_context(), len(crew.devices)
    processes: list[tuple[BaseProcess, Connection]] = []
    for number, device in enumerate(crew.devices):
        # --workers is their number altogether.
        workers = crew.workers // count + (number < crew.workers % count)
        ours, theirs = context.Pipe()
        # As many as one process has: another number of threads rounds otherwise on a CPU.
        threads = torch.get_num_threads()
        arguments = (theirs, crew.open_detector, device, config, given, workers, threads)
        process = context.Process(target=serve, args=arguments, name=device)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        processes.append((process, ours))
    ahead = count * (UNDER_WAY_PER_WORKER * -(-crew.workers // count) + DEVICE_AHEAD)

    def source(pictures: Iterable[Picture], skip: Skip) -> Iterator[Ready]:
        under_way: deque[tuple[Picture, int | None]] = deque()
        sent = 0
        for picture in pictures:
            if skip(picture):
                under_way.append((picture, None))
            else:
                send(processes[sent % count], picture)
                under_way.append((picture, sent % count))
                sent += 1
            if len(under_way) > ahead:
                yield received(processes, *under_way.popleft())
        for one in processes:
            send(one, None)
        while under_way:
            yield received(processes, *under_way.popleft())

    try:
        yield source
    finally:
        for ended_process, connection in processes:
            connection.close()
            ended_process.terminate()
            ended_process.join()


def send(process: tuple[BaseProcess, Connection], picture: Picture | None) -> None:
    """One picture to a device's process; None: there are no more."""
    try:
        process[1].send(picture)
    except OSError:
        raise ended(process[0]) from None


def received(
    processes: Sequence[tuple[BaseProcess, Connection]], picture: Picture, number: int | None
) -> Ready:
    """The result of a picture."""
    if number is None:
        return skipped(picture)
    try:
        found = processes[number][1].recv()
    except (EOFError, OSError):
        raise ended(processes[number][0]) from None
    assert isinstance(found, Ready)
    return found


def ended(process: BaseProcess) -> ChildProcessError:
    """A device's process that is gone."""
    process.join(timeout=5)
    return ChildProcessError(
        f"the process of --device {process.name} ended with status {process.exitcode}; "
        "the same command continues where it stopped"
    )


def serve(
    connection: Connection,
    open_detector: Callable[[str], Detector],
    device: str,
    config: ExtractConfig,
    given: GivenBoxes | None,
    workers: int,
    threads: int,
) -> None:
    """A device's process: pictures in, rows out, until there is a None."""
    live_as_long_as_the_parent()
    if torch.device(device).type == "cpu":
        torch.set_num_threads(threads)
    detector = open_detector(device)
    pictures: Iterator[Picture] = iter(connection.recv, None)
    with source_of(detector.model.config, config.limits, workers) as source:
        for ready in source(pictures, lambda picture: False):
            connection.send(extracted(ready, detector, config, given))


@contextmanager
def source_of(spec: DetectorConfig, limits: InputLimits, workers: int) -> Iterator[Source]:
    """Prepares pictures here, or in worker processes."""
    if not workers:
        yield inline(spec, limits)
        return
    with pool(spec, limits, workers) as source:
        yield source


def extracted(
    ready: Ready, detector: Detector, config: ExtractConfig, given: GivenBoxes | None
) -> Ready:
    """With the row in place of the network input."""
    if not isinstance(ready.result, NetworkInput):
        return ready
    assert ready.image_id is not None
    try:
        boxes = None if given is None else given.boxes_of(ready.image_id, ready.picture.path)
        made: RegionRow | Rejected = predict_regions(
            ready.image_id, ready.result, detector, config, boxes
        )
    except Rejected as why:
        made = why
    return dataclasses.replace(ready, result=made)
