"""ViLBERT and its baseline: published sizes, what outputs depend on, and what is refused."""

from typing import Any

import pytest
import torch
from tests.models.pair_cases import (
    FEATURES,
    SIZES,
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
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    VilbertConfig,
    single_stream_base,
    vilbert_12in1,
    vilbert_base,
    vilbert_large,
    vilbert_released,
    vilbert_small,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream

BASELINE: dict[str, Any] = SIZES | {
    "num_layers": 4,
    "max_text_tokens": 8,
    "region_width": FEATURES,
    "num_region_classes": 7,
}
TINY: dict[str, Any] = BASELINE | {
    "visual_width": 32,
    "visual_num_layers": 3,
    "visual_num_heads": 2,
    "visual_intermediate_width": 40,
    "co_width": 20,
    "co_num_heads": 5,
    "text_co_layers": (1, 3),
    "visual_co_layers": (1, 2),
}


def tiny(**changes: Any) -> Vilbert:
    torch.manual_seed(0)
    model: Vilbert = enlarge(Vilbert(VilbertConfig(**(TINY | changes))))
    return model


def baseline(**changes: Any) -> SingleStream:
    torch.manual_seed(0)
    model: SingleStream = enlarge(SingleStream(SingleStreamConfig(**(BASELINE | changes))))
    return model


@pytest.mark.parametrize(
    ("make", "num_co_layers", "parameters"),
    [
        (vilbert_released, 2, 160_782_973),
        (vilbert_released, 4, 205_413_501),
        (vilbert_released, 6, 250_044_029),
        (vilbert_released, 8, 294_674_557),
        (vilbert_large, 2, 396_672_381),
        (vilbert_large, 4, 451_270_013),
        (vilbert_large, 6, 505_867_645),
    ],
)
def test_published_sizes(make: Any, num_co_layers: int, parameters: int) -> None:
    assert count(Vilbert, make(num_co_layers, keep_unused=True)) == parameters


def test_what_nothing_reads_is_left_out() -> None:
    assert count(Vilbert, vilbert_base()) == 250_044_029 - 11_020_800
    assert count(Vilbert, vilbert_12in1()) == 250_044_029 + 20 * 768


def test_the_baseline_is_bert_with_regions() -> None:
    # BERT-base with pooler 109,482,240; words 622,650; features and locations 1,579,776; own types
    # 1,536; region head 592,128 + 1,231,169; matching 1,538.
    expected = 109_482_240 + 622_650 + 1_579_776 + 1_536 + 592_128 + 1_231_169 + 1_538
    assert count(SingleStream, single_stream_base()) == expected


def test_the_small_model_has_a_few_million_parameters() -> None:
    assert 2_000_000 < count(Vilbert, vilbert_small()) < 6_000_000


def test_shapes_and_heads_on_chosen_rows() -> None:
    model, encoded = tiny(), tiny()(random_pairs())
    assert encoded.text.shape == (3, 6, 24) and encoded.regions.shape == (3, 5, 32)
    assert encoded.pooled.shape == (3, 20)
    assert encoded.text_pooled is not None and encoded.region_pooled is not None
    assert torch.equal(encoded.pooled, encoded.text_pooled * encoded.region_pooled)
    logits = model.match_logits(encoded.pooled)
    torch.testing.assert_close(
        model.match_logit(encoded.pooled).sigmoid(), logits.softmax(-1)[:, 0]
    )
    assert model.mlm_logits(encoded.text[0, :0]).shape == (0, VOCABULARY)
    assert model.region_class_logits(encoded.regions[0]).shape == (5, 7)


def test_the_sum_is_the_other_fusion() -> None:
    encoded = tiny(fusion="sum")(random_pairs())
    assert encoded.text_pooled is not None and encoded.region_pooled is not None
    assert torch.equal(encoded.pooled, encoded.text_pooled + encoded.region_pooled)


def test_the_region_head_gives_one_thing() -> None:
    rows = torch.randn(4, 32)
    assert tiny(regress_features=True).region_features(rows).shape == (4, FEATURES)
    with pytest.raises(ValueError, match="regress_features=True: the region head gives features"):
        tiny(regress_features=True).region_class_logits(rows)
    with pytest.raises(ValueError, match="regress_features=False: the region head gives class"):
        tiny().region_features(rows)


@pytest.mark.parametrize("make", [tiny, baseline])
def test_packing_changes_no_output_and_no_gradient(make: Any) -> None:
    expect_packing_changes_nothing(make(), padded_pairs([6, 2, 4, 1], [5, 1, 3, 2]))


def test_packing_one_stream_only_is_right_too() -> None:
    expect_packing_changes_nothing(tiny(), padded_pairs([6, 6, 6], [5, 1, 3]))


@pytest.mark.parametrize("make", [tiny, baseline])
def test_a_batch_equals_its_pairs_one_by_one(make: Any) -> None:
    expect_a_batch_is_its_pairs(make(), padded_pairs([6, 2, 4], [5, 1, 3]))


def test_the_streams_meet_in_co_attention_only() -> None:
    inputs = random_pairs()
    other = changed(inputs, region_features=-inputs.region_features)
    for co_attention in (True, False):
        model = tiny(co_attention=co_attention)
        same = torch.allclose(model(inputs).text, model(other).text, atol=1e-3)
        assert same is not co_attention


def test_co_attention_comes_before_the_layer_of_its_number() -> None:
    """The streams' own layers before the first are a function of one modality alone."""
    model, inputs = tiny(), random_pairs()
    text = model.read_text(inputs.tokens, inputs.token_mask)
    hidden = model.text_embedding(inputs.tokens)
    torch.testing.assert_close(text.hidden, model.text_layers[0](hidden, text.layout))
    embedded = model.embed_regions(inputs.region_features, inputs.region_locations)
    regions = model.read_regions(embedded, inputs.region_mask)
    first, second = model.co_layers
    t, v = text.hidden, regions.hidden
    v = model.visual_layers[0](embedded, regions.layout)
    v, t = first(v, regions.layout, t, text.layout)
    v = model.visual_layers[1](v, regions.layout)
    for number in (1, 2):
        t = model.text_layers[number](t, text.layout)
    v, t = second(v, regions.layout, t, text.layout)
    v, t = model.visual_layers[2](v, regions.layout), model.text_layers[3](t, text.layout)
    encoded = model(inputs)
    torch.testing.assert_close(encoded.text, t)
    torch.testing.assert_close(encoded.regions, v)


def test_two_co_attention_layers_may_stand_before_one_layer() -> None:
    model = tiny(text_co_layers=(1, 1), visual_co_layers=(0, 2))
    expect_packing_changes_nothing(model, padded_pairs([6, 3], [5, 2]))


@pytest.mark.parametrize("lengths", [([6, 6], [5, 5, 5]), ([6, 2], [5, 1, 3])])
def test_all_texts_against_all_images(lengths: tuple[list[int], list[int]]) -> None:
    """Each stream is read once; the pairs are the same as one by one."""
    model, size = tiny(), (max(lengths[0]), max(lengths[1]))
    texts = padded_pairs(lengths[0], [size[1]] * 2)
    images = padded_pairs([size[0]] * 3, lengths[1])
    text = model.read_text(texts.tokens, texts.token_mask)
    embedded = model.embed_regions(images.region_features, images.region_locations)
    regions = model.read_regions(embedded, images.region_mask)
    of_text = torch.tensor([0, 0, 0, 1, 1, 1])
    of_image = torch.tensor([0, 1, 2, 0, 1, 2])
    together = model.join(text.take(of_text), regions.take(of_image))
    one_by_one = model.encode(
        texts.tokens[of_text],
        texts.token_mask[of_text],
        embedded[of_image],
        images.region_mask[of_image],
        pack=False,
    )
    torch.testing.assert_close(together.pooled, one_by_one.pooled, atol=1e-5, rtol=1e-4)


def test_frozen_layers_get_no_gradient_and_change_nothing_else() -> None:
    frozen, free, inputs = (
        tiny(frozen_text_layers=1, frozen_visual_layers=1),
        tiny(),
        random_pairs(),
    )
    torch.testing.assert_close(frozen(inputs).pooled, free(inputs).pooled)
    loss_of(frozen, inputs).backward()  # type: ignore[no-untyped-call]
    without = {n.split(".weight")[0] for n, p in frozen.named_parameters() if p.grad is None}
    assert {"text_embedding.position", "region_embedding.feature"} <= without
    assert "text_layers.0.attention.qkv" in without and "visual_layers.0.norm" in without
    assert not any(name.startswith(("co_layers", "text_layers.1")) for name in without)
    assert frozen.text_embedding.word.weight.grad is not None  # through the tied decoder


def test_every_parameter_learns() -> None:
    inputs = random_pairs()
    inputs = changed(inputs, segments=torch.ones_like(inputs.tokens))
    for model in (tiny(), baseline()):
        loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
        unused = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert unused == []


def test_the_first_rows_of_the_baselines_tables_stay() -> None:
    model = baseline()
    loss_of(model, random_pairs()).backward()  # type: ignore[no-untyped-call]
    for table in (model.text_embedding.position, model.text_embedding.segment):
        assert table.weight.grad is not None and not table.weight.grad[0].any()


def test_task_tokens_lengthen_the_text_inside_only() -> None:
    model, inputs = tiny(num_tasks=3), padded_pairs([6, 3, 2], [5, 5, 5])
    first, second = (model(inputs, task=torch.tensor([n, 1, 2])) for n in (0, 1))
    assert first.text.shape == (3, 6, 24) and first.task is not None
    assert first.task.shape == (3, 24)
    assert not torch.allclose(first.pooled[0], second.pooled[0], atol=1e-4)
    torch.testing.assert_close(first.pooled[1:], second.pooled[1:])
    expect_packing_changes_nothing(model, inputs, task=torch.tensor([0, 1, 2]))


def test_a_task_is_given_where_there_are_tokens_for_it() -> None:
    with pytest.raises(ValueError, match="task is missing, but num_tasks=3"):
        tiny(num_tasks=3)(random_pairs())
    with pytest.raises(ValueError, match="task is given, but num_tasks=0"):
        tiny()(random_pairs(), task=torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("tokens", "regions", "message"),
    [
        (6, 0, r"region_features has shape \(3, 0, 16\): the variant needs one position"),
        (0, 5, r"tokens has shape \(3, 0\): the variant needs one position"),
        (13, 5, "tokens has 13 positions, the position table 12"),
    ],
)
def test_batches_that_cannot_be_encoded(tokens: int, regions: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny()(random_pairs(3, tokens, regions))


def test_the_baseline_reads_text_alone() -> None:
    encoded = baseline()(random_pairs(regions=0))
    assert encoded.regions.shape == (3, 0, 24) and encoded.pooled.isfinite().all()


def test_features_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="region_features are 16 wide, the model takes 17"):
        tiny(region_width=17)(random_pairs())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 70}, "width=70 is not a multiple of num_heads=12"),
        ({"visual_width": 33}, "visual_width=33 is not a multiple of visual_num_heads=8"),
        ({"co_width": 33}, "co_width=33 is not a multiple of co_num_heads=8"),
        ({"visual_num_layers": 0}, "visual_num_layers=0: expected a positive number"),
        ({"text_co_layers": (6,)}, "the same number in both"),
        ({"text_co_layers": (), "visual_co_layers": ()}, "expected at least one id"),
        ({"text_co_layers": (6, 5, 7, 8, 9, 10)}, "expected ids in ascending order, from 0 to 11"),
        ({"text_co_layers": (7, 8, 9, 10, 11, 12)}, "the stream has 12 layers"),
        ({"frozen_text_layers": 7}, "frozen_text_layers=7: only the 6 layers before"),
        ({"frozen_visual_layers": 1}, "frozen_visual_layers=1: only the 0 layers before"),
        ({"visual_act": "tanh"}, "no activation 'tanh'"),
        ({"visual_dropout": 1.0}, "visual_dropout=1.0: expected a share"),
        ({"max_text_tokens": 513}, "max_text_tokens=513, the position table has"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vilbert_base(**change)


def test_presets_by_name() -> None:
    assert preset("vilbert-base-8") == vilbert_base(8)
    assert preset("vilbert-large").text_co_layers == (18, 19, 20, 21, 22, 23)
    assert preset("vilbert-paper") == preset("vilbert-base") == vilbert_base()
    assert preset("vilbert-released", fusion="sum").keep_unused


def test_standardised_regions_are_the_old_ones_of_standardised_features() -> None:
    model, inputs = tiny(), random_pairs()
    mean, std = torch.rand(FEATURES), torch.rand(FEATURES) + 0.5
    expected = model(inputs)
    model.standardise_regions(mean, std)
    output = model(changed(inputs, region_features=inputs.region_features * std + mean))
    torch.testing.assert_close(output.pooled, expected.pooled, atol=1e-4, rtol=1e-4)
