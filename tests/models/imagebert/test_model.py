"""ImageBERT: its size, what its outputs depend on, and what it refuses."""

from typing import Any

import pytest
import torch
from tests.forked import run_script
from tests.models.pair_cases import (
    SIZES,
    changed,
    count,
    enlarge,
    expect_a_batch_is_its_pairs,
    expect_packing_changes_nothing,
    padded_pairs,
    random_pairs,
)

from vlmill.models import PRESETS, VARIANTS, VLInputs, preset
from vlmill.models.imagebert.config import (
    ImageBertConfig,
    ImageBertRetrievalConfig,
    imagebert_base,
    imagebert_small,
)
from vlmill.models.imagebert.model import ImageBert, ImageBertRetrieval

TINY: dict[str, Any] = SIZES | {
    "max_text_tokens": 8,
    "visual_position_id": 8,
    "region_width": 16,
    "num_region_classes": 7,
}


def tiny_model(**changes: Any) -> ImageBert:
    torch.manual_seed(0)
    model: ImageBert = enlarge(ImageBert(ImageBertConfig(**(TINY | changes))))
    return model


def test_the_base_model_has_the_papers_parameters() -> None:
    # BERT-base without pooler 108,891,648; image 1,579,776; word head 622,650; 768 to 1600 classes
    # 1,230,400; 768 to 2048 features 1,574,912; matching 769.
    assert count(ImageBert, imagebert_base()) == 113_900_155
    assert count(ImageBert, imagebert_base(itm_pooler=True)) == 113_900_155 + 768 * 768 + 768


def test_the_small_model_has_a_few_million_parameters() -> None:
    assert 2_000_000 < count(ImageBert, imagebert_small()) < 6_000_000


def test_the_word_table_is_saved_once() -> None:
    model = tiny_model()
    assert [name for name, p in model.named_parameters() if p.shape == (50, 24)] == [
        "text_embedding.word.weight"
    ]


def test_shapes_and_one_score_a_pair() -> None:
    model, inputs = tiny_model(), random_pairs()
    output = model(inputs)
    assert output.text.shape == (3, 6, 24)
    assert output.regions.shape == (3, 5, 24)
    assert torch.equal(output.pooled, output.text[:, 0])
    assert model.match_logit(output.pooled).shape == (3,)
    assert model.mlm_logits(output.text[0]).shape == (6, 50)
    assert model.region_class_logits(output.regions[0]).shape == (5, 7)
    assert model.region_features(output.regions[0]).shape == (5, 16)
    for head in (model.mlm_logits, model.region_class_logits, model.region_features):
        assert len(head(output.regions[0, :0])) == 0  # nothing masked in the batch


