"""InterBERT: published sizes, what outputs depend on, one modality alone, and what is refused."""

from typing import Any

import pytest
import torch
from tests.models.pair_cases import (
    FEATURES,
    VOCABULARY,
    changed,
    count,
    enlarge,
    expect_a_batch_is_its_pairs,
    expect_packing_changes_nothing,
    loss_of,
    padded_pairs,
    random_pairs,
)

from vlmill.models import preset
from vlmill.models.config_checks import check_fusion
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
    interbert_chinese,
    interbert_paper,
    interbert_released,
    interbert_small,
)
from vlmill.models.interbert.model import InterBert, InterBertTasks, InterBertText

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "width": 24,
    "num_interaction_layers": 2,
    "num_text_layers": 2,
    "num_visual_layers": 1,
    "num_heads": 4,
    "visual_num_heads": 3,
    "intermediate_width": 48,
    "visual_intermediate_width": 40,
    "num_positions": 12,
    "region_width": FEATURES,
    "num_region_classes": 7,
    "pooled_width": 20,
    "max_text_tokens": 8,
}


def tiny_config(**changes: Any) -> InterBertConfig:
    return InterBertConfig(**(TINY | changes))


def tiny(**changes: Any) -> InterBert:
    torch.manual_seed(0)
    model: InterBert = enlarge(InterBert(tiny_config(**changes)))
    return model


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (interbert_released(), 157_021_565),
        (interbert_paper(), 199_548_797),
        (interbert_paper(pooled_width=768), 199_154_557),
        # Less the rows of 9,394 words and the bias of each, and 1,567 classes.
        (interbert_chinese(), 199_548_797 - 9394 * 769 - 1567 * 769),
    ],
)
def test_published_sizes(config: InterBertConfig, parameters: int) -> None:
    assert count(InterBert, config) == parameters


def test_the_fine_tuning_model_has_four_heads_more() -> None:
    config = InterBertTasksConfig(trunk=interbert_released())
    assert count(InterBertTasks, config) == 157_025_153


def test_the_papers_173_million_are_layers_image_embeddings_and_poolers() -> None:
    with torch.device("meta"):
        model = InterBert(interbert_paper())
    parts = ("layers", "region_embedding", "pooler")
    counted = [p.numel() for n, p in model.named_parameters() if any(part in n for part in parts)]
    assert sum(counted) == 173_263_616


def test_the_small_model_has_a_few_million_parameters() -> None:
    assert 2_000_000 < count(InterBert, interbert_small()) < 6_000_000


def test_shapes_and_heads_on_chosen_rows() -> None:
    model, encoded = tiny(), tiny()(random_pairs())
    assert encoded.text.shape == (3, 6, 24) and encoded.regions.shape == (3, 5, 24)
    assert encoded.pooled.shape == (3, 20)
    assert model.match_logits(encoded.pooled).shape == (3, 2)
    assert model.mlm_logits(encoded.text[0, :0]).shape == (0, VOCABULARY)
    assert model.region_class_logits(encoded.regions[0]).shape == (5, 7)
    assert tiny(regress_features=True).region_features(encoded.regions[0]).shape == (5, FEATURES)


def test_packing_changes_no_output_and_no_gradient() -> None:
    expect_packing_changes_nothing(tiny(), padded_pairs([6, 2, 4, 1], [5, 1, 3, 2]))
    expect_packing_changes_nothing(tiny(), padded_pairs([6, 6, 6], [5, 1, 3]))


def test_a_batch_equals_its_pairs_one_by_one() -> None:
    expect_a_batch_is_its_pairs(tiny(), padded_pairs([6, 2, 4], [5, 1, 3]))


def test_every_parameter_learns() -> None:
    model = tiny()
    loss_of(model, random_pairs()).backward()  # type: ignore[no-untyped-call]
    unused = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unused == []


def test_modalities_meet_in_interaction_only() -> None:
    model, inputs = tiny(), random_pairs()
    other = changed(inputs, region_features=-inputs.region_features)
    assert not torch.allclose(model(inputs).text, model(other).text, atol=1e-3)
    model.interaction_layers = torch.nn.ModuleList()
    torch.testing.assert_close(model(inputs).text, model(other).text)


