"""``extract-rois compare``: the same pictures, weights and configuration by both backends.

R proposals, N regions. Each stage of our network is compared on its own input, and the heads on
Detectron2's map and proposals, so that a difference shows where it begins.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.predict import chunk_of, predict_regions
from vlmill.extract.detect.query import Query
from vlmill.extract.detect.selection import Frames
from vlmill.extract.detect.transfer import frames_of, uploaded
from vlmill.extract.pictures.decode import Pixels, decode
from vlmill.extract.pictures.resize import NetworkInput, network_input
from vlmill.models.detector.faster_rcnn import Detections, refine_boxes
from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.regions import RegionRow
from vlmill.schemas.rejects import Rejected

# Boxes this close are one box: a hundred times what other roundings move proposals.
SAME_BOX_PX = 1.0


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The largest differences between two detectors in one picture."""

    feature_map: float  # share of the largest number in Detectron2's map
    proposals: int  # Detectron2's
    other_proposals: int  # of these, those that our network does not propose
    proposals_px: float  # how far the others are apart
    features: float  # share of the largest number, on the same map and proposals
    class_probs: float
    refined_px: float
    regions: int  # by Detectron2 alone, from the pixels on
    other_regions: int  # of these, those that our rows have not: by box and class


# A detector's own regions of blue-green-red pixels [H0, W0, 3]: boxes [N, 4] and classes [N].
Infer = Callable[[Pixels], tuple[Tensor, Tensor]]


def compare(
    pictures: Sequence[Path],
    ours: Detector,
    theirs: Detector,
    infer: Infer,
    config: ExtractConfig,
) -> Iterator[Differences]:
    """Compares our network with Detectron2 on each picture, and our rows with what it infers.

    Raises InputError for a file that is no picture.
    """
    for path in pictures:
        try:
            pixels = decode(path.read_bytes(), config.limits)
            picture = network_input(pixels, theirs.model.config, config.limits)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); give a picture") from None
        except Rejected as error:
            raise InputError(f"{path} is no picture to detect in ({error}); give one") from None
        yield differences(picture, ours, theirs, infer(pixels), config)


def differences(
    picture: NetworkInput,
    ours: Detector,
    theirs: Detector,
    regions: tuple[Tensor, Tensor],
    config: ExtractConfig,
) -> Differences:
    """Compares the stages of both detectors on one picture, and our rows with their regions."""
    query, device = Query(image_id="picture", picture=picture), theirs.device
    batch = uploaded([query], theirs.model.config, device)
    their_frames = frames_of(batch.measures)
    own_frames = frames_of(uploaded([query], ours.model.config, device).measures)
    with computing("exact", device):
        own_map, their_map = (one.model.feature_map(batch.pictures) for one in (ours, theirs))
        own_boxes = proposed(ours, their_map, own_frames)
        their_boxes = proposed(theirs, their_map, their_frames)
        every = torch.ones_like(their_boxes[..., 0], dtype=torch.bool)
        own, reference = (
            one.model.describe(their_map, their_boxes, every, chunk_of(device))
            for one in (ours, theirs)
        )
        apart = distances(their_boxes[0], own_boxes[0])
        own_refined = refined(own, own_frames, ours)
        their_refined = refined(reference, their_frames, theirs)
    same = apart[apart < SAME_BOX_PX]
    row = predict_regions("picture", picture, ours, config)
    return Differences(
        feature_map=share(own_map, their_map),
        proposals=len(apart),
        other_proposals=len(apart) - len(same),
        proposals_px=largest(same),
        features=share(own.features, reference.features),
        class_probs=largest((own.class_probs - reference.class_probs).abs()),
        refined_px=largest((own_refined - their_refined).abs()),
        regions=len(regions[0]),
        other_regions=others(row, *regions),
    )


def proposed(
    by: Detector, features: Float[Tensor, "1 C G V"], frames: Frames
) -> Float[Tensor, "1 R 4"]:
    """One picture's proposals, without free places."""
    boxes, taken = by.model.proposals(features, frames.network_limits, frames.min_sides)
    return boxes[:, taken[0]]


def refined(detections: Detections, frames: Frames, of: Detector) -> Float[Tensor, "1 R B 4"]:
    """Moves the proposals as the regressions say, and cuts them at the picture's edge."""
    assert detections.box_deltas is not None
    limits = frames.network_limits
    return refine_boxes(detections.boxes, detections.box_deltas, limits, of.model.config)


def others(row: RegionRow, boxes: Float[Tensor, "N 4"], classes: Int64[Tensor, " N"]) -> int:
    """How many regions a row does not have, by box and class."""
    assert row.class_ids is not None
    own = torch.from_numpy(row.boxes), torch.tensor(row.class_ids)
    # The class as a fifth coordinate: two classes are farther apart than boxes that are one.
    here, there = (
        torch.cat((corners, 2 * SAME_BOX_PX * numbers[:, None]), dim=1)
        for corners, numbers in (own, (boxes, classes))
    )
    return int((distances(there, here) >= SAME_BOX_PX).sum())


def distances(boxes: Float[Tensor, "R B"], among: Float[Tensor, "N B"]) -> Float[Tensor, " R"]:
    """How far each box's farthest corner is from that of the nearest box ``among`` others."""
    if not len(among):
        return boxes.new_full((len(boxes),), torch.inf)
    apart = (boxes[:, None] - among[None]).abs().amax(dim=2)
    return apart.amin(dim=1)


def share(ours: Tensor, reference: Tensor) -> float:
    """Returns the largest difference as a share of the reference's largest number."""
    return largest((ours - reference).abs()) / max(largest(reference.abs()), 1e-30)


def largest(values: Tensor) -> float:
    """Returns the largest of some numbers; 0 of none."""
    return float(values.max()) if values.numel() else 0.0


def lines(names: Sequence[str], pictures: Sequence[Differences]) -> Iterator[str]:
    """Returns a table of the differences, the largest of all pictures last."""
    columns = [field.name for field in fields(Differences)]
    width = max(len("largest"), *(len(name) for name in names))
    yield "  ".join(["picture".ljust(width), *columns])
    rows = [[getattr(one, name) for name in columns] for one in pictures]
    rows.append([max(column) for column in zip(*rows, strict=True)])
    for name, row in zip((*names, "largest"), rows, strict=True):
        cells = [
            (f"{value}" if isinstance(value, int) else f"{value:.1e}").rjust(len(column))
            for value, column in zip(row, columns, strict=True)
        ]
        yield "  ".join([name.ljust(width), *cells])
