"""What nobody reads may be left out of the last layer: what is read stays, with its gradients."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.models.pair_cases import READERS, enlarge, padded_pairs
from torch import Tensor, nn

from vlmill.models import VARIANTS, PixelInputs, preset
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Cells, find_positions, find_read_positions

SIZES: dict[str, Any] = {"vocab_size": 50, "width": 24, "num_layers": 2, "num_heads": 4}


def some(mask: Tensor) -> Tensor:
    """About a third of the real places, none in the last pair."""
    chosen = (torch.rand(mask.shape, generator=torch.Generator().manual_seed(2)) < 0.4) & mask
    chosen[-1] = False
    return chosen


def doubled(inputs: Any) -> Any:
    """Inputs in double precision: what rounding does depends on the rows that are computed."""
    return inputs.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def readings(model: nn.Module, encoded: Encoded, where: Cells) -> tuple[list[Tensor], list[Tensor]]:
    """What is read, and the gradients of a loss over it."""
    model.zero_grad()
    text, regions = encoded.text.flatten(0, 1), encoded.regions.flatten(0, 1)
    parts = [text[where.text], regions[where.regions], encoded.pooled]
    torch.stack([part.sin().sum() for part in parts]).sum().backward()  # type: ignore[no-untyped-call]
    return parts, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_what_is_read_is_the_same(name: str, pack: bool) -> None:
    config = preset(name, **READERS[name])
    variant = next(v for v in VARIANTS.values() if isinstance(config, v.config))
    model = enlarge(variant.model(config)).double()
    inputs = doubled(padded_pairs([7, 4, 6], [5, 6, 3]))
    words, shown = some(inputs.token_mask), some(inputs.region_mask)
    where, read = (
        Cells(find_positions(words), find_positions(shown)),
        find_read_positions(words, shown),
    )
    options = {"task": torch.arange(3)} if "num_tasks" in READERS[name] else {}
    expected = readings(model, model(inputs, **options), where)
    marked = dataclasses.replace(inputs, read_tokens=read.text, read_regions=read.regions)
    encoded = model(marked, pack=pack, **options)
    torch.testing.assert_close(readings(model, encoded, where), expected)
    unread = ~words & (torch.arange(7) > 0)
    assert not encoded.text[unread].any()


@pytest.mark.parametrize("pack", [True, False])
def test_of_pixels_too(pack: bool) -> None:
    config = preset("vlmo-small", image_size=32, **SIZES | {"first_vl_layer": 1})
    model = enlarge(VARIANTS["vlmo"].model(config)).double()
    mask = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    tokens = torch.randint(1, 50, mask.shape, generator=torch.Generator().manual_seed(0))
    pixels = torch.randn(3, 3, 32, 32)
    inputs = doubled(PixelInputs(tokens=tokens, token_mask=mask, pixels=pixels))
    encoded = model(inputs)
    patches = torch.ones(3, encoded.regions.shape[1], dtype=torch.bool)
    where = Cells(find_positions(some(mask)), find_positions(some(patches)))
    expected = readings(model, encoded, where)
    text, image = model.encoder.embed_text(tokens), model.encoder.embed_image(inputs.pixels)
    read = find_read_positions(some(mask), some(patches))
    encoded = model.encoder.fuse(text, mask, image, read=read, pack=pack)
    torch.testing.assert_close(readings(model, encoded, where), expected)


def test_rows_that_are_read_know_their_sequence() -> None:
    real = torch.tensor([[True, True, False], [True, True, True]])
    places = find_positions(torch.tensor([[False, True, False], [True, False, True]]))
    grid = torch.arange(6.0).view(2, 3, 1)
    packed, whole = make_layout(real, read=places), Layout((2, 3), read=places)
    for layout in (packed, whole, whole._replace(key_mask=real)):
        read = layout.read_rows()
        assert read is not None
        assert read.take(layout.pack(grid)).flatten().tolist() == [1.0, 3.0, 5.0]
        owners = read.layout.sequence_of_rows()
        assert owners is not None and owners.tolist() == [0, 1, 1]
    assert Layout((2, 3)).read_rows() is None
