"""An extraction costs bytes by its settings, and hours at the rate of the first pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmill.extract.config import ExtractConfig
from vlmill.extract.pictures.plan import FILE, MEMBER, ROW, Picture
from vlmill.extract.run.devices import Crew, engine_of
from vlmill.extract.run.job import Job, Part, results_of
from vlmill.schemas.console.cost import Estimate, Rate, measured_rate
from vlmill.schemas.files.shards import shard_name
from vlmill.schemas.tables import REJECTS

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "uint16": 2, "float32": 4}
PER_BOX = ("features", "class_probs", "class_prob_ids")
BOX_BYTES = 16  # four corners in float32
MOST_MEASURED = 64  # pictures


def row_bytes(arrays: Mapping[str, Any], boxes: int) -> int:
    """Bytes of a row of ``boxes`` regions, uncompressed: boxes and arrays (`Job.arrays`)."""
    per_box: int = sum(
        about["dim"] * ITEM_BYTES[about["dtype"]]
        for name, about in arrays.items()
        if name in PER_BOX
    )
    whole = arrays.get("global_feature")
    beside: int = 0 if whole is None else whole["dim"] * ITEM_BYTES[whole["dtype"]]
    return boxes * (per_box + BOX_BYTES) + beside


def output_bytes(
    num_pictures: int, config: ExtractConfig, arrays: Mapping[str, Any], num_proposals: int
) -> tuple[int, int]:
    """Returns the least and the most that so many pictures' regions take.

    The least is 0 with compression. A picture that is rejected has no row, and one with fewer
    proposals than the rule's minimum has fewer regions: neither is known before it is read.
    """
    selection = config.selection
    least, most = (
        num_pictures * row_bytes(arrays, min(boxes, num_proposals))
        for boxes in (selection.min_boxes, selection.max_boxes)
    )
    return (0 if config.storage.compression != "none" else least), most


def estimate_of(job: Job, pictures: Sequence[Picture], rate: Rate | None = None) -> Estimate:
    """The cost of ``pictures``, which are the job's or what is left of them."""
    readable = sum(picture.kind in (FILE, ROW, MEMBER) for picture in pictures)
    inputs = {"INPUT": f"{len(pictures):,} pictures"}
    if len(pictures) > readable:
        inputs["of these"] = f"{len(pictures) - readable:,} repeated, missing or broken"
    seconds = None if rate is None else rate.seconds_for(readable)
    if job.given_boxes is not None:
        note = "the bytes follow from --boxes, and are not counted"
        return Estimate(inputs=inputs, seconds=seconds, rate=rate, note=note)
    proposals = job.detector.model.config.post_nms_top
    least, most = output_bytes(readable, job.config, job.arrays(), proposals)
    return Estimate(inputs=inputs, least_bytes=least, most_bytes=most, seconds=seconds, rate=rate)


def what_is_left(job: Job, indices: Sequence[int]) -> list[Picture]:
    """The pictures of those parts that no earlier run has finished."""
    total = job.num_shards
    parts = (
        job.part(index)
        for index in indices
        if not (job.output / shard_name(REJECTS, index, total)).exists()  # the second of its two
    )
    return [picture for part in parts for picture in part.pictures]


def measure(job: Job, crew: Crew) -> Rate:
    """The rate of the first pictures that can be read, of a few seconds."""
    readable = (picture for picture in job.plan if picture.kind in (FILE, ROW, MEMBER))
    most = max(MOST_MEASURED, job.config.window)
    first = [picture for picture, _ in zip(readable, range(most), strict=False)]
    with engine_of(crew, job.detector, job.config, job.given_boxes) as engine:
        part = Part(index=0, total=1, pictures=first)
        return measured_rate(results_of(engine, job, [part]), "pictures")