def test_permuting_regions_permutes_their_outputs_and_leaves_the_text() -> None:
    model, inputs = tiny_model(), random_pairs()
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = model(
        changed(
            inputs,
            region_features=inputs.region_features[:, order],
            region_locations=inputs.region_locations[:, order],
        )
    )
    output = model(inputs)
    torch.testing.assert_close(permuted.text, output.text, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(permuted.regions, output.regions[:, order], atol=1e-5, rtol=1e-5)


def test_words_have_an_order_and_boxes_a_place() -> None:
    model, inputs = tiny_model(), random_pairs()
    first = model(inputs).pooled
    swapped = inputs.tokens[:, [0, 2, 1, 3, 4, 5]]
    assert not torch.allclose(model(changed(inputs, tokens=swapped)).pooled, first, atol=1e-3)
    moved = inputs.region_locations.flip(1)
    assert not torch.allclose(
        model(changed(inputs, region_locations=moved)).pooled, first, atol=1e-3
    )


def test_packing_changes_no_output_and_no_gradient() -> None:
    expect_packing_changes_nothing(tiny_model(), padded_pairs([6, 3, 4], [5, 2, 0]))


def test_a_batch_equals_its_pairs_one_by_one() -> None:
    expect_a_batch_is_its_pairs(tiny_model(), padded_pairs([6, 3, 4], [5, 2, 0]))


def test_a_image_without_regions_leaves_the_text_alone() -> None:
    model, inputs = tiny_model(), random_pairs()
    none = changed(inputs, region_mask=torch.zeros(3, 5, dtype=torch.bool))
    masked = model(none).text
    assert masked.isfinite().all()
    text_only = model(
        changed(
            inputs,
            region_features=inputs.region_features[:, :0],
            region_locations=inputs.region_locations[:, :0],
            region_mask=inputs.region_mask[:, :0],
        )
    )
    assert text_only.regions.shape == (3, 0, 24)
    torch.testing.assert_close(masked, text_only.text, atol=1e-5, rtol=1e-5)


def test_a_caption_of_one_token_is_encoded() -> None:
    model, inputs = tiny_model(), random_pairs(tokens=1)
    assert model.match_logit(model(inputs).pooled).isfinite().all()


def test_every_parameter_learns_and_unused_tables_do_not() -> None:
    model, inputs = tiny_model(itm_pooler=True, image_pre_ln=True), random_pairs()
    output = model(inputs)
    loss = (
        model.match_logit(output.pooled).sum()
        + model.mlm_logits(output.text.flatten(0, 1)).square().sum()
        + model.region_class_logits(output.regions.flatten(0, 1)).square().sum()
        + model.region_features(output.regions.flatten(0, 1)).square().sum()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    position = model.text_embedding.position.weight.grad
    assert position is not None
    used = position.abs().sum(-1).nonzero().flatten().tolist()
    assert used == [0, 1, 2, 3, 4, 5, 8]  # six words and the regions' dummy position


def test_too_long_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens has 9 positions, expected 1 to max_text_tokens=8"):
        tiny_model()(random_pairs(tokens=9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 70}, "width=70 is not a multiple of num_heads=12"),
        ({"num_layers": 0}, "num_layers=0: expected a positive number"),
        ({"visual_position_id": -1}, "visual_position_id=-1"),
        ({"visual_position_id": 512}, "visual_position_id=512 needs row 512"),
        ({"max_text_tokens": 513}, "max_text_tokens=513 needs row 512"),
        ({"dropout": 1.0}, "dropout=1.0: expected a share"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imagebert_base(**change)


def test_standardised_regions_are_the_old_ones_of_standardised_features() -> None:
    model, inputs = tiny_model(), random_pairs()
    mean, std = torch.rand(16), torch.rand(16) + 0.5
    shifted = changed(inputs, region_features=inputs.region_features * std + mean)
    expected, regressed = model(inputs), model.region_features(torch.ones(1, 24))
    model.standardise_regions(mean, std)
    output = model(shifted)
    torch.testing.assert_close(output.pooled, expected.pooled, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output.regions, expected.regions, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.region_features(torch.ones(1, 24)), regressed + mean)


def test_new_weights_have_the_asked_deviation() -> None:
    torch.manual_seed(0)
    model = ImageBert(ImageBertConfig(**(TINY | {"init_std": 0.1})))
    drawn = torch.cat([p.flatten() for p in model.parameters() if p.ndim > 1])
    assert abs(drawn.std().item() - 0.1) < 0.002


def test_presets_by_name() -> None:
    assert preset("imagebert-small", width=96) == imagebert_small(width=96)
    with pytest.raises(
        ValueError, match=r"no preset 'imagebert-huge'; did you mean 'imagebert-base'"
    ):
        preset("imagebert-huge")
    for make in PRESETS.values():
        assert type(make()) in [variant.config for variant in VARIANTS.values()]


def with_globals(inputs: VLInputs, width: int = 9) -> VLInputs:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(len(inputs.tokens), width, generator=generator)
    return changed(inputs, global_features=features)


def test_full_image_features_are_regions_that_are_the_full_image() -> None:
    model, inputs = tiny_model(global_widths=(5, 4)), with_globals(random_pairs())
    assert inputs.global_features is not None
    rows = model.embed_regions(
        inputs.region_features, inputs.region_locations, inputs.global_features
    )
    assert rows.shape == (3, 5 + 2, 24)
    tables = model.text_embedding
    summed = model.global_features[1](inputs.global_features[:, 5:])
    summed = summed + model.region_embedding.location(torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]))
    summed = summed + tables.segment.weight[1] + tables.position.weight[8]
    torch.testing.assert_close(rows[:, 6], model.region_embedding.norm(summed))


def test_added_rows_act_and_are_not_returned() -> None:
    inputs = with_globals(random_pairs())
    model = tiny_model(global_widths=(5, 4), visual_sep_id=2)
    output = model(inputs)
    assert output.regions.shape == (3, 5, 24)
    assert inputs.global_features is not None
    moved = inputs.global_features + 1
    other = changed(inputs, global_features=moved)
    assert not torch.allclose(model(other).pooled, output.pooled, atol=1e-3)
    nothing_else = changed(inputs, region_mask=torch.zeros(3, 5, dtype=torch.bool))
    assert not torch.allclose(
        model(changed(nothing_else, global_features=moved)).pooled,
        model(nothing_else).pooled,
        atol=1e-3,
    )
    padded = changed(inputs, region_mask=torch.tensor([[True, True, False, True, False]] * 3))
    packed, grid = model(padded), model(padded, pack=False)
    torch.testing.assert_close(packed.pooled, grid.pooled, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        packed.regions[padded.region_mask], grid.regions[padded.region_mask], atol=1e-5, rtol=1e-5
    )


def test_two_matching_logits_are_one_by_their_difference() -> None:
    model, inputs = tiny_model(match_outputs=2), random_pairs()
    pooled = model(inputs).pooled
    both = model.match_head(pooled).softmax(-1)
    torch.testing.assert_close(model.match_logit(pooled).sigmoid(), both[:, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_widths": (5, 0)}, r"global_widths=\(5, 0\): expected positive numbers"),
        ({"match_outputs": 3}, "match_outputs=3: expected 1 or 2"),
        ({"visual_sep_id": 30522}, "visual_sep_id=30522 is not one of the vocab_size=30522 words"),
    ],
)
def test_impossible_switches_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imagebert_base(**change)


@pytest.mark.parametrize(
    ("widths", "given", "message"),
    [
        ((), 9, r"are 9 wide, the model takes 0 \(global_widths=\(\)\)"),
        ((5, 4), None, r"are None wide, the model takes 9 \(global_widths=\(5, 4\)\)"),
        ((5,), 9, "are 9 wide, the model takes 5"),
    ],
)
def test_other_full_image_features_are_refused(
    widths: tuple[int, ...], given: int | None, message: str
) -> None:
    inputs = random_pairs() if given is None else with_globals(random_pairs(), given)
    with pytest.raises(ValueError, match=message):
        tiny_model(global_widths=widths)(inputs)


def test_retrieval_keeps_the_matching_layer_and_adds_a_score() -> None:
    torch.manual_seed(0)
    config = ImageBertRetrievalConfig(trunk=ImageBertConfig(**TINY))
    model, inputs = ImageBertRetrieval(config).eval(), random_pairs()
    pretrained = tiny_model()
    model.trunk.load_state_dict(pretrained.state_dict())
    pooled = model(inputs).pooled
    torch.testing.assert_close(
        model.match_logit(pooled), pretrained.match_logit(pretrained(inputs).pooled)
    )
    assert model.scores(pooled).shape == (3,)
    new = {n for n, _ in model.named_parameters() if not n.startswith("trunk.")}
    assert new == {"score_head.weight", "score_head.bias"}


COMPILED = """
import torch
from vlmill.models import VLInputs
from vlmill.models.bert.config import bert_small
from vlmill.models.bert.model import Bert
from vlmill.models.imagebert.config import imagebert_small
from vlmill.models.imagebert.model import ImageBert

def pairs(batch, tokens, regions):
    return VLInputs(
        tokens=torch.ones(batch, tokens, dtype=torch.int64),
        token_mask=torch.arange(tokens).expand(batch, -1) < tokens - 1,
        region_features=torch.randn(batch, regions, 16),
        region_locations=torch.rand(batch, regions, 5),
        region_mask=torch.arange(regions).expand(batch, -1) < regions - 1,
    )

first, second = pairs(2, 7, 6), pairs(3, 9, 8)
model = ImageBert(imagebert_small(region_width=16, num_layers=1)).eval()
compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
compiled(first)
with torch.compiler.set_stance("fail_on_recompile"):
    found = compiled(second)
torch.testing.assert_close(found.pooled, model(second).pooled, atol=1e-5, rtol=1e-4)
bert = Bert(bert_small(num_layers=1)).eval()
compiled = torch.compile(bert, fullgraph=True, dynamic=True, backend="eager")
compiled(first.tokens, first.token_mask)
with torch.compiler.set_stance("fail_on_recompile"):
    found = compiled(second.tokens, second.token_mask)
expected = bert(second.tokens, second.token_mask)
torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=1e-4)
"""


@pytest.mark.nightly
def test_it_and_bert_compile_without_a_break_and_once_for_several_lengths() -> None:
    """In another process: checking shapes while tests run is nothing that can be traced."""
    done = run_script(COMPILED)
    assert done.returncode == 0, done.stderr[-2000:]
