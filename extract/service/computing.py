"""Runs a worker's network: converts received images to rows like ``extract-rois run``."""

import atexit
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.images.plan import HeldImage
from vlmill.extract.run.batches import ExtractionResult, extract_windows, resizes_pixels
from vlmill.extract.run.job import Job
from vlmill.extract.run.workers import open_source
from vlmill.extract.service.rows import Outcome, RejectedImage
from vlmill.runtime.service.workers import WorkerContext
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Rejected

_OPEN = ExitStack()  # resources that stay open until the process ends
atexit.register(_OPEN.close)


def open_engine(
    open_detector: Callable[[str], Detector], device: str, config: ExtractConfig, workers: int
) -> WorkerContext:
    """Opens the detector of a device: returns the function that computes rows, and their metadata.

    Images are decoded in ``workers`` further processes, at least one, because a request may contain
    an image that crashes a decoder.
    """
    detector = open_detector(device)
    crops = detector.global_networks.crops if detector.global_networks is not None else ()
    source = _OPEN.enter_context(
        open_source(
            detector.model.config,
            config.limits,
            max(1, workers),
            config.batch_size,
            resize=not resizes_pixels(detector),
            crops=crops,
            device=detector.device,
        )
    )

    def compute(contents: Sequence[bytes]) -> list[Outcome]:
        images = [
            HeldImage(path="", data=data, image_id=compute_image_id(data)) for data in contents
        ]
        (results,) = extract_windows([source(images)], detector, config, None)
        return [make_outcome(result) for result in results]

    job = Job(plan=[], output=Path(), detector=detector, config=config)
    about = {
        "producer": job.producer(),
        "arrays": job.arrays(),
        "dtype": config.storage.dtype,
        "compression": config.storage.compression,
    }
    return WorkerContext(compute=compute, about=about)


def make_outcome(extracted: ExtractionResult) -> Outcome:
    """Returns a row, or the reason for having none, in a form that can be read without torch."""
    result = extracted.result
    if isinstance(result, Rejected):
        return RejectedImage(reason=result.reason, detail=result.detail)
    return result
