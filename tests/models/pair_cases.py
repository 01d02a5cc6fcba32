"""Small batches of pairs and what every variant over them has to hold."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.models import VLInputs
from vlmill.models.outputs import Encoded

VOCABULARY, FEATURES = 50, 16
# A BERT of a few thousand parameters.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "width": 24,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_width": 48,
    "num_positions": 12,
}


def random_pairs(pairs: int = 3, tokens: int = 6, regions: int = 5) -> VLInputs:
    """Pairs without padding."""
    lengths = [tokens] * pairs, [regions] * pairs
    return padded_pairs(*lengths)


def padded_pairs(num_tokens: Sequence[int], num_regions: Sequence[int]) -> VLInputs:
    """Pairs of these lengths; what padding holds is as random as the rest."""
    generator = torch.Generator().manual_seed(1)
    pairs, tokens, regions = len(num_tokens), max(num_tokens), max(num_regions)
    return VLInputs(
        tokens=torch.randint(1, VOCABULARY, (pairs, tokens), generator=generator),
        token_mask=torch.arange(tokens) < torch.tensor(num_tokens)[:, None],
        region_features=torch.randn(pairs, regions, FEATURES, generator=generator),
        region_locations=torch.rand(pairs, regions, 5, generator=generator),
        region_mask=torch.arange(regions) < torch.tensor(num_regions)[:, None],
    )


def changed(inputs: VLInputs, **parts: Tensor) -> VLInputs:
    """The same batch with other parts."""
    return VLInputs(**(vars(inputs) | parts))


def enlarge(model: nn.Module) -> Any:
    """Weights larger than at the start, so that everything acts; in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        ones = "norm" in name and name.endswith("weight")
        nn.init.normal_(parameter, float(ones), 0.2, generator=generator)
    return model.eval()


def count(model: type[nn.Module], config: Any) -> int:
    """Parameters of a model that is not really built, with the tensors that it only keeps."""
    with torch.device("meta"):
        built = model(config)
    return sum(t.numel() for t in (*built.parameters(), *built.buffers()))


def loss_of(model: Any, inputs: VLInputs, **options: Any) -> Tensor:
    """A number that depends on every real row and every pretraining head."""
    encoded: Encoded = model(inputs, **options)
    words = encoded.text[inputs.token_mask]
    regions = encoded.regions[inputs.region_mask]
    loss: Tensor = (
        model.match_logit(encoded.pooled).sigmoid().sum()
        + model.mlm_logits(words).square().mean()
        + model.region_class_logits(regions).square().mean()
    )
    return loss


def expect_packing_changes_nothing(model: Any, inputs: VLInputs, **options: Any) -> None:
    """Outputs of real rows and gradients are those of the padded computation."""
    found = []
    for pack in (True, False):
        model.zero_grad()
        encoded = model(inputs, pack=pack, **options)
        loss_of(model, inputs, pack=pack, **options).backward()  # type: ignore[no-untyped-call]
        found.append(
            {
                "text": encoded.text[inputs.token_mask],
                "regions": encoded.regions[inputs.region_mask],
                "pooled": encoded.pooled,
            }
            | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        )
    assert found[0].keys() == found[1].keys()
    for name, packed in found[0].items():
        torch.testing.assert_close(packed, found[1][name], atol=1e-4, rtol=1e-4, msg=name)


def expect_a_batch_is_its_pairs(model: Any, inputs: VLInputs) -> None:
    """Each pair's outputs are what it has alone and without its padding."""
    together = model(inputs)
    for row in range(len(inputs.tokens)):
        tokens, regions = inputs.token_mask[row], inputs.region_mask[row]
        alone = model(
            VLInputs(
                tokens=inputs.tokens[row][tokens][None],
                token_mask=inputs.token_mask[row][tokens][None],
                region_features=inputs.region_features[row][regions][None],
                region_locations=inputs.region_locations[row][regions][None],
                region_mask=inputs.region_mask[row][regions][None],
            )
        )
        for ours, single in (
            (together.pooled[row], alone.pooled[0]),
            (together.text[row][tokens], alone.text[0]),
            (together.regions[row][regions], alone.regions[0]),
        ):
            torch.testing.assert_close(ours, single, atol=1e-4, rtol=1e-4)


# Presets of every model that reads regions, made small; heads are 8 wide.
FEW: dict[str, Any] = SIZES | {"width": 32, "num_positions": 512, "region_width": FEATURES}
READERS: dict[str, dict[str, Any]] = {
    "vilbert-small": {"vocab_size": 50, "region_width": 16, "num_tasks": 3},
    "vilbert-single-stream": FEW,
    "interbert-small": {"vocab_size": 50, "region_width": 16},
    "imagebert-small": FEW | {"visual_sep_id": 3},
    "vl-bert-small": {"vocab_size": 50, "region_width": 16},
}
