"""A batch on a GPU: one upload, everything queued, one download that the host waits for last.

While a batch is computed the host decodes, uploads and queues the next one.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.predict import Outcome, Query, kept_tensors, outcome_of
from vlmill.extract.detect.selection import Chosen
from vlmill.extract.detect.selection_fixed import BatchChosen, Frames, every_given, select_fixed
from vlmill.extract.pictures.resize import (
    NetworkInput,
    PixelInput,
    Positions,
    interpolated,
    sample_positions,
)
from vlmill.models.detector.batch import BatchDetections, detect_batch
from vlmill.models.detector.boxes import constants
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.inputs import sent

# RoIs that pass through res5 together: 300 of 14 x 14 bins are 58,800 rows of a matrix product, and
# with R-101 about 2 GB in float32.
ROI_CHUNK = 300


def start_batch(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig
) -> Callable[[], list[Outcome]]:
    """Queues the work on pictures of one input shape, with boxes for all or for none.

    The result waits for the device and gives the rows.
    """
    pictures, measures, given = uploaded(queries, detector)
    with computing(config.precision, detector.device):
        results = compute(pictures, measures, given, detector, config)
    arrived = download(results)

    def finish() -> list[Outcome]:
        arrays = {name: values.numpy() for name, values in arrived().items()}
        taken = arrays.pop("taken")
        outcomes = []
        for number, query in enumerate(queries):
            own = {name: values[number] for name, values in arrays.items()}
            kept = {
                name: values if name == "global_feature" else values[taken[number]]
                for name, values in own.items()
            }
            outcomes.append(outcome_of(query, kept, config.storage))
        return outcomes

    return finish


def uploaded(
    queries: Sequence[Query], detector: Detector
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """The pictures, their measures and given boxes on the device."""
    device, spec = detector.device, detector.model.config
    tables = [torch.tensor([measures_of(query, spec) for query in queries])]
    if queries[0].boxes is not None:
        tables += padded([query.boxes for query in queries if query.boxes is not None])
    there = [sent(tensor, device) for tensor in tables]
    pictures = pictures_there([query.picture for query in queries], spec, device)
    return pictures, there[0], (there[1], there[2]) if len(there) > 1 else None


def pictures_there(
    pictures: Sequence[NetworkInput | PixelInput], spec: DetectorConfig, device: torch.device
) -> Float[Tensor, "N 3 H W"]:
    """The network's inputs on the device; those that are not resized yet are resized there."""
    small = [one for one in pictures if isinstance(one, PixelInput)]
    tensors = [one.tensor for one in pictures if isinstance(one, NetworkInput)]
    if not small:
        return sent(torch.cat(tensors), device)
    resized = iter(resized_there(small, spec, device))
    whole = iter(sent(torch.cat(tensors), device) if tensors else ())
    return torch.stack(
        [next(resized if isinstance(one, PixelInput) else whole) for one in pictures]
    )


def resized_there(
    pictures: Sequence[PixelInput], spec: DetectorConfig, device: torch.device
) -> Float[Tensor, "N 3 H W"]:
    """What :func:`vlmill.extract.pictures.resize.network_input` makes of the pixels, bit for
    bit.
    """
    assert spec.resize == "opencv"
    flat = [torch.from_numpy(one.pixels).flatten() for one in pictures]
    there = torch.split(sent(torch.cat(flat), device), [len(one) for one in flat])
    different = {axis for one in pictures for axis in axes_of(one)}
    axes = {axis: positions_there(axis, device) for axis in different}
    like = torch.empty(0, device=device)
    mean, std = constants(spec.pixel_mean, like), constants(spec.pixel_std, like)
    resized = []
    for one, values in zip(pictures, there, strict=True):
        across, down = axes_of(one)
        own = values.view(one.pixels.shape).float() - mean
        resized.append(interpolated(own, axes[across], axes[down]) / std)
    return torch.stack(resized).permute(0, 3, 1, 2)


