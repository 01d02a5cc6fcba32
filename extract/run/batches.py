"""Computes rows from decoded images; images of one input shape form a batch.

Batches are formed within a window of images (vlmill.extract.run.devices) in the order of the plan:
one as soon as enough images of a shape are available, the remaining ones at the window's end. So
they depend only on the window. No image is ever padded.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import computing, start_batch
from vlmill.extract.detect.rows import Outcome, Query, as_stored
from vlmill.extract.images.given_boxes import GivenBoxes, require_inside
from vlmill.extract.images.plan import InputImage
from vlmill.extract.images.reader import duplicate
from vlmill.extract.run.workers import PreparedImage
from vlmill.runtime.files.paths import readable
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.images.orientation import turn_boxes
from vlmill.schemas.rejects import MAX_KEY, Reason, Rejected, clean


@dataclass(frozen=True, kw_only=True)
class ExtractionResult:
    """Holds an image with its row, or the reason why it has none."""

    image: InputImage
    image_id: str | None  # None: it could not be read
    result: Outcome


@dataclass(frozen=True, kw_only=True)
class BatchSlot:
    """Holds an image of a batch, and the destination of its result."""

    ready: PreparedImage
    query: Query
    results: list[ExtractionResult | None]
    index: int

    def fill(self, outcome: Outcome) -> None:
        """Stores the result at its index."""
        self.results[self.index] = make_result(self.ready, outcome)


@dataclass(frozen=True, kw_only=True)
class RunningBatch:
    """Represents a started batch; ``wait`` returns its results."""

    slots: Sequence[BatchSlot]
    wait: Callable[[], Sequence[Outcome]]


def make_result(ready: PreparedImage, outcome: Outcome) -> ExtractionResult:
    """Returns an image with its result."""
    return ExtractionResult(image=ready.image, image_id=ready.image_id, result=outcome)


def extract_windows(
    windows: Iterable[Iterable[PreparedImage]],
    detector: Detector,
    config: ExtractConfig,
    given_boxes: GivenBoxes | None,
) -> Iterator[Sequence[ExtractionResult]]:
    """Yields the results of each window in order; each window is read to its end before the next.

    Memory: a window's network inputs and rows. On a GPU a window's last batch may be finished only
    after the next window has been read.
    """
    ahead = batches_ahead(detector.device)
    running: deque[RunningBatch] = deque()
    unfinished: deque[list[ExtractionResult | None]] = deque()
    for window in windows:
        results: list[ExtractionResult | None] = []
        unfinished.append(results)
        for slots in form_batches(window, results, config.batch_size, given_boxes):
            running.append(start(slots, detector, config))
            while len(running) > ahead:
                finish(running.popleft(), detector, config)
        while running and running[0].slots[0].results is not results:
            finish(running.popleft(), detector, config)
        while unfinished and all(unfinished[0]):
            yield complete(unfinished.popleft())
    for batch in running:
        finish(batch, detector, config)
    for results in unfinished:
        yield complete(results)


def complete(results: Sequence[ExtractionResult | None]) -> Sequence[ExtractionResult]:
    """Checks that all results of a window are there."""
    complete_results = [result for result in results if result is not None]
    assert len(complete_results) == len(results)
    return complete_results


def form_batches(
    window: Iterable[PreparedImage],
    results: list[ExtractionResult | None],
    size: int,
    given_boxes: GivenBoxes | None,
) -> Iterator[Sequence[BatchSlot]]:
    """Yields batches of one input shape; rejected images get their result immediately."""
    buckets: dict[tuple[int, int], list[BatchSlot]] = {}
    for index, ready in enumerate(window):
        results.append(None)
        try:
            query = make_query(ready, given_boxes)
        except Rejected as why:
            results[index] = make_result(ready, why)
            continue
        size_px = query.image.size
        bucket = buckets.setdefault(size_px, [])
        bucket.append(BatchSlot(ready=ready, query=query, results=results, index=index))
        if len(bucket) == size:
            yield buckets.pop(size_px)
    yield from buckets.values()


def make_query(ready: PreparedImage, given_boxes: GivenBoxes | None) -> Query:
    """Joins a decoded image with its given boxes. Raises Rejected."""
    if isinstance(ready.result, Rejected):
        raise ready.result
    assert ready.image_id is not None
    image, boxes = ready.result, None
    if given_boxes is not None:
        boxes = given_boxes.get_boxes(ready.image_id, ready.image.path)
        if not given_boxes.upright:
            boxes = turn_boxes(boxes, ready.orientation, image.width, image.height)
        require_inside(boxes, image.width, image.height)
    return Query(image_id=ready.image_id, image=image, boxes=boxes)


def batches_ahead(device: torch.device) -> int:
    """Returns how many batches a device may compute while the next one is prepared and queued."""
    return 0 if device.type == "cpu" else 1


def resizes_pixels(detector: Detector) -> bool:
    """Returns whether the device resizes the images, with the same numbers as on a CPU."""
    return detector.device.type != "cpu" and detector.model.config.resize == "opencv"


def start(slots: Sequence[BatchSlot], detector: Detector, config: ExtractConfig) -> RunningBatch:
    """Starts a batch; if it cannot be started, waiting for its results fails."""
    try:
        wait = start_slots(slots, detector, config)
    except RuntimeError as error:
        failure = error

        def fail() -> Sequence[Outcome]:
            raise failure

        return RunningBatch(slots=slots, wait=fail)
    return RunningBatch(slots=slots, wait=wait)


def start_slots(
    slots: Sequence[BatchSlot], detector: Detector, config: ExtractConfig
) -> Callable[[], Sequence[Outcome]]:
    """Starts a batch, including full-image vectors; the returned function waits for the results."""
    wait = start_batch([slot.query for slot in slots], detector, config)
    if detector.global_networks is None:
        return wait
    with computing(config.precision, detector.device):
        vectors = detector.global_networks.vectors([slot.ready.crops for slot in slots])
    return lambda: add_global_features(wait(), vectors.float().cpu().numpy(), config.storage)


def add_global_features(
    outcomes: Sequence[Outcome], vectors: npt.NDArray[np.float32], storage: Storage
) -> list[Outcome]:
    """Adds the vectors of full images to the rows, if the stored type can represent them."""
    results: list[Outcome] = []
    for outcome, vector in zip(outcomes, vectors, strict=True):
        if isinstance(outcome, Rejected):
            results.append(outcome)
            continue
        try:
            values = as_stored(vector, storage.dtype)
            results.append(dataclasses.replace(outcome, global_feature=values))
        except Rejected as why:
            results.append(why)
    return results


def finish(batch: RunningBatch, detector: Detector, config: ExtractConfig) -> None:
    """Waits for a batch; if it fails, retries its images one by one."""
    try:
        outcomes = batch.wait()
    except RuntimeError as error:
        if len(batch.slots) == 1:
            outcomes = [reject_failure(error, detector)]
        else:
            outcomes = [retry_slot(slot, detector, config) for slot in batch.slots]
    for slot, outcome in zip(batch.slots, outcomes, strict=True):
        slot.fill(outcome)


def retry_slot(slot: BatchSlot, detector: Detector, config: ExtractConfig) -> Outcome:
    """Retries an image whose batch failed."""
    try:
        (outcome,) = start_slots([slot], detector, config)()
    except RuntimeError as error:
        return reject_failure(error, detector)
    return outcome


def reject_failure(error: RuntimeError, detector: Detector) -> Rejected:
    """Rejects an image on which the network fails. Raises OSError for a lost device."""
    try:
        torch.zeros(1, device=detector.device).add_(1).item()
    except RuntimeError:
        raise OSError(f"--device {detector.device}: {first_line(error)}") from error
    return Rejected(Reason.NETWORK_FAILED, f"{type(error).__name__}: {first_line(error)}")


def first_line(error: RuntimeError) -> str:
    """Returns an error's first line, a short message."""
    return (str(error).splitlines() or [""])[0]


