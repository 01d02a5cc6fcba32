"""Padding of regions is not embedded where the real ones' positions are known."""

import pytest
import torch
from tests.gpu.test_models import model_of
from tests.models.pair_cases import padded_pairs
from torch.utils.flop_counter import FlopCounterMode

from vlmill.models.positions import find_positions

CPU = torch.device("cpu")
LENGTHS = [5, 7, 3]


@pytest.mark.parametrize("variant", ["vilbert", "interbert", "imagebert"])
def test_only_real_regions_are_embedded(variant: str) -> None:
    model = model_of(variant, torch.float64, CPU)
    inputs = padded_pairs([6, 2, 4], LENGTHS).map(
        lambda x: x.double() if x.is_floating_point() else x
    )
    real = find_positions(inputs.region_mask)
    counts, results = [], []
    for known in (None, real):
        with FlopCounterMode(display=False) as counter:
            embedded = model.embed_regions(
                inputs.region_features, inputs.region_locations, real=known
            )
        counts.append(counter.get_total_flops())
        results.append(embedded[:, : max(LENGTHS)])
    torch.testing.assert_close(results[1][inputs.region_mask], results[0][inputs.region_mask])
    assert not results[1][~inputs.region_mask].any()
    assert counts[1] * len(LENGTHS) * max(LENGTHS) == counts[0] * sum(LENGTHS)
