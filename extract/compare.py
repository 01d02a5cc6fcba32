"""Runs ``extract-rois compare``: the same images, weights and configuration in both backends.

R proposals, N regions. Each stage of our network is compared on its own input, and the heads on
Detectron2's map and proposals, so that the results show where a difference starts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import computing, get_chunk_size, predict_regions
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.selection import Frames
from vlmill.extract.detect.transfer import make_frames, upload_batch
from vlmill.extract.images.decode import Pixels, decode
from vlmill.extract.images.resize import NetworkInput, network_input
from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.faster_rcnn import Detections, refine_boxes
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Rejected

# Boxes this close are one box: a hundred times the effect of different rounding on proposals.
SAME_BOX_PX = 1.0


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Holds the largest differences between two detectors in one image."""

    feature_map: float  # relative to the largest number in Detectron2's map; maximum of all maps
    proposals: int  # Detectron2's
    other_proposals: int  # number of these that vlmill's network does not propose
    proposals_px: float  # distance of the others
    features: float  # relative to the largest number, on the same map and proposals
    class_probs: float
    refined_px: float
    regions: int  # by Detectron2 only, from the pixels
    other_regions: int  # number of these that vlmill's rows lack, by box and class


# A detector's own regions of BGR pixels [H0, W0, 3]: boxes [N, 4] and classes [N].
Infer = Callable[[Pixels], tuple[Tensor, Tensor]]


def compare(
    images: Sequence[Path],
    detector: Detector,
    reference_detector: Detector,
    infer: Infer,
    config: ExtractConfig,
) -> Iterator[Differences]:
    """Compares vlmill's network with Detectron2 on each image, and the rows with its inference.

    Raises InputError for a file that is not an image.
    """
    for path in images:
        try:
            pixels = decode(path.read_bytes(), config.limits)
            image = network_input(pixels, reference_detector.model.config, config.limits)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); give an image") from None
        except Rejected as error:
            raise InputError(f"{path} cannot be used ({error}); give an image") from None
        yield compute_differences(image, detector, reference_detector, infer(pixels), config)


def compute_differences(
    image: NetworkInput,
    detector: Detector,
    reference_detector: Detector,
    regions: tuple[Tensor, Tensor],
    config: ExtractConfig,
) -> Differences:
    """Compares the stages of both detectors on one image, and our rows with their regions."""
    query, device = Query(image_id="picture", image=image), reference_detector.device
    batch = upload_batch([query], reference_detector.model.config, device)
    their_frames = make_frames(batch.measures)
    own_frames = make_frames(upload_batch([query], detector.model.config, device).measures)
    with computing("exact", device):
        own_maps, their_maps = (
            backend.model.feature_maps(batch.images) for backend in (detector, reference_detector)
        )
        own_boxes = compute_proposals(detector, their_maps, own_frames)
        their_boxes = compute_proposals(reference_detector, their_maps, their_frames)
        every = torch.ones_like(their_boxes[..., 0], dtype=torch.bool)
        detections, reference = (
            backend.model.describe(their_maps, their_boxes, every, get_chunk_size(device))
            for backend in (detector, reference_detector)
        )
        box_distances = compute_distances(their_boxes[0], own_boxes[0])
        own_refined = refine_detections(detections, own_frames, detector)
        their_refined = refine_detections(reference, their_frames, reference_detector)
    same = box_distances[box_distances < SAME_BOX_PX]
    row = predict_regions("picture", image, detector, config)
    return Differences(
        feature_map=max(
            compute_relative_difference(own, theirs)
            for own, theirs in zip(own_maps, their_maps, strict=True)
        ),
        proposals=len(box_distances),
        other_proposals=len(box_distances) - len(same),
        proposals_px=largest(same),
        features=compute_relative_difference(detections.features, reference.features),
        class_probs=largest((detections.class_probs - reference.class_probs).abs()),
        refined_px=largest((own_refined - their_refined).abs()),
        regions=len(regions[0]),
        other_regions=count_missing_regions(row, *regions),
    )


def compute_proposals(detector: Detector, maps: Maps, frames: Frames) -> Float[Tensor, "1 R 4"]:
    """Returns one image's proposals, without unused slots."""
    boxes, box_mask = detector.model.proposals(maps, frames.network_limits, frames.min_sides)
    return boxes[:, box_mask[0]]


def refine_detections(
    detections: Detections, frames: Frames, detector: Detector
) -> Float[Tensor, "1 R B 4"]:
    """Applies the regressions to the proposals, and clips them to the image."""
    assert detections.box_deltas is not None
    limits = frames.network_limits
    return refine_boxes(detections.boxes, detections.box_deltas, limits, detector.model.config)


def count_missing_regions(
    row: RegionRow, boxes: Float[Tensor, "N 4"], classes: Int64[Tensor, " N"]
) -> int:
    """Returns how many regions a row lacks, by box and class."""
    assert row.class_ids is not None
    row_regions = torch.from_numpy(row.boxes), torch.tensor(row.class_ids)
    # The class is a fifth coordinate: two classes are farther apart than equal boxes.
    here, there = (
        torch.cat((corners, 2 * SAME_BOX_PX * numbers[:, None]), dim=1)
        for corners, numbers in (row_regions, (boxes, classes))
    )
    return int((compute_distances(there, here) >= SAME_BOX_PX).sum())


def compute_distances(
    boxes: Float[Tensor, "R B"], among: Float[Tensor, "N B"]
) -> Float[Tensor, " R"]:
    """Returns the distance of each box to the nearest box ``among`` others, by their farthest
    corner.
    """
    if not len(among):
        return boxes.new_full((len(boxes),), torch.inf)
    pairwise_distances = (boxes[:, None] - among[None]).abs().amax(dim=2)
    return pairwise_distances.amin(dim=1)


def compute_relative_difference(values: Tensor, reference: Tensor) -> float:
    """Returns the largest difference relative to the reference's largest number."""
    return largest((values - reference).abs()) / max(largest(reference.abs()), 1e-30)


def largest(values: Tensor) -> float:
    """Returns the largest of some numbers; 0 of none."""
    return float(values.max()) if values.numel() else 0.0


def format_differences(names: Sequence[str], images: Sequence[Differences]) -> Iterator[str]:
    """Returns a table of the differences, the largest of all images last."""
    columns = [field.name for field in fields(Differences)]
    width = max(len("largest"), *(len(name) for name in names))
    yield "  ".join(["image".ljust(width), *columns])
    rows = [[getattr(image_differences, name) for name in columns] for image_differences in images]
    rows.append([max(column) for column in zip(*rows, strict=True)])
    for name, row in zip((*names, "largest"), rows, strict=True):
        cells = [
            (f"{value}" if isinstance(value, int) else f"{value:.1e}").rjust(len(column))
            for value, column in zip(row, columns, strict=True)
        ]
        yield "  ".join([name.ljust(width), *cells])