# --- rows or duplicates ---------------------------------------------------------------------------


def get_unique_row(extracted: ExtractionResult, earlier_images: dict[str, InputImage]) -> RegionRow:
    """Returns the image's row, if its id has none yet. Raises Rejected.

    Ids in the plan count from their first appearance there (mark_repeats); the SHA-256 of a file
    counts from the first row.
    """
    image = extracted.image
    if isinstance(extracted.result, Rejected) and extracted.result.reason is Reason.DUPLICATE:
        raise extracted.result
    if extracted.image_id is not None and extracted.image_id in earlier_images:
        what = "bytes" if image.image_id is None else "id"
        raise duplicate(image.source, what, earlier_images[extracted.image_id].source)
    if image.image_id is not None:
        earlier_images[image.image_id] = image
    if isinstance(extracted.result, Rejected):
        raise extracted.result
    earlier_images[extracted.result.image_id] = image
    return extracted.result


def planned_ids(images: Sequence[InputImage]) -> dict[str, InputImage]:
    """Returns the first image of each id that is known before anything is read: a table's row or
    a file by its name.
    """
    first: dict[str, InputImage] = {}
    for image in images:
        if image.image_id is not None:
            first.setdefault(image.image_id, image)
    return first


def row_images(images: Sequence[InputImage], regions: Path, rejects: Path) -> dict[str, InputImage]:
    """Returns the images of a finished part's rows, by id.

    ``images`` are all of the part, and both shards are in their order. Of images with the same key
    the last ones are the rejects, as duplicates.
    """
    ids, keys = read_column(regions, "image_id"), read_column(rejects, "key")
    images_by_id: dict[str, InputImage] = {}
    for image in reversed(images):
        if keys and keys[-1] == clean(image.key, MAX_KEY):
            keys.pop()
        elif ids:
            images_by_id[ids.pop()] = image
    return images_by_id


def read_column(shard: Path, name: str) -> list[str]:
    """Returns a column of texts of a shard, in the order of its rows."""
    values: list[str] = pq.read_table(readable(shard), columns=[name]).column(0).to_pylist()
    return values
