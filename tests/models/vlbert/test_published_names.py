"""The published models under their own names: which tensors, of which shapes, how many numbers.

``vlbert_names.json`` lists them as the released code makes them, the region network once for all;
``layer.{0-11}.`` stands for twelve names.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nightly import stand_for
from torch import nn

from vlmill.models.published import FAMILIES, export_reference
from vlmill.models.vlbert.config import (
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
    vlbert_base,
    vlbert_base_end_to_end,
    vlbert_for_task,
    vlbert_large,
    vlbert_large_end_to_end,
)

NAMES: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parent / "published_names.json").read_text()
)
TASK = vlbert_for_task(vlbert_base())
# Configuration; parameters, and how many of them are trained.
PUBLISHED: dict[str, tuple[Any, int, int]] = {
    "pretrain_multitask_base_prec": (vlbert_base(), 114_491_515, 114_491_515),
    "pretrain_withouttextonly_base_prec": (vlbert_base(text_only=False), 114_490_747, 114_490_747),
    "pretrain_multitask_large_prec": (vlbert_large(), 342_071_675, 342_071_675),
    "pretrain_multitask_base_e2e": (vlbert_base_end_to_end(), 156_989_627, 156_661_883),
    "pretrain_multitask_large_e2e": (vlbert_large_end_to_end(), 384_569_787, 384_242_043),
    "vqa_base": (VlBertVqaConfig(body=TASK), 115_041_849, 115_041_849),
    "refcoco_base": (
        VlBertEndToEndConfig(model=VlBertRefcocoConfig(body=TASK)),
        155_135_041,
        154_807_297,
    ),
    "vcr_base_q2a": (VlBertEndToEndConfig(model=VlBertVcrConfig()), 155_787_922, 155_460_178),
}


def expanded(folded: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """One entry for each name."""
    names = {}
    for name, shape in folded.items():
        numbers = re.search(r"\{(\d+)-(\d+)\}", name)
        if numbers is None:
            names[name] = tuple(shape)
            continue
        first, last = (int(number) for number in numbers.groups())
        for number in range(first, last + 1):
            names[name.replace(numbers[0], str(number))] = tuple(shape)
    return names


def expected(model: str) -> dict[str, tuple[int, ...]]:
    names = expanded(NAMES[model])
    if PUBLISHED[model][2] == PUBLISHED[model][1]:
        return names
    for name, shape in expanded(NAMES["region_network"]).items():
        names[name] = shape
        if "roi_head_feature_extractor" in name:  # again
            names[name.replace("roi_head_feature_extractor", "head.0")] = shape
    return names


KEPT = ("pretrain_multitask_base_prec", "refcoco_base")


@pytest.fixture(scope="module", params=stand_for(PUBLISHED, *KEPT))
def published(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    """A model of the published size, without its numbers."""
    with torch.device("meta"):
        return request.param, FAMILIES["vl-bert"].build(PUBLISHED[request.param][0])


def test_the_export_has_exactly_the_published_names(published: tuple[str, nn.Module]) -> None:
    name, model = published
    exported = export_reference("vl-bert", model)
    assert {key: tuple(tensor.shape) for key, tensor in exported.items()} == expected(name)
    counters = {key for key, tensor in exported.items() if tensor.dtype == torch.int64}
    assert counters == {key for key in exported if key.endswith("num_batches_tracked")}


def test_the_published_numbers_of_parameters(published: tuple[str, nn.Module]) -> None:
    name, model = published
    _, total, trained = PUBLISHED[name]
    assert sum(p.numel() for p in model.parameters()) == total
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trained
