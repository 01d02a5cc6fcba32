"""Batches: what is refused, with the argument and the numbers named."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import config

from vlmill.models import PixelInputs, VLInputs
from vlmill.models.positions import find_positions


def batch(pairs: int = 2, tokens: int = 3, regions: int = 4, width: int = 8) -> dict[str, Any]:
    return {
        "tokens": torch.ones(pairs, tokens, dtype=torch.int64),
        "token_mask": torch.ones(pairs, tokens, dtype=torch.bool),
        "region_features": torch.zeros(pairs, regions, width),
        "region_locations": torch.zeros(pairs, regions, 5),
        "region_mask": torch.ones(pairs, regions, dtype=torch.bool),
    }


@pytest.fixture
def outside_of_tests() -> Iterator[None]:
    """Shapes unchecked, as users run it: the tests' own checks would come before ours."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("outside_of_tests")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", torch.ones(3, dtype=torch.int64), r"tokens has shape \(3,\)"),
        (
            "tokens",
            torch.ones(3, 3, dtype=torch.int64),
            r"tokens has shape \(3, 3\), expected \(2, 3\)",
        ),
        (
            "tokens",
            torch.ones(2, 3, dtype=torch.int32),
            "tokens is torch.int32, expected torch.int64",
        ),
        ("token_mask", torch.ones(2, 4, dtype=torch.bool), r"token_mask has shape \(2, 4\)"),
        ("token_mask", torch.ones(2, 3), "token_mask is torch.float32, expected torch.bool"),
        ("region_features", torch.zeros(2, 4), r"region_features \(2, 4\); expected"),
        ("region_locations", torch.zeros(2, 4, 4), r"region_locations has shape \(2, 4, 4\)"),
        ("region_mask", torch.ones(2, 5, dtype=torch.bool), r"expected \(2, 4\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VLInputs(**(batch() | {name: value}))


def test_valid_values_pass_and_padding_may_hold_anything_finite() -> None:
    parts = batch()
    parts["token_mask"][0, 1:] = False
    parts["region_mask"][1, 2:] = False
    parts["region_features"][1, 2:] = 1e30
    inputs = VLInputs(**parts)
    assert inputs.validate() is inputs


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_mask", False, r"token_mask: 1 of 2 pairs have no token \(first: row 1\)"),
        ("region_mask", False, r"region_mask: 1 of 2 pairs have no region \(first: row 1\)"),
        ("region_features", float("nan"), r"region_features: 1 of 2 pairs hold NaN"),
        ("region_locations", float("inf"), r"region_locations: 1 of 2 pairs hold NaN or infinite"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, value: Any, message: str) -> None:
    parts = batch()
    parts[name][1] = value
    with pytest.raises(ValueError, match=message):
        VLInputs(**parts).validate()


def test_a_batch_moves_whole() -> None:
    segments = torch.zeros_like(batch()["tokens"])
    masked = torch.zeros_like(batch()["region_mask"])
    whole = VLInputs(
        **batch(),
        segments=segments,
        text_regions=segments,
        masked_regions=masked,
        global_features=torch.zeros(2, 3),
        read_tokens=torch.tensor([0, 5]),
        read_regions=torch.tensor([0]),
    )
    parts = batch()
    texts = {"tokens": parts["tokens"], "token_mask": parts["token_mask"]}
    for moved in (
        whole.to("meta"),
        PixelInputs(**texts, pixels=torch.zeros(2, 3, 8, 8)).to("meta"),
    ):
        assert {getattr(moved, f.name).device.type for f in dataclasses.fields(moved)} == {"meta"}


def test_only_what_leaves_the_host_gets_places() -> None:
    inputs = VLInputs(**batch())
    assert inputs.to("cpu").real is None
    there = inputs.to("meta").real
    assert there is not None and there.text.shape == (int(inputs.token_mask.sum()),)
    half = dataclasses.replace(inputs, real_regions=find_positions(inputs.region_mask)).to("meta")
    assert half.real is not None


@pytest.mark.usefixtures("outside_of_tests")
def test_places_of_another_mask_are_refused() -> None:
    inputs = VLInputs(**batch())
    places = find_positions(inputs.token_mask)
    regions = find_positions(inputs.region_mask)
    placed = dataclasses.replace(inputs, real_tokens=places, real_regions=regions)
    real = placed.validate().real
    assert real is not None and torch.equal(real.text, places)
    fewer = inputs.token_mask.clone()
    fewer[0, -1] = False
    with pytest.raises(ValueError, match=r"real_tokens .* token_mask marks; compute them from"):
        dataclasses.replace(placed, token_mask=fewer).validate()
    with pytest.raises(
        ValueError, match=r"real_regions has shape .* expected one row " r"of positions"
    ):
        dataclasses.replace(placed, real_regions=regions[None])
