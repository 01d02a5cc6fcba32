"""Heads for fine-tuning ViLBERT: which rows they take, how they start, what they refuse."""

import pytest
import torch
from tests.models.pair_cases import padded_pairs, random_pairs
from tests.models.vilbert.test_model import BASELINE, TINY

from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
)
from vlmill.models.vilbert.tasks import (
    Vilbert12in1,
    VilbertClassifier,
    VilbertTasks,
    WeightNormLinear,
)


@pytest.mark.parametrize("trunk", [VilbertConfig(**TINY), SingleStreamConfig(**BASELINE)])
def test_the_heads_of_the_papers_release(trunk: VilbertConfig | SingleStreamConfig) -> None:
    model = VilbertTasks(VilbertTasksConfig(trunk=trunk, num_answers=9)).eval()
    inputs = padded_pairs([6, 3], [5, 2])
    encoded = model(inputs)
    assert model.answer_logits(encoded.pooled).shape == (2, 9)
    assert model.scores(encoded.pooled).shape == (2,)
    assert model.token_scores(encoded.text).shape == (2, 6)
    regions = model.region_scores(encoded.regions, inputs.region_mask)
    assert (regions < -9000).tolist() == (~inputs.region_mask).tolist()


def test_the_heads_of_12_in_1() -> None:
    trunk = VilbertConfig(**(TINY | {"num_tasks": 20}))
    model = Vilbert12in1(Vilbert12in1Config(trunk=trunk, num_answers=9, num_gqa_answers=8)).eval()
    encoded = model(random_pairs(4), task=torch.tensor([0, 1, 12, 12]))
    assert model.answer_logits(encoded.pooled).shape == (4, 9)
    assert model.gqa_logits(encoded.pooled).shape == (4, 8)
    assert model.entailment_logits(encoded.pooled).shape == (4, 3)
    both = model.two_image_logits(encoded.pooled)
    assert both.shape == (2, 2)
    torch.testing.assert_close(model.two_image_logits(encoded.pooled[2:]), both[1:])
    with pytest.raises(ValueError, match="pooled has 3 rows, expected a multiple of 2 images"):
        model.two_image_logits(encoded.pooled[:3])


@pytest.mark.parametrize(("num_pictures", "examples"), [(1, 4), (2, 2)])
def test_the_classifier(num_pictures: int, examples: int) -> None:
    config = VilbertClassifierConfig(
        trunk=VilbertConfig(**TINY), num_labels=3, num_pictures=num_pictures
    )
    model = VilbertClassifier(config).eval()
    logits = model.label_logits(model(random_pairs(4)).pooled)
    assert logits.shape == (examples, 3)


def test_dropout_falls_on_what_is_pooled_but_in_the_baseline() -> None:
    two_streams = VilbertTasks(VilbertTasksConfig(trunk=VilbertConfig(**TINY)))
    one_stream = VilbertTasks(VilbertTasksConfig(trunk=SingleStreamConfig(**BASELINE)))
    assert two_streams.pooled_dropout.p == 0.1
    assert one_stream.pooled_dropout.p == 0.0 and one_stream.dropout.p == 0.1


def test_weight_norm_is_over_the_whole_matrix() -> None:
    layer, rows = WeightNormLinear(6, 4), torch.randn(3, 6)
    torch.testing.assert_close(layer(rows), rows @ layer.direction.T)  # at the start, W = V
    assert layer.length.shape == () and not layer.bias.any()
    with torch.no_grad():
        layer.length.mul_(2)
        expected = layer(rows)
        layer.direction.mul_(7)
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(expected, 2 * rows @ (layer.direction / 7).T)


def test_no_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_answers=0: expected a positive number"):
        VilbertTasksConfig(trunk=VilbertConfig(**TINY), num_answers=0)
