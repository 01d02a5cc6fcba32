"""Estimates an extraction: bytes from its settings, and hours from the rate of the first images."""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmill.extract.config import ExtractConfig
from vlmill.extract.images.plan import FILE, MEMBER, ROW, InputImage
from vlmill.extract.run.devices import WorkerSettings, start_engine
from vlmill.extract.run.job import Job, Part, compute_results
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate
from vlmill.runtime.files.shards import shard_name
from vlmill.schemas.plurals import format_count
from vlmill.schemas.tables import REJECTS

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "uint16": 2, "float32": 4}
PER_BOX = ("features", "class_probs", "class_prob_ids")
BOX_BYTES = 16  # four corners in float32
MOST_MEASURED = 64  # images


def row_bytes(arrays: Mapping[str, Any], boxes: int) -> int:
    """Returns the bytes of a row of ``boxes`` regions, uncompressed: boxes and arrays
    (`Job.arrays`).
    """
    per_box: int = sum(
        about["dim"] * ITEM_BYTES[about["dtype"]]
        for name, about in arrays.items()
        if name in PER_BOX
    )
    global_array = arrays.get("global_feature")
    global_bytes: int = (
        0 if global_array is None else global_array["dim"] * ITEM_BYTES[global_array["dtype"]]
    )
    return boxes * (per_box + BOX_BYTES) + global_bytes


def output_bytes(
    num_images: int, config: ExtractConfig, arrays: Mapping[str, Any], num_proposals: int
) -> tuple[int, int]:
    """Returns the smallest and largest size of the regions of a number of images.

    The smallest is 0 with compression. A rejected image has no row, and one with fewer proposals
    than the rule's minimum has fewer regions: neither is known in advance.
    """
    selection = config.selection
    min_bytes, max_bytes = (
        num_images * row_bytes(arrays, min(boxes, num_proposals))
        for boxes in (selection.min_boxes, selection.max_boxes)
    )
    return (0 if config.storage.compression != "none" else min_bytes), max_bytes


def estimate_cost(job: Job, images: Sequence[InputImage], rate: Rate | None = None) -> Estimate:
    """Returns the cost of ``images``: all images of the job, or the remaining ones."""
    readable = sum(image.kind in (FILE, ROW, MEMBER) for image in images)
    inputs = {"INPUT": format_count(len(images), "image")}
    if len(images) > readable:
        inputs["of these"] = f"{len(images) - readable:,} repeated, missing or broken"
    seconds = None if rate is None else rate.seconds_for(readable)
    if job.given_boxes is not None:
        note = "the size depends on --boxes and is not estimated"
        return Estimate(inputs=inputs, seconds=seconds, rate=rate, note=note)
    proposals = job.detector.model.config.post_nms_top
    min_bytes, max_bytes = output_bytes(readable, job.config, job.arrays(), proposals)
    return Estimate(
        inputs=inputs, min_bytes=min_bytes, max_bytes=max_bytes, seconds=seconds, rate=rate
    )


def list_remaining(job: Job, indices: Sequence[int]) -> list[InputImage]:
    """Returns the images of unfinished parts."""
    total = job.num_shards
    parts = (
        job.part(index)
        for index in indices
        if not (job.output / shard_name(REJECTS, index, total)).exists()  # the second of its two
    )
    return [image for part in parts for image in part.images]


def measure(job: Job, worker_settings: WorkerSettings) -> Rate:
    """Measures the rate on the first readable images for a few seconds."""
    readable = (image for image in job.plan if image.kind in (FILE, ROW, MEMBER))
    max_images = max(MOST_MEASURED, job.config.window)
    first = [image for image, _ in zip(readable, range(max_images), strict=False)]
    with start_engine(worker_settings, job.detector, job.config, job.given_boxes) as engine:
        part = Part(index=0, total=1, images=first)
        return measure_rate(compute_results(engine, job, [part]), "images")
