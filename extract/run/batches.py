"""Decoded pictures to rows: those of one input shape go through the network together.

Batches are formed among the pictures of a window (vlmill.extract.run.devices) in the order of the
plan, one whenever enough of a shape are there, the rest at the window's end: they depend on nothing
but the window. No picture is ever padded.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.predict import Outcome, Query, predict, stored
from vlmill.extract.detect.predict_fixed import start_batch
from vlmill.extract.pictures.given_boxes import GivenBoxes
from vlmill.extract.pictures.plan import Picture
from vlmill.extract.run.workers import Ready
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.schemas.pictures.orientation import turned_boxes
from vlmill.schemas.rejects import Reason, Rejected

# Batches whose results a GPU still computes while the next one is prepared and queued.
BATCHES_AHEAD = 1


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A picture with its row, or why it gets none."""

    picture: Picture
    image_id: str | None  # None: it could not be read
    result: Outcome


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A picture of a batch, and where its result goes."""

    ready: Ready
    query: Query
    results: list[Extracted | None]
    place: int

    def fill(self, outcome: Outcome) -> None:
        """Puts the result in its place."""
        self.results[self.place] = finished(self.ready, outcome)


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A batch that has been started."""

    seats: Sequence[Seat]
    finish: Callable[[], Sequence[Outcome]]


def finished(ready: Ready, outcome: Outcome) -> Extracted:
    """A picture with its result."""
    return Extracted(picture=ready.picture, image_id=ready.image_id, result=outcome)


def extract_windows(
    windows: Iterable[Iterable[Ready]],
    detector: Detector,
    config: ExtractConfig,
    given: GivenBoxes | None,
) -> Iterator[Sequence[Extracted]]:
    """The results of each window, in order; each window is read to its end before the next.

    Memory: a window's network inputs and rows. On a GPU a window's last batch may be finished only
    when the next window has been read.
    """
    ahead = BATCHES_AHEAD if sizes_are_fixed(detector) else 0
    flights: deque[Flight] = deque()
    waiting: deque[list[Extracted | None]] = deque()
    for window in windows:
        results: list[Extracted | None] = []
        waiting.append(results)
        for seats in batches_of(window, results, config.batch_size, given):
            flights.append(started(seats, detector, config))
            while len(flights) > ahead:
                land(flights.popleft(), detector, config)
        while flights and flights[0].seats[0].results is not results:
            land(flights.popleft(), detector, config)
        while waiting and all(waiting[0]):
            yield complete(waiting.popleft())
    for flight in flights:
        land(flight, detector, config)
    for results in waiting:
        yield complete(results)


def complete(results: Sequence[Extracted | None]) -> Sequence[Extracted]:
    """A window's results, all there."""
    there = [one for one in results if one is not None]
    assert len(there) == len(results)
    return there


def batches_of(
    window: Iterable[Ready],
    results: list[Extracted | None],
    size: int,
    given: GivenBoxes | None,
) -> Iterator[Sequence[Seat]]:
    """Batches of one input shape; what cannot be asked of the network has its result at once."""
    buckets: dict[tuple[int, int], list[Seat]] = {}
    for place, ready in enumerate(window):
        results.append(None)
        try:
            query = query_of(ready, given)
        except Rejected as why:
            results[place] = finished(ready, why)
            continue
        size_px = query.picture.size
        bucket = buckets.setdefault(size_px, [])
        bucket.append(Seat(ready=ready, query=query, results=results, place=place))
        if len(bucket) == size:
            yield buckets.pop(size_px)
    yield from buckets.values()


def query_of(ready: Ready, given: GivenBoxes | None) -> Query:
    """What the network is asked. Raises Rejected."""
    if isinstance(ready.result, Rejected):
        raise ready.result
    assert ready.image_id is not None
    picture, boxes = ready.result, None
    if given is not None:
        stored = given.boxes_of(ready.image_id, ready.picture.path)
        boxes = turned_boxes(stored, ready.orientation, picture.width, picture.height)
    return Query(image_id=ready.image_id, picture=picture, boxes=boxes)


def sizes_are_fixed(detector: Detector) -> bool:
    """Whether batches go the way of :mod:`vlmill.extract.detect.predict_fixed`.

    Not on a CPU, where regions of one picture share work, nor with another library's network.
    """
    return detector.device.type != "cpu" and isinstance(detector.model, FasterRCNN)


def resizes_pixels(detector: Detector) -> bool:
    """Whether the device resizes the pictures: where a CPU's steps give the same numbers there."""
    return sizes_are_fixed(detector) and detector.model.config.resize == "opencv"


def start_seats(
    seats: Sequence[Seat], detector: Detector, config: ExtractConfig
) -> Callable[[], Sequence[Outcome]]:
    """Starts a batch, whole pictures' vectors included; what it gives waits for the results."""
    finish = start([seat.query for seat in seats], detector, config)
    if detector.whole is None:
        return finish
    with computing(config.precision, detector.device):
        vectors = detector.whole.vectors([seat.ready.crops for seat in seats])
    return lambda: described(finish(), vectors.float().cpu().numpy(), config.storage)


def start(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig
) -> Callable[[], Sequence[Outcome]]:
    """Starts what the detector makes of a batch; what it gives waits for the results."""
    if sizes_are_fixed(detector):
        return start_batch(queries, detector, config)
    outcomes = predict(queries, detector, config)
    return lambda: outcomes


def described(
    outcomes: Sequence[Outcome], vectors: npt.NDArray[np.float32], storage: Storage
) -> list[Outcome]:
    """The rows with the vectors of their whole pictures, which the stored type has to hold."""
    whole: list[Outcome] = []
    for outcome, vector in zip(outcomes, vectors, strict=True):
        if isinstance(outcome, Rejected):
            whole.append(outcome)
            continue
        try:
            kept = stored(vector, storage.dtype)
            whole.append(dataclasses.replace(outcome, global_feature=kept))
        except Rejected as why:
            whole.append(why)
    return whole


def started(seats: Sequence[Seat], detector: Detector, config: ExtractConfig) -> Flight:
    """Starts a batch; one that cannot be started fails when it lands."""
    try:
        return Flight(seats=seats, finish=start_seats(seats, detector, config))
    except RuntimeError as error:
        failure = error

        def fail() -> Sequence[Outcome]:
            raise failure

        return Flight(seats=seats, finish=fail)


def land(flight: Flight, detector: Detector, config: ExtractConfig) -> None:
    """Takes a batch's results; where it fails its pictures go through one by one."""
    try:
        outcomes = flight.finish()
    except RuntimeError as error:
        if len(flight.seats) == 1:
            outcomes = [failed(error, detector)]
        else:
            outcomes = [alone(seat, detector, config) for seat in flight.seats]
    for seat, outcome in zip(flight.seats, outcomes, strict=True):
        seat.fill(outcome)


def alone(seat: Seat, detector: Detector, config: ExtractConfig) -> Outcome:
    """The result of a picture whose batch failed."""
    try:
        (outcome,) = start_seats([seat], detector, config)()
    except RuntimeError as error:
        return failed(error, detector)
    return outcome


def failed(error: RuntimeError, detector: Detector) -> Rejected:
    """A picture on which the network fails. Raises OSError if the device no longer works at all."""
    try:
        torch.zeros(1, device=detector.device).add_(1).item()
    except RuntimeError:
        raise OSError(f"--device {detector.device}: {first_line(error)}") from error
    return Rejected(Reason.NETWORK_FAILED, f"{type(error).__name__}: {first_line(error)}")


def first_line(error: RuntimeError) -> str:
    """What it says, in short."""
    return (str(error).splitlines() or [""])[0]