Axis = tuple[int, int, float]


def axes_of(picture: PixelInput) -> tuple[Axis, Axis]:
    """Old and new size and the factor between them: of the columns, of the rows."""
    height, width = picture.size
    return (picture.width, width, picture.scale), (picture.height, height, picture.scale)


def positions_there(axis: Axis, device: torch.device) -> Positions:
    """Where an axis is sampled; computed here, in double."""
    low, high, weight = sample_positions(*axis)
    return sent(low, device), sent(high, device), sent(weight, device)


def padded(boxes: Sequence[np.ndarray]) -> list[Tensor]:
    """Given boxes [N, P, 4] of several pictures, and which places are taken."""
    places = max(len(one) for one in boxes)
    filled = torch.zeros((len(boxes), places, 4))
    taken = torch.zeros((len(boxes), places), dtype=torch.bool)
    for number, one in enumerate(boxes):
        filled[number, : len(one)] = torch.from_numpy(one)
        taken[number, : len(one)] = True
    return [filled, taken]


def measures_of(query: Query, spec: DetectorConfig) -> list[float]:
    """One picture's row of what :func:`frames_of` takes apart."""
    picture, offset = query.picture, spec.box_offset
    height, width = picture.size
    factor_x, factor_y = picture.factors
    limits = [
        (width - offset, height - offset),
        (width / factor_x - offset, height / factor_y - offset),
        (picture.width - offset, picture.height - offset),
    ]
    pairs = [(factor_x, factor_y), *limits]
    return [spec.min_input_size(picture.scale), *(v for pair in pairs for v in pair * 2)]


def frames_of(measures: Tensor) -> Frames:
    """The measures [N, 17] by their names."""
    return Frames(
        sides=measures[:, 0],
        factors=measures[:, 1:5],
        network_limits=measures[:, 5:9],
        scaled_limits=measures[:, 9:13],
        own_limits=measures[:, 13:17],
    )


def compute(
    pictures: Tensor,
    measures: Tensor,
    given: tuple[Tensor, Tensor] | None,
    detector: Detector,
    config: ExtractConfig,
) -> dict[str, Tensor]:
    """All that the rows are made of, [N, M, ...] on the device; nothing makes the host wait."""
    spec, frames = detector.model.config, frames_of(measures)
    scaled = None if given is None else (given[0] * frames.factors[:, None], given[1])
    batch = detect_batch(
        detector.model,
        pictures,
        frames.sides,
        given=scaled,
        whole=config.storage.global_feature,
        chunk=ROI_CHUNK,
    )
    if given is None:
        chosen = select_fixed(batch, spec, frames, config.selection)
    else:
        chosen = every_given(batch, spec, given[0])
    places = chosen.ids.shape
    kept = {
        name: values.reshape(*places, *values.shape[1:])
        for name, values in kept_tensors(
            batch.found, in_one_row(chosen, batch), spec, config.storage
        ).items()
    }
    if batch.whole is not None:
        kept["global_feature"] = batch.whole
    return {**kept, "taken": chosen.taken}


def in_one_row(chosen: BatchChosen, batch: BatchDetections) -> Chosen:
    """The places of all pictures behind each other, as the detections are."""
    pictures, places = batch.taken.shape
    first = torch.arange(pictures, device=chosen.ids.device)[:, None] * places
    return Chosen(
        ids=(chosen.ids + first).flatten(),
        boxes=chosen.boxes.flatten(0, 1),
        class_ids=chosen.class_ids.flatten(),
        class_scores=chosen.class_scores.flatten(),
        nms_threshold=float("nan"),  # each picture's own
    )


def download(results: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Queues the copies to the host; what it gives waits for them, once for all."""
    copies = {name: values.to("cpu", non_blocking=True) for name, values in results.items()}
    device = results["taken"].device
    if device.type != "cuda":
        return lambda: copies
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))

    def arrived() -> dict[str, Tensor]:
        event.synchronize()
        return copies

    return arrived
