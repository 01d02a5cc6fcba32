import dataclasses

import pytest
import torch

from vlmill.models import VLInputs
from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.registry import find_variant
from vlmill.train.loading.batch import Batch
from vlmill.train.objectives.pretraining import DEFAULTS
from vlmill.train.recipes import Objectives, get_training
from vlmill.train.run.pretraining import make_step

CONFIG = ImageBertConfig(
    vocab_size=20,
    width=8,
    num_layers=1,
    num_heads=2,
    intermediate_width=16,
    region_width=6,
    num_region_classes=5,
    dropout=0.0,
    attention_dropout=0.0,
)


@pytest.fixture
def model() -> ImageBert:
    torch.manual_seed(0)
    return ImageBert(CONFIG)


def make_batch(matching: tuple[float, ...], tokens: list[int], regions: list[int]) -> Batch:
    """Two pairs of three tokens and four regions; labels at these flattened places."""
    generator = torch.Generator().manual_seed(1)
    return Batch(
        inputs=VLInputs(
            tokens=torch.randint(20, (2, 3), generator=generator),
            token_mask=torch.ones(2, 3, dtype=torch.bool),
            region_features=torch.rand(2, 4, 6, generator=generator),
            region_locations=torch.rand(2, 4, 5, generator=generator),
            region_mask=torch.ones(2, 4, dtype=torch.bool),
            read_tokens=torch.tensor(sorted({0, 3, *tokens})),
            read_regions=torch.tensor(sorted({0, 4, *regions})),
        ),
        masked_tokens=torch.tensor(tokens, dtype=torch.int64),
        token_targets=torch.tensor([7] * len(tokens), dtype=torch.int64),
        masked_regions=torch.tensor(regions, dtype=torch.int64),
        class_targets=torch.tensor([2] * len(regions), dtype=torch.int64),
        feature_targets=torch.rand(len(regions), 6, generator=generator),
        matching=torch.tensor(matching, dtype=torch.float32),
        pair_ids=("a", "b"),
    )


def test_losses_by_hand(model: ImageBert) -> None:
    batch = make_batch((1, 0), [1], [2])
    losses = get_training(find_variant(model)).losses(model, batch, Objectives(), DEFAULTS)
    output = model(batch.inputs)
    words = model.mlm_logits(output.text[0, 1:2]).log_softmax(-1)
    classes = model.region_class_logits(output.regions[0, 2:3]).log_softmax(-1)
    features = model.region_features(output.regions[0, 2:3])
    match = torch.sigmoid(model.match_logit(output.pooled))
    expected = {
        "mlm": -words[0, 7],
        "moc": -classes[0, 2],
        "mrfr": (features - batch.feature_targets).square().mean(),
        "itm": -(match[0].log() + (1 - match[1]).log()) / 2,
    }
    torch.testing.assert_close(losses, expected)
    shares = torch.full((len(expected),), 0.5)
    total, halves = make_step(model, Objectives(mlm=2.0))(batch, shares)
    torch.testing.assert_close(total, (sum(expected.values()) + expected["mlm"]) / 2)
    torch.testing.assert_close(halves["itm"], expected["itm"] / 2)


def test_masked_losses_vanish_where_nothing_is_to_be_guessed(model: ImageBert) -> None:
    batch = make_batch((0, 0), [], [])
    losses = get_training(find_variant(model)).losses(model, batch, Objectives(), DEFAULTS)
    assert [losses[name].item() for name in ("mlm", "moc", "mrfr")] == [0, 0, 0]
    sum(losses.values()).backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        if name.startswith(("class_head", "feature_head", "mlm_head.transform.dense")):
            assert (parameter.grad == 0).all(), name
    assert model.match_head.weight.grad is not None
    assert model.match_head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["moc", "mrfr"])
def test_region_losses_reach_only_masked_regions(model: ImageBert, name: str) -> None:
    batch = make_batch((1, 0), [1], [2])
    kept: list[torch.Tensor] = []

    def keep(module: object, inputs: object, output: torch.Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    model.layers[-1].register_forward_hook(keep)
    get_training(find_variant(model)).losses(model, batch, Objectives(), DEFAULTS)[name].backward()  # type: ignore[no-untyped-call]
    gradient = kept[0].grad
    assert gradient is not None
    reached = gradient.abs().sum(-1).nonzero().tolist()
    # The first pair's rows of the last layer: its first token, the masked word, its first region,
    # and the masked region.
    assert reached == [[3]]


def test_an_objective_of_weight_0_is_not_computed(model: ImageBert) -> None:
    batch = make_batch((1, 0), [1], [2])
    weights = Objectives(mlm=0.0, moc=0.0)
    assert set(get_training(find_variant(model)).losses(model, batch, weights, DEFAULTS)) == {
        "mrfr",
        "itm",
    }


def test_some_objective_must_have_a_weight() -> None:
    with pytest.raises(ValueError, match="not all 0"):
        dataclasses.replace(Objectives(), mlm=0.0, moc=0.0, mrfr=0.0, itm=0.0)