def test_segments_tell_modalities_apart_beside_captions_only() -> None:
    inputs = random_pairs()
    zeros = torch.zeros_like(inputs.tokens)
    paper, released = tiny(), tiny(modality_segments=False)
    plain, marked = released(inputs), paper(inputs)
    assert not torch.allclose(plain.pooled, marked.pooled, atol=1e-3)
    pair_of_texts = changed(inputs, segments=zeros)
    torch.testing.assert_close(paper(pair_of_texts).pooled, released(inputs).pooled)


def test_text_alone_is_encoded_without_regions() -> None:
    model, inputs = tiny(), padded_pairs([6, 3, 2], [5, 5, 5])
    alone = changed(
        inputs,
        region_features=inputs.region_features[:, :0],
        region_locations=inputs.region_locations[:, :0],
        region_mask=inputs.region_mask[:, :0],
    )
    encoded = model(alone)
    assert encoded.region_pooled is None and encoded.regions.shape == (3, 0, 24)
    assert encoded.text_pooled is not None
    assert torch.equal(encoded.pooled, encoded.text_pooled)
    torch.testing.assert_close(model(alone, pack=False).pooled, encoded.pooled)
    masked = changed(inputs, region_mask=torch.zeros_like(inputs.region_mask))
    torch.testing.assert_close(model(masked).text, encoded.text, atol=1e-5, rtol=1e-4)


def test_a_image_alone_is_encoded_without_text() -> None:
    inputs = random_pairs(tokens=0)
    encoded = tiny()(inputs)
    assert encoded.text_pooled is None and encoded.text.shape == (3, 0, 24)
    assert encoded.region_pooled is not None
    assert torch.equal(encoded.pooled, encoded.region_pooled)


def test_neither_modality_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens and region_features are both without"):
        tiny()(random_pairs(tokens=0, regions=0))


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens has 13 positions, the position table 12"):
        tiny()(random_pairs(tokens=13))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 70}, "width=70 is not a multiple of num_heads=12"),
        ({"visual_num_heads": 7}, "width=768 is not a multiple of visual_num_heads=7"),
        ({"num_interaction_layers": 0}, "num_interaction_layers=0: expected a positive number"),
        ({"num_segments": 1}, "modality_segments=True needs a segment for each"),
        ({"max_text_tokens": 513}, "max_text_tokens=513, the position table has"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interbert_paper(**change)


def test_presets_by_name() -> None:
    assert preset("interbert-paper") == interbert_paper()
    assert preset("interbert-released", dropout=0.0) == interbert_released(dropout=0.0)
    assert preset("interbert-chinese").vocab_size == 21128


def test_task_heads() -> None:
    model = InterBertTasks(InterBertTasksConfig(trunk=tiny_config(), num_answers=4)).eval()
    inputs = padded_pairs([6, 2], [5, 3])
    encoded = model(inputs)
    assert model.answer_logits(encoded.pooled).shape == (2, 4)
    assert model.scores(encoded.pooled).shape == (2,)
    assert model.token_scores(encoded.text).shape == (2, 6)
    regions = model.region_scores(encoded.regions, inputs.region_mask)
    assert (regions < -9000).tolist() == (~inputs.region_mask).tolist()


def test_a_classifier_of_text() -> None:
    model = InterBertText(InterBertTextConfig(trunk=tiny_config(), num_labels=3)).eval()
    inputs = padded_pairs([6, 2], [5, 3])
    logits = model(inputs.tokens, inputs.token_mask)
    assert logits.shape == (2, 3)
    alone = model(inputs.tokens[1:, :2], inputs.token_mask[1:, :2])
    torch.testing.assert_close(logits[1:], alone, atol=1e-5, rtol=1e-4)
    second = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]])
    assert not torch.allclose(model(inputs.tokens, inputs.token_mask, second), logits, atol=1e-6)


def test_an_unknown_fusion_is_refused() -> None:
    with pytest.raises(ValueError, match="fusion='dot': expected one of mul, sum"):
        check_fusion("dot")
