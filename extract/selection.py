"""From the network's proposals to a picture's regions (pure).

R proposals, N chosen regions.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vlmill.extract.config import Selection


def choose_regions(confidence: Float[Tensor, " R"], rule: Selection) -> Int64[Tensor, " N"]:
    """Indices of the regions to keep (released code of bottom-up attention).

    In proposal order where the threshold decides, by falling confidence where a bound does; equal
    confidences keep proposal order.
    """
    above = torch.nonzero(confidence >= rule.threshold)[:, 0]
    bound = min(max(len(above), rule.min_boxes), rule.max_boxes)
    if bound == len(above):
        return above
    return confidence.sort(descending=True, stable=True).indices[:bound]
