"""Computes rows of the regions table from images of one input shape.

There is one upload, then everything is queued, and one download that the host waits for at the end:
while a GPU computes a batch, the host decodes, uploads and queues the next one. All sizes are
fixed, and flags mark the used slots, so one image is a batch of one.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.rows import (
    Outcome,
    Query,
    best_attributes,
    in_stored_type,
    make_outcomes,
    regions_at,
    stored_tensors,
)
from vlmill.extract.detect.selection import SelectedRegions, every_given, select
from vlmill.extract.detect.transfer import Batch, download, make_frames, upload_batch
from vlmill.extract.images.decode import decode
from vlmill.extract.images.resize import NetworkInput, network_input
from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN
from vlmill.models.detector.folded import has_bfloat16_convolutions
from vlmill.models.probes import REFUSALS
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.rejects import Rejected

# RoIs in one pass through res5. On two cores 50 cost nothing compared with all 300 together, and
# limit the memory of R-101 to about 0.5 GB in addition to the weights.
CPU_ROI_CHUNK = 50
# On a GPU 600 RoIs of 14 x 14 bins are 117,600 rows of a matrix product, and with R-101 4 GB in
# float32, 2 GB in half precision. On an H200 more are not faster (RESULTS).
ROI_CHUNKS = (2400, 1200, 600)
ROI_BYTES = 7 << 20


def extract_regions(
    image_id: str, data: bytes, detector: Detector, config: ExtractConfig
) -> RegionRow:
    """Decodes, detects and selects. Raises Rejected."""
    pixels = decode(data, config.limits)
    image = network_input(pixels, detector.model.config, config.limits)
    return predict_regions(image_id, image, detector, config)


def predict_regions(
    image_id: str,
    image: NetworkInput,
    detector: Detector,
    config: ExtractConfig,
    boxes: npt.NDArray[np.float32] | None = None,
) -> RegionRow:
    """Detects and selects in one image, or computes the regions of given ``boxes`` [N, 4] in the
    image's pixels, all in their order. Raises Rejected.
    """
    query = Query(image_id=image_id, image=image, boxes=boxes)
    (outcome,) = start_batch([query], detector, config)()
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome


def start_batch(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig
) -> Callable[[], list[Outcome]]:
    """Queues the work on images of one input shape, with boxes for all or for none.

    The returned function waits for the device and returns the rows.
    """
    batch = upload_batch(queries, detector.model.config, detector.device)
    with computing(config.precision, detector.device):
        results = compute(batch, detector, config)
    wait = download(results)

    def finish() -> list[Outcome]:
        arrays = {name: values.numpy() for name, values in wait().items()}
        return make_outcomes(queries, arrays, config.storage)

    return finish


def compute(batch: Batch, detector: Detector, config: ExtractConfig) -> dict[str, Tensor]:
    """Computes all parts of the rows, [N, M, ...] on the device, without waiting for the device."""
    spec, frames, given_boxes = (
        detector.model.config,
        make_frames(batch.measures),
        batch.given_boxes,
    )
    model, chunk, scaled = detector.model, get_chunk_size(detector.device), None
    if given_boxes is not None:
        scaled = given_boxes[0] * frames.given_factors[:, None], given_boxes[1]
    maps = model.feature_maps(batch.images)
    limits = frames.content_limits if spec.regions == "grid" else frames.network_limits
    detections = model.detect(maps, limits, frames.min_sides, given_boxes=scaled, chunk=chunk)
    if given_boxes is None:
        chosen = select(detections, spec, frames, config.selection)
    else:
        chosen = every_given(detections, spec, given_boxes[0])
    tensors = stored_tensors(detections, chosen, spec, config.storage)
    if config.storage.global_feature:
        tensors["global_feature"] = model.full_images(maps, frames.content_limits, chunk)
    if spec.attribute_boxes == "written" and spec.num_attributes:
        assert isinstance(model, FasterRCNN)
        features = written_features(model, maps, detections, chosen, spec, chunk)
        tensors |= best_attributes(model.written_attributes(features, chosen.class_ids), spec)
    stored = in_stored_type(tensors, chosen.box_mask, config.storage)
    return {**stored, "taken": chosen.box_mask}


def written_features(
    model: FasterRCNN,
    maps: Maps,
    detections: Detections,
    chosen: SelectedRegions,
    spec: DetectorConfig,
    chunk: int,
) -> Float[Tensor, "N M D"]:
    """Returns the features of the selected regions at the written boxes, for their attributes.

    Written proposals and given boxes already have their features.
    """
    if spec.written_boxes == "proposals" or chosen.network_boxes is None:
        return regions_at(detections.features, chosen.ids)
    return model.region_features(maps, chosen.network_boxes, chosen.box_mask, chunk)


@cache
def get_chunk_size(device: torch.device) -> int:
    """Returns how many RoIs pass through res5 together on a device, determined once per process."""
    if device.type != "cuda":
        return CPU_ROI_CHUNK
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return choose_chunk_size(free_bytes, total_bytes)


def choose_chunk_size(free_bytes: int, total_bytes: int) -> int:
    """Returns the largest number of RoIs that needs at most a quarter of a card's memory and half
    of its free memory.

    So the choice depends on the card and is the same in all runs on it, unless other processes use
    half of its memory.
    """
    limit = min(total_bytes // 4, free_bytes // 2)
    return next((chunk for chunk in ROI_CHUNKS if chunk * ROI_BYTES <= limit), ROI_CHUNKS[-1])


PROCESSOR = Path("/proc/cpuinfo")


@contextmanager
def computing(precision: Literal["exact", "fast"], device: torch.device) -> Iterator[None]:
    """Sets the arithmetic of the network inside the block, without gradients.

    ``exact``: float32 throughout, TensorFloat-32 off, which PyTorch turns on for convolutions.
    ``fast``: convolutions and linear layers in bfloat16, and the remaining float32 products on CUDA
    in TensorFloat-32; softmaxes, boxes and suppression stay float32. The TensorFloat-32 switches
    belong to the process and are not restored: all threads of a job set the same.
    """
    fast = precision == "fast"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
    # Without a cache: it would keep nothing, since it holds only weights in training.
    with (
        torch.inference_mode(),
        torch.autocast(device.type, torch.bfloat16, enabled=fast, cache_enabled=False),
    ):
        yield


def lacks_bfloat16_units(device: torch.device) -> bool:
    """Returns whether a device computes bfloat16 by converting to float32 and back, without a
    speed-up.

    Processors with AVX512-BF16 or AMX, and ARM processors with bfloat16, compute it natively.
    """
    if device.type != "cpu":
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        return not (
            _has_unit(lambda: torch.cpu._is_avx512_bf16_supported(), "avx512_bf16")
            or _has_unit(lambda: torch.cpu._is_amx_tile_supported(), "amx_tile")
        )
    return not has_bfloat16_convolutions()


def _has_unit(ask: Callable[[], bool], flag: str) -> bool:
    """Calls a private function of PyTorch, or asks Linux if it is missing."""
    try:
        return ask()
    except REFUSALS:
        return PROCESSOR.exists() and flag in PROCESSOR.read_text(encoding="utf-8").split()
