"""VL-BERT from pixels: regions from images, what is frozen, what masking removes."""

from typing import Any

import pytest
import torch
from tests.models.vlbert.cases import TINY, lively

from vlmill.models import VLInputs
from vlmill.models.convert.keymap import import_state
from vlmill.models.published import export_reference
from vlmill.models.vlbert.config import RegionCnnConfig, VlBertConfig, VlBertEndToEndConfig
from vlmill.models.vlbert.end_to_end import VlBertEndToEnd, without_pixels
from vlmill.models.vlbert.published import links
from vlmill.models.vlbert.region_cnn import ImageRegions, RegionCnn

NARROW = RegionCnnConfig(blocks=(1, 1, 2, 1), widths=(2, 3, 4, 5), stem_channels=4)


def tiny_end_to_end() -> VlBertEndToEnd:
    config = VlBertConfig(**(TINY | {"region_width": 20, "masked_region": "pixels"}))
    torch.manual_seed(0)
    model = VlBertEndToEnd(VlBertEndToEndConfig(model=config, cnn=NARROW))
    lively(model.model)
    return model


def image_regions(**changes: Any) -> ImageRegions:
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand(2, 3, 2, generator=generator) * 30
    boxes = torch.cat([corners, corners + 20], dim=-1)
    boxes[:, 0] = torch.tensor([0.0, 0.0, 63.0, 47.0])
    parts = {
        "images": torch.randn(2, 3, 48, 64, generator=generator) * 50,
        "sizes": torch.tensor([[64.0, 48.0], [64.0, 48.0]]),
        "boxes": boxes,
        "region_mask": torch.tensor([[True, True, True], [True, True, False]]),
    }
    return ImageRegions(**(parts | changes))


def texts(masked: bool = False) -> VLInputs:
    mask = torch.tensor([[True, True, True], [True, True, False]])
    return VLInputs(
        tokens=torch.arange(10).view(2, 5),
        token_mask=torch.ones(2, 5, dtype=torch.bool),
        region_features=torch.zeros(2, 3, 0),
        region_locations=torch.zeros(2, 3, 5),
        region_mask=mask,
        masked_regions=torch.tensor([[False, True, False]] * 2) if masked else None,
    )


def test_it_is_the_model_on_the_networks_regions() -> None:
    model, regions = tiny_end_to_end().eval(), image_regions()
    output = model(regions, texts())
    features = model.cnn(regions.images, regions.boxes, regions.region_mask)
    assert not features[1, 2].any()
    expected = model.model(
        VLInputs(
            **(
                vars(texts())
                | {"region_features": features, "region_locations": regions.locations()}
            )
        )
    )
    assert torch.equal(output.text, expected.text)


def test_locations_are_fractions_and_area() -> None:
    locations = image_regions().locations()
    expected = torch.tensor([0.0, 0.0, 63 / 64, 47 / 48, 63 / 64 * 47 / 48])
    torch.testing.assert_close(locations[0, 0], expected)
    assert not locations[1, 2].any()  # padding


def test_masked_regions_lose_their_pixels_by_hand() -> None:
    images = torch.ones(1, 3, 6, 7)
    boxes = torch.tensor([[[1.9, 0.2, 3.99, 2.0], [5.0, 5.0, 6.0, 5.0], [0.0, 0.0, 6.0, 5.0]]])
    blank = without_pixels(images, boxes, torch.tensor([[True, True, False]]))
    expected = torch.ones(6, 7)
    expected[0:3, 1:4] = 0
    expected[5, 5:7] = 0
    assert torch.equal(blank[0, 1], expected)
    assert torch.equal(without_pixels(images, boxes, torch.zeros(1, 3, dtype=torch.bool)), images)


def test_nobody_sees_what_is_masked() -> None:
    """Other pixels in a masked box change nothing, for the full image's region either."""
    model, regions = tiny_end_to_end().eval(), image_regions()
    output = model(regions, texts(masked=True))
    images = regions.images.clone()
    left, top, right, bottom = regions.boxes[0, 1].long().tolist()
    images[0, :, top : bottom + 1, left : right + 1] += 40.0
    other = image_regions(images=images)
    assert torch.equal(model(other, texts(masked=True)).text, output.text)
    assert not torch.allclose(model(other, texts()).text, model(regions, texts()).text, atol=1e-4)


def test_gradients_reach_what_is_trained() -> None:
    """Not the stem, not res2, no normalisation; in training these keep their statistics."""
    model = tiny_end_to_end().train()
    before = {n: b.clone() for n, b in model.named_buffers()}
    output = model(image_regions(), texts())
    (output.text.square().sum() + output.regions.square().sum()).backward()
    for name, parameter in model.cnn.named_parameters():
        trained = ".norm." not in name and name.split(".")[0] in ("res3", "res4", "res5")
        assert parameter.requires_grad == trained, name
        assert (parameter.grad is not None and bool(parameter.grad.any())) == trained, name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_instance_masks_blank_cells() -> None:
    cnn = RegionCnn(NARROW).eval()
    regions = image_regions()
    args = regions.images, regions.boxes, regions.region_mask
    plain = cnn(*args)
    torch.testing.assert_close(cnn(*args, torch.ones(2, 3, 14, 14)), plain)
    assert not cnn(*args, torch.zeros(2, 3, 14, 14)).any()
    half = torch.zeros(2, 3, 14, 14)
    half[..., :7] = 1
    torch.testing.assert_close(cnn(*args, half) + cnn(*args, 1 - half), plain)
    with pytest.raises(ValueError, match=r"instance_masks has \(7, 7\) cells, regions have"):
        cnn(*args, torch.ones(2, 3, 7, 7))


def test_without_dilation_conv5_halves() -> None:
    wide = RegionCnn(RegionCnnConfig(blocks=(1, 1, 1, 1), widths=(2, 2, 2, 3), dilated=False))
    pooled = torch.randn(1, 8, 14, 14)
    assert wide.res5(pooled).shape[-2:] == (7, 7)


def test_no_region_at_all() -> None:
    regions = image_regions(region_mask=torch.zeros(2, 3, dtype=torch.bool))
    assert not RegionCnn(NARROW)(regions.images, regions.boxes, regions.region_mask).any()


def test_a_round_trip_keeps_every_tensor_and_name() -> None:
    model = tiny_end_to_end()
    for number, (name, buffer) in enumerate(model.named_buffers()):
        if name.endswith("num_batches_tracked"):
            buffer.fill_(number)  # what we never use survives, too
    theirs = export_reference("vl-bert", model)
    other = VlBertEndToEnd(model.config)
    table = import_state(other, links(other), theirs)
    assert not table.missing and not table.unexpected and not table.mismatched
    again = export_reference("vl-bert", other)
    assert again.keys() == theirs.keys()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": (1, 1, 1, 0)}, "expected four positive numbers each"),
        ({"frozen_stages": 5}, "frozen_stages=5"),
        ({"pool_size": 0}, "pool_size=0"),
    ],
)
def test_impossible_networks_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegionCnnConfig(**change)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="region_width=16, cnn gives 20"):
        VlBertEndToEndConfig(model=VlBertConfig(**TINY), cnn=NARROW)
    held = image_regions()
    object.__setattr__(held, "sizes", torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"sizes has shape \(3, 2\), expected \(2, 2\)"):
        held.__post_init__()
