"""Which function compares a set of the detectors' training: by what its tensors are called."""

from collections.abc import Callable

from tests.parity import detector_training as rules
from tests.parity.detector_training_caffe import caffe_targets, vg_map
from tests.parity.detector_training_solver import optimiser, schedule
from tests.parity.detector_training_step import train_step
from tests.parity.golden import GoldenSet, NotComparable
from tests.parity.results import Results

# A key that only sets of this rule have, and the rule; the first that is there counts.
MARKS: dict[str, Callable[[GoldenSet, Results], None]] = {
    "in.image0": train_step,
    "in.detections": vg_map,
    "in.box_features": rules.attributes,
    "in.iteration": schedule,
    "in.rpn_logits": rules.rpn_set,
    "in.class_logits": rules.box_set,
    "in.proposals0": rules.roi_sampling,
    "in.gt_boxes0": rules.anchors,
    "in.gt_boxes": caffe_targets,
}


def detector_training(golden: GoldenSet, results: Results) -> None:
    """Compares a set by the rule that its recorded inputs are of."""
    for name in golden.cases[:1]:
        if any(key.startswith(f"{name}.in.init.") for key in golden.tensors):
            return optimiser(golden, results)
        for mark, compare in MARKS.items():
            if f"{name}.{mark}" in golden.tensors:
                return compare(golden, results)
    raise NotComparable(f"{golden.folder}: its inputs are of no rule that is compared here")
