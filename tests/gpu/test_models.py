"""The five models on the device in float32, packed and not, against float64 on the CPU."""

from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, assert_all_near
from tests.models.pair_cases import FEATURES, VOCABULARY, enlarge, loss_of, padded_pairs
from torch import Tensor

from vlmill.models import VARIANTS, PixelInputs, VLInputs, preset
from vlmill.train.objectives.contrast import contrast_and_matching

pytestmark = pytest.mark.gpu
# Of the largest value of each tensor. In float32 on a CPU: 3e-5 of outputs, 5e-5 of gradients.
OUTPUTS, GRADIENTS = 3e-4, 1e-3
# Of the norms. On a CPU, with these large weights: 0.056 of outputs, 0.25 of gradients.
HALF_OUTPUTS, HALF_GRADIENTS = 0.15, 0.5

SIZES: dict[str, dict[str, Any]] = {
    "vilbert": {"vocab_size": VOCABULARY, "region_width": FEATURES, "num_region_classes": 7},
    "vl-bert": {"vocab_size": VOCABULARY, "region_width": FEATURES, "num_region_classes": 7},
    "interbert": {"vocab_size": VOCABULARY, "region_width": FEATURES, "num_region_classes": 7},
    "imagebert": {"vocab_size": VOCABULARY, "region_width": FEATURES, "num_region_classes": 7},
    "vlmo": {"vocab_size": VOCABULARY},
}


def model_of(variant: str, kind: torch.dtype, device: torch.device) -> Any:
    """The small preset with weights large enough that everything acts, without dropout."""
    config = preset(f"{variant}-small", **SIZES[variant])
    return enlarge(VARIANTS[variant].model(config)).to(device=device, dtype=kind)


def moved(inputs: Any, kind: torch.dtype, device: torch.device) -> Any:
    """A batch elsewhere, its fractions in another type; for a GPU with its real places."""
    return inputs.to(device).map(lambda x: x.to(kind) if x.is_floating_point() else x)


def region_pairs() -> VLInputs:
    """Three pairs of other lengths."""
    return padded_pairs([6, 2, 4], [5, 7, 3])


def pixel_pairs(side: int) -> PixelInputs:
    """Texts of other lengths, with images."""
    rng = torch.Generator().manual_seed(2)
    return PixelInputs(
        tokens=torch.randint(1, VOCABULARY, (3, 6), generator=rng),
        token_mask=torch.arange(6) < torch.tensor([6, 2, 4])[:, None],
        pixels=torch.randn(3, 3, side, side, generator=rng),
    )


def next_pair(images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Negatives that no generator draws."""
    following = (torch.arange(len(images), device=images.device) + 1) % len(images)
    return following, following


def region_results(model: Any, inputs: VLInputs, pack: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Outputs of real rows, and a loss of every head."""
    encoded = model(inputs, pack=pack)
    outputs = {
        "text": encoded.text[inputs.token_mask],
        "regions": encoded.regions[inputs.region_mask],
        "pooled": encoded.pooled,
    }
    return outputs, loss_of(model, inputs, pack=pack)


def pixel_results(model: Any, inputs: PixelInputs, pack: bool) -> tuple[dict[str, Tensor], Tensor]:
    """The same of VLMo's pretraining step."""
    out = contrast_and_matching(model, inputs, inputs.tokens, next_pair, pack=pack)
    words = out.masked_text[inputs.token_mask]
    outputs = {
        "text": out.text.unimodal,
        "image": out.image.unimodal,
        "match": out.match_logits,
        "words": words,
    }
    loss = out.contrast.loss + out.match_logits.square().mean()
    loss = loss + model.mlm_logits(words).square().mean()
    return outputs, loss


def computed(
    variant: str, kind: torch.dtype, device: torch.device, pack: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs with the loss, and gradients."""
    model = model_of(variant, kind, device)
    if variant == "vlmo":
        inputs = moved(pixel_pairs(model.config.image_size), kind, device)
        outputs, loss = pixel_results(model, inputs, pack)
    else:
        outputs, loss = region_results(model, moved(region_pairs(), kind, device), pack)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**outputs, "loss": loss[None]}, gradients


@pytest.mark.parametrize("variant", SIZES)
@pytest.mark.parametrize("pack", [True, False])
def test_outputs_and_gradients_in_half_precision(variant: str, pack: bool) -> None:
    """As recipes compute: under autocast, on a GPU with kernels that float32 never reaches."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        outputs, gradients = computed(variant, torch.float32, DEVICE, pack)
    exact_outputs, exact_gradients = computed(variant, torch.float64, torch.device("cpu"), False)
    for name, exact in exact_outputs.items():
        assert error_of(outputs[name], exact) < HALF_OUTPUTS, name
    # Of all parameters together: single ones may have hardly any gradient but its rounding.
    assert gradients.keys() == exact_gradients.keys()
    off = error_of(flat(gradients), flat(exact_gradients))
    assert off < HALF_GRADIENTS, off


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for _, gradient in sorted(gradients.items())])


def error_of(found: Tensor, exact: Tensor) -> float:
    """The norm of what is off, of the exact one's; NaN where something is not finite."""
    exact = exact.detach().cpu().double()
    return float((found.detach().cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("variant", SIZES)
@pytest.mark.parametrize("pack", [True, False])
def test_outputs_and_gradients(variant: str, pack: bool) -> None:
    outputs, gradients = computed(variant, torch.float32, DEVICE, pack)
    exact_outputs, exact_gradients = computed(variant, torch.float64, torch.device("cpu"), False)
    assert len(gradients) > 20
    assert_all_near(outputs, exact_outputs, OUTPUTS)
    assert_all_near(gradients, exact_gradients, GRADIENTS)
