"""Says which regions of an image the matching head's score of a caption rests on."""

import numpy as np
import torch

from vlmill.train.tasks.report import WeighedImage
from vlmill.train.tasks.retrieval.candidates import Candidates
from vlmill.train.tasks.retrieval.inputs import RegionImages, text_batches
from vlmill.train.tasks.retrieval.job import RetrievalSetup, get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer
from vlmill.train.tasks.weights import RegionMask, occlusion_weights, only_rows


@torch.inference_mode()
def weighed_image(setup: RetrievalSetup, candidates: Candidates, text: int) -> WeighedImage | None:
    """Weighs the regions of a caption's own image, by its number among the candidates.

    None for a model that reads pixels. It costs a pass of one pair for each region.
    """
    images = setup.image_inputs
    if not isinstance(images, RegionImages):
        return None
    pair = candidates.pairs[text]
    image_id = candidates.image_ids[candidates.owners[text]]
    batch = images.batch([image_id]).to(setup.device)
    scorer = make_scorer(setup.loaded.model, get_max_elements(setup.feeding))
    (words,) = text_batches([candidates.tokens[text]], 1, setup.device)
    texts = scorer.read_texts(words)
    num_whole = int(setup.feeding.whole_image != "none")

    def score(region_mask: RegionMask) -> float:
        rows = np.concatenate([np.ones(num_whole, dtype=np.bool_), region_mask])
        return float(scorer.match(texts, scorer.read_image(only_rows(batch, rows)))[0])

    boxes, width, height = images.fed_boxes(image_id)
    return WeighedImage(
        image_id=image_id,
        width=width,
        height=height,
        boxes=boxes,
        weights=occlusion_weights(score, len(boxes)),
        caption=pair.text,
    )
