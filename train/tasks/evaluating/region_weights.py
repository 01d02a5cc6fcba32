"""Says which regions of an image an answer rests on."""

import numpy as np
import torch

from vlmill.train.loading.features import read_features
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.evaluating.inputs import EvaluationSetup
from vlmill.train.tasks.report import WeighedImage
from vlmill.train.tasks.task import Prediction
from vlmill.train.tasks.weights import RegionMask, occlusion_weights, only_rows


@torch.inference_mode()
def weigh_example(
    setup: EvaluationSetup, batches: TaskBatches, predicted: Prediction, caption: str
) -> WeighedImage | None:
    """Weighs the regions of one example's image; None for a model that reads pixels.

    It costs a pass of one example for each region.
    """
    if batches.regions is None or batches.blind:
        return None
    (samples,) = batches.sampled([batches.make_visit(predicted.row)])
    assert isinstance(samples, tuple)
    regions = samples[0].regions
    assert regions is not None
    host = read_features(batches.collated(0, list(samples)), batches.regions)
    batch, num_whole = host.to(setup.device), int(batches.stage.feeding.whole_image != "none")

    def score(region_mask: RegionMask) -> float:
        rows = np.concatenate([np.ones(num_whole, dtype=np.bool_), region_mask])
        outputs = setup.task.outputs(setup.loaded.model, only_rows(batch, rows))
        return setup.task.compute_score(outputs, predicted.value)

    return WeighedImage(
        image_id=regions.row.image_id,
        width=regions.row.width,
        height=regions.row.height,
        boxes=regions.boxes[: regions.num_shown],
        weights=occlusion_weights(score, regions.num_shown),
        caption=caption,
    )
