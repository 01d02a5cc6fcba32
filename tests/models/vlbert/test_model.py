"""VL-BERT: what its outputs depend on, its switches, and what it refuses."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.forked import run_script
from tests.models.pair_cases import expect_packing_changes_nothing
from tests.models.vlbert.cases import changed, padded_batch, random_batch, tiny_config, tiny_model
from torch import Tensor

from vlmill.models import PRESETS, VARIANTS, VLInputs
from vlmill.models.inputs import VLInputs as Inputs
from vlmill.models.outputs import Encoded
from vlmill.models.vlbert.config import vlbert_base, vlbert_for_task, vlbert_paper, vlbert_small
from vlmill.models.vlbert.encoder import box_numbers, geometry_embedding
from vlmill.models.vlbert.model import VlBert

close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_of_the_other_presets() -> None:
    with torch.device("meta"):
        assert 2_000_000 < count(VlBert(vlbert_small())) < 6_000_000
        released, paper = count(VlBert(vlbert_base())), count(VlBert(vlbert_paper()))
    # Pooler 768 x 768 + 768 and 2-way head; a masked vector of 768 replaces feature 2048 and token
    # 768; no vector for text alone.
    assert paper - released == 590_592 + 1538 + 768 - 2048 - 768 - 768


def test_presets_are_of_their_variants() -> None:
    for name in (n for n in PRESETS if n.startswith("vl-bert")):
        kind = "vl-bert-end-to-end" if name.endswith("end-to-end") else "vl-bert"
        assert type(PRESETS[name]()) is VARIANTS[kind].config


def losses(model: VlBert, output: Encoded) -> Tensor:
    return (
        model.match_logit(output.pooled).sum()
        + model.mlm_logits(output.text.flatten(0, 1)).square().sum()
        + model.region_class_logits(output.regions.flatten(0, 1)).square().sum()
    )


def test_shapes_and_heads() -> None:
    model, inputs = tiny_model(), random_batch()
    output = model(inputs)
    assert output.text.shape == (3, 6, 24) and output.regions.shape == (3, 5, 24)
    logits = model.match_logits(output.pooled)
    close(model.match_logit(output.pooled), logits[:, 1] - logits[:, 0])
    assert model.mlm_logits(output.text[0]).shape == (6, 50)
    assert model.region_class_logits(output.regions[0]).shape == (5, 7)
    assert len(model.region_class_logits(output.regions[0, :0])) == 0  # nothing masked


def test_packing_changes_neither_outputs_nor_gradients() -> None:
    expect_packing_changes_nothing(tiny_model(), padded_batch())


def test_a_batch_equals_its_samples_without_padding() -> None:
    """What padding holds makes no difference either; it may even be no number."""
    model, inputs = tiny_model(), padded_batch()
    inputs.region_features[~inputs.region_mask] = 1e4
    together = model(inputs)
    for row, (words, regions) in enumerate(((6, 5), (3, 2), (4, 0))):
        alone = VLInputs(
            tokens=inputs.tokens[row : row + 1, :words],
            token_mask=inputs.token_mask[row : row + 1, :words],
            region_features=inputs.region_features[row : row + 1, :regions],
            region_locations=inputs.region_locations[row : row + 1, :regions],
            region_mask=inputs.region_mask[row : row + 1, :regions],
            masked_regions=inputs.masked_regions[row : row + 1, :regions],  # type: ignore[index]
        )
        output = model(alone)
        close(together.text[row, :words], output.text[0])
        close(together.regions[row, :regions], output.regions[0])
        close(together.pooled[row], output.pooled[0])
        assert not together.text[row, words:].any()
        assert not together.regions[row, regions:].any()


def test_masks_with_holes_are_compacted() -> None:
    model, inputs = tiny_model(), random_batch()
    holes = changed(
        inputs,
        token_mask=torch.tensor([[True, True, False, True, True, True]] * 3),
        region_mask=torch.tensor([[True, True, False, True, True]] * 3),
    )
    kept_words, kept = [0, 1, 3, 4, 5], [0, 1, 3, 4]
    without = model(
        VLInputs(
            tokens=inputs.tokens[:, kept_words],
            token_mask=inputs.token_mask[:, kept_words],
            region_features=inputs.region_features[:, kept],
            region_locations=inputs.region_locations[:, kept],
            region_mask=inputs.region_mask[:, kept],
            masked_regions=inputs.masked_regions[:, kept],  # type: ignore[index]
        )
    )
    for pack in (True, False):
        output = model(holes, pack=pack)
        close(output.text[:, kept_words], without.text)
        close(output.regions[:, kept], without.regions)
        assert not output.text[:, 2].any() and not output.regions[:, 2].any()


def test_regions_have_no_order_but_the_first_is_the_image() -> None:
    model, inputs = tiny_model(), changed(random_batch(), masked_regions=None)

    def moved(order: list[int]) -> Encoded:
        output: Encoded = model(
            changed(
                inputs,
                region_features=inputs.region_features[:, order],
                region_locations=inputs.region_locations[:, order],
            )
        )
        return output

    output, permuted = model(inputs), moved([0, 3, 1, 4, 2])
    close(permuted.text, output.text)
    close(permuted.regions, output.regions[:, [0, 3, 1, 4, 2]])
    assert not torch.allclose(moved([1, 0, 2, 3, 4]).text, output.text, atol=1e-3)


def test_a_masked_region_keeps_its_place_and_loses_its_look() -> None:
    model, inputs = tiny_model(), random_batch()
    output = model(inputs)
    for name, same in (("region_features", True), ("region_locations", False)):
        other = getattr(inputs, name).clone()
        other[:, 1] += 0.3
        assert torch.allclose(model(changed(inputs, **{name: other})).text, output.text) == same
    unmasked = model(changed(inputs, masked_regions=None))
    assert not torch.allclose(unmasked.text, output.text, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "sees_feature", "sees_place"),
    [("appearance", False, True), ("vector", False, False), ("pixels", True, True)],
)
def test_what_masking_hides(kind: Any, sees_feature: bool, sees_place: bool) -> None:
    model, inputs = tiny_model(masked_region=kind), random_batch()
    args = inputs.region_mask, inputs.masked_regions
    vectors = model.embed_regions(inputs.region_features, inputs.region_locations, *args)
    features, places = inputs.region_features + 0.3, inputs.region_locations + 0.3
    for changed_to, sees in (
        (model.embed_regions(features, inputs.region_locations, *args), sees_feature),
        (model.embed_regions(inputs.region_features, places, *args), sees_place),
    ):
        assert (not torch.allclose(changed_to[:, 1], vectors[:, 1])) == sees


def test_text_speaks_of_the_regions_that_it_names() -> None:
    model, inputs = tiny_model(), changed(random_batch(), masked_regions=None)
    zeros = torch.zeros_like(inputs.tokens)
    close(model(changed(inputs, text_regions=zeros)).text, model(inputs).text)
    named = zeros.clone()
    named[:, 2] = 3
    assert not torch.allclose(
        model(changed(inputs, text_regions=named)).text, model(inputs).text, atol=1e-3
    )


def test_segments_and_positions_matter() -> None:
    model, inputs = tiny_model(), random_batch()
    output = model(inputs)
    ones = torch.ones_like(inputs.tokens)
    assert not torch.allclose(model(changed(inputs, segments=ones)).text, output.text, atol=1e-3)
    assert torch.equal(model(changed(inputs, segments=ones * 0)).text, output.text)
    swapped = model(changed(inputs, tokens=inputs.tokens[:, [0, 2, 1, 3, 4, 5]]))
    assert not torch.allclose(swapped.pooled, output.pooled, atol=1e-3)


def test_positions_are_berts_or_robertas() -> None:
    """Text from 0 (or 2), all regions behind it, [END] one further; the rest is never read."""
    for offset in (0, 2):
        model, inputs = tiny_model(position_offset=offset), random_batch()
        losses(model, model(inputs)).backward()  # type: ignore[no-untyped-call]
        gradient = model.text_embedding.position.weight.grad
        assert gradient is not None
        used = gradient.abs().sum(-1).nonzero().flatten().tolist()
        assert used == [place + offset for place in range(8)]


def test_a_new_model_is_bert_plus_end() -> None:
    """Visual vectors are multiplied by 0 at the start: features change nothing yet."""
    torch.manual_seed(0)
    model, inputs = VlBert(tiny_config()).eval(), changed(random_batch(), masked_regions=None)
    other = changed(inputs, region_features=inputs.region_features + 1.0)
    assert torch.equal(model(inputs).text, model(other).text)
    assert model.masked_feature is not None and not model.masked_feature.weight.any()
    bound = model.region_vectors.projection.in_features**-0.5
    assert 0.9 * bound < model.region_vectors.projection.weight.abs().max() <= bound
    assert model.class_head is not None
    assert abs(model.class_head.transform.dense.weight.std().item() - 0.02) < 0.003


def test_every_parameter_learns() -> None:
    for changes in ({}, {"end_visual": True, "masked_region": "vector", "geometry": "corners"}):
        model = tiny_model(**changes)
        losses(model, model(padded_batch())).backward()  # type: ignore[no-untyped-call]
        assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_frozen_words_learn_only_the_first_thousand() -> None:
    model = tiny_model(frozen_words=True, frozen_positions=True, vocab_size=1200)
    assert not model.text_embedding.word.weight.requires_grad
    assert not model.text_embedding.position.weight.requires_grad
    assert model.special_words is not None
    tokens = torch.tensor([[999, 1000]])
    words = model._words(tokens)[0]
    assert torch.equal(words[0], model.special_words.weight[999])
    assert torch.equal(words[1], model.text_embedding.word.weight[1000])
    fresh = VlBert(tiny_config(frozen_words=True, vocab_size=1200))
    assert fresh.special_words is not None
    assert torch.equal(fresh.special_words.weight, fresh.text_embedding.word.weight[:1000])


def test_geometry_by_hand() -> None:
    """A box from (0.1, 0.2) to (0.5, 0.8): centre 30, 50, size 40, 60 hundredths."""
    location = torch.tensor([[0.1, 0.2, 0.5, 0.8, 0.24]])
    numbers = box_numbers(location)
    close(numbers, torch.tensor([[30.0, 50.0, 40.0, 60.0]]))
    close(box_numbers(location, "corners"), torch.tensor([[10.0, 20.0, 50.0, 80.0]]))
    embedded = geometry_embedding(numbers, 2)[0]
    root = 1000**0.5
    assert embedded.shape == (16,)
    expected = torch.tensor([30.0, 30 / root]).sin(), torch.tensor([30.0, 30 / root]).cos()
    torch.testing.assert_close(embedded[:4], torch.cat(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(embedded[-1], torch.tensor(60 / root).cos(), atol=1e-5, rtol=1e-5)


def test_standardised_regions_are_the_old_ones_of_standardised_features() -> None:
    model, inputs = tiny_model(), random_batch()
    mean, std = torch.rand(16), torch.rand(16) + 0.5
    expected = model(inputs)
    model.standardise_regions(mean, std)
    output = model(changed(inputs, region_features=inputs.region_features * std + mean))
    torch.testing.assert_close(output.regions, expected.regions, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.pooled, expected.pooled, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 70}, "width=70 is not a multiple of num_heads=12"),
        ({"num_layers": 0}, "num_layers=0: expected a positive number"),
        ({"num_positions": 2}, "num_positions=2 leaves no position for text"),
        ({"position_offset": 510}, "num_positions=512 leaves no position for text: 510 are"),
        ({"visual_width": 0}, "visual_width=0: expected a positive number or None"),
        ({"matching": True}, "matching=True needs pooler=True"),
        ({"dropout": 1.0}, "dropout=1.0: expected a share"),
    ],
)
def test_impossible_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vlbert_base(**change)


@pytest.mark.parametrize("name", ["geometry", "masked_region"])
def test_unknown_kinds_are_refused(name: str) -> None:
    config = vlbert_base()
    object.__setattr__(config, name, "edges")  # as from a file, past the types checked in tests
    with pytest.raises(ValueError, match=f"{name}='edges': expected one of "):
        config.__post_init__()


def test_impossible_inputs_are_refused() -> None:
    with pytest.raises(
        ValueError, match="tokens has 13 positions, expected 1 to max_text_tokens=12"
    ):
        tiny_model()(random_batch(tokens=13))
    with pytest.raises(ValueError, match="tokens has 0 positions"):
        tiny_model()(random_batch(tokens=0))
    with pytest.raises(ValueError, match="region_features are 16 wide, the model takes 8"):
        tiny_model(region_width=8)(random_batch())


def test_what_it_was_not_trained_for_is_refused() -> None:
    model = tiny_model(matching=False)
    with pytest.raises(ValueError, match=r"no matching head .* matching=True"):
        model.match_logit(torch.zeros(1, 24))
    with pytest.raises(ValueError, match="does not regress masked features"):
        model.region_features(torch.zeros(1, 24))


def test_a_task_masks_nothing() -> None:
    config = vlbert_for_task(vlbert_paper(), pooler=True)
    assert (config.masked_region, config.text_only, config.matching) == ("none", False, False)
    assert config.pooler and config.geometry == "corners"


def test_features_that_are_no_numbers_are_found() -> None:
    inputs = random_batch()
    inputs.region_features[1, 2, 3] = float("nan")
    with pytest.raises(ValueError, match="region_features: 1 of 3 pairs hold NaN"):
        inputs.validate(need_regions=False)
    none = changed(random_batch(), region_mask=torch.zeros(3, 5, dtype=torch.bool))
    assert isinstance(none.validate(need_regions=False), Inputs)


COMPILED = """
import torch
from tests.models.pair_cases import expect_packing_changes_nothing
from tests.models.vlbert.cases import changed, random_batch, tiny_model
model = tiny_model()
compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
lengths = torch.tensor([[11], [2], [0], [4]])
padded = changed(random_batch(4, 9, 11), region_mask=torch.arange(11) < lengths)
with torch.no_grad():
    for number, inputs in enumerate((random_batch(3, 8, 7), padded, random_batch(2, 7, 10))):
        if number:
            torch.compiler.set_stance("fail_on_recompile")
        ours, expected = compiled(inputs), model(inputs)
        for name in ("text", "regions", "pooled"):
            torch.testing.assert_close(
                getattr(ours, name), getattr(expected, name), atol=1e-5, rtol=1e-5
            )
"""


@pytest.mark.slow
@pytest.mark.long
def test_compiles_without_a_break_and_once_for_all_lengths() -> None:
    """In a process of its own: shapes checked at run time cannot be traced."""
    done = run_script(COMPILED)
    assert done.returncode == 0, done.stderr
