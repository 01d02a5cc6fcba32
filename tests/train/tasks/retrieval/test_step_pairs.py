"""A model that reads pairs learns from all pairs of a step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tasks.captions import retrieval_start, tiny, world

from vlmill.models.imagebert.config import imagebert_small
from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.config import interbert_small
from vlmill.models.positions import find_positions
from vlmill.models.registry import get_variant
from vlmill.models.vilbert.config import vilbert_small
from vlmill.models.vlbert.config import vlbert_small
from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.tasks.finetuning.job import finetune
from vlmill.train.tasks.retrieval.step_pairs import encode_all_pairs, step_losses

SMALL: dict[str, Any] = {"vocab_size": 40, "region_width": 6}
MODELS: dict[str, Any] = {
    "vilbert": vilbert_small(**SMALL, dropout=0.0, visual_dropout=0.0),
    "vilbert without co-attention": vilbert_small(
        **SMALL, dropout=0.0, visual_dropout=0.0, co_attention=False
    ),
    "interbert": interbert_small(**SMALL, dropout=0.0, visual_dropout=0.0),
    "imagebert": imagebert_small(**SMALL, dropout=0.0),
    "vl-bert": vlbert_small(**SMALL, dropout=0.0),
}


def make_inputs() -> VLInputs:
    """Three pairs of different lengths."""
    torch.manual_seed(1)
    token_mask = torch.arange(5) < torch.tensor([[5], [3], [4]])
    region_mask = torch.arange(4) < torch.tensor([[2], [4], [3]])
    return VLInputs(
        tokens=torch.randint(5, 40, (3, 5)) * token_mask,
        token_mask=token_mask,
        region_features=torch.randn(3, 4, 6) * region_mask[..., None],
        region_locations=torch.rand(3, 4, 5) * region_mask[..., None],
        region_mask=region_mask,
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_text_is_encoded_with_every_image(name: str) -> None:
    torch.manual_seed(0)
    variant = get_variant(name.partition(" ")[0])
    model, inputs = variant.build(MODELS[name]).eval(), make_inputs()
    with torch.no_grad():
        pooled = encode_all_pairs(model, inputs)
        indexed = replace(
            inputs,
            real_tokens=find_positions(inputs.token_mask),
            real_regions=find_positions(inputs.region_mask),
        )
        torch.testing.assert_close(encode_all_pairs(model, indexed), pooled, atol=2e-5, rtol=1e-4)
        for text in range(3):
            for image in range(3):
                pair = VLInputs(
                    tokens=inputs.tokens[text : text + 1],
                    token_mask=inputs.token_mask[text : text + 1],
                    region_features=inputs.region_features[image : image + 1],
                    region_locations=inputs.region_locations[image : image + 1],
                    region_mask=inputs.region_mask[image : image + 1],
                )
                torch.testing.assert_close(
                    pooled[text, image], model(pair).pooled[0], atol=2e-5, rtol=1e-4
                )


def test_losses_of_a_step_by_hand() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.5, 3.0, 1.0], [0.0, 0.0, 1.0]])[..., None]
    losses = step_losses(scores, ("softmax", "binary", "triplet"), margin=0.5)
    rows = (scores[..., 0].logsumexp(1) - scores[..., 0].diagonal()).mean()
    columns = (scores[..., 0].logsumexp(0) - scores[..., 0].diagonal()).mean()
    assert losses["softmax"].item() == pytest.approx(((rows + columns) / 2).item())
    right = sum(math.log1p(math.exp(-value)) for value in (2.0, 3.0, 1.0)) / 3
    wrong = sum(math.log1p(math.exp(v)) for v in (1.0, 0.0, 0.5, 1.0, 0.0, 0.0)) / 6
    assert losses["binary"].item() == pytest.approx((right + wrong) / 2)

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    hardest = [(1.0, 0.5, 2.0), (1.0, 1.0, 3.0), (0.0, 1.0, 1.0)]  # in the row, the column; right
    expected = sum(
        max(0.0, 0.5 + sigmoid(wrong) - sigmoid(right))
        for row, column, right in hardest
        for wrong in (row, column)
    )
    assert losses["triplet"].item() == pytest.approx(expected / 3)


def test_another_caption_of_an_image_is_no_negative() -> None:
    scores = torch.tensor([[2.0, 9.0, 0.0], [9.0, 3.0, 1.0], [0.0, 0.0, 1.0]])[..., None]
    excluded = torch.zeros(3, 3, dtype=torch.bool)
    excluded[0, 1] = excluded[1, 0] = True
    scores.requires_grad_()
    losses = step_losses(scores, ("softmax", "binary", "triplet"), excluded)
    sum(losses.values(), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert not scores.grad[excluded].any() and bool(scores.grad[~excluded].any())


@pytest.mark.parametrize("model", ["vilbert", "interbert", "imagebert"])
def test_a_model_of_pairs_learns_from_a_step(tmp_path: Path, model: str) -> None:
    name = f"retrieval-{model}-small"
    init = retrieval_start(tmp_path / "init", name)
    given = replace(world(tmp_path), init=init, negatives=None)
    recipe = tiny(name, "settings.negatives=batch", "validate_every=2", "validation_pairs=4")
    finetune(recipe, given, tmp_path / "run")
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert lines and 0 <= lines[-1]["validation/mean_recall"] <= 1
    with pytest.raises(InputError, match=r"a single pair has no negative"):
        finetune(tiny(name, "settings.negatives=batch", "batch_size=1"), given, tmp_path / "one")
