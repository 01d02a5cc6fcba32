"""VL-BERT's tasks: texts, heads, and how they start from pretraining."""

from typing import Any

import pytest
import torch
from tests.models.vlbert.cases import changed, lively, random_batch, tiny_config, tiny_model
from torch import Tensor

from vlmill.models import VLInputs
from vlmill.models.vlbert.config import (
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
    vlbert_for_task,
)
from vlmill.models.vlbert.tasks import ChoiceInputs, VlBertRefcoco, VlBertVcr, VlBertVqa
from vlmill.train.tasks.vlbert_texts import SpecialIds, vcr_text, vqa_text

IDS = SpecialIds(cls=2, sep=3, mask=4)
TASK = vlbert_for_task(tiny_config())
WITH_POOLER = vlbert_for_task(tiny_config(), pooler=True)


def test_texts_by_hand() -> None:
    questions = vqa_text([[9], [8, 7]], IDS)
    assert questions.tokens.tolist() == [[2, 9, 3, 4, 3, 0], [2, 8, 7, 3, 4, 3]]
    assert questions.segments.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert questions.answers is not None
    assert questions.tokens.gather(1, questions.answers[:, None]).tolist() == [[4], [4]]
    choices = vcr_text([([(9, 2)], [(8, 0), (7, 1)]), ([(9, 2)], [(6, 3)])], IDS)
    assert choices.tokens.tolist() == [[2, 9, 3, 8, 7, 3], [2, 9, 3, 6, 3, 0]]
    assert choices.segments.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert choices.text_regions.tolist() == [[0, 2, 0, 0, 1, 0], [0, 2, 0, 3, 0, 0]]
    one = vcr_text([([(9, 2)], [(8, 0), (7, 1)]), ([], [(6, 3)])], IDS, one_sentence=True)
    assert one.tokens.tolist() == [[2, 9, 8, 7, 3], [2, 6, 3, 0, 0]]
    assert one.text_regions.tolist() == [[0, 2, 0, 1, 0], [0, 3, 0, 0, 0]]
    assert not one.segments.any()
    assert vqa_text([], IDS).tokens.shape == (0, 0)
    assert vqa_text([[]], IDS).tokens.tolist() == [[2, 3, 4, 3]]


def inputs() -> VLInputs:
    return changed(random_batch(), masked_regions=None)


def test_vqa_reads_the_answer_off_the_mask() -> None:
    model = lively(VlBertVqa(VlBertVqaConfig(body=TASK, num_answers=9)))
    logits = model(inputs(), torch.tensor([1, 0, 5]))
    assert logits.shape == (3, 9)
    text = model.body(inputs()).text
    torch.testing.assert_close(logits[2], model.head(text[2, 5]))


def test_vqa_starts_with_the_words_of_its_answers() -> None:
    pretrained = tiny_model()
    model = VlBertVqa(VlBertVqaConfig(body=TASK, num_answers=2))
    model.start_from(pretrained, [[7], [8, 9]])
    words = pretrained.text_embedding.word.weight
    torch.testing.assert_close(model.head.decoder.weight[0], words[7])
    torch.testing.assert_close(model.head.decoder.weight[1], (words[8] + words[9]) / 2)
    assert not model.head.decoder.bias.any()
    torch.testing.assert_close(
        model.eval().body(inputs()).text, pretrained(inputs()).text, atol=1e-5, rtol=1e-5
    )
    taken = pretrained.get_parameter("mlm_head.transform.dense.weight")
    assert torch.equal(model.get_parameter("head.transform.dense.weight"), taken)
    for answers in ([[7]], [[7], []]):
        with pytest.raises(ValueError, match="expected num_answers=2 answers with"):
            model.start_from(pretrained, answers)


def test_vqa_reads_the_mask_with_one_layer_or_two() -> None:
    one = lively(VlBertVqa(VlBertVqaConfig(body=TASK, num_answers=9, classifier="1fc")))
    answers = torch.tensor([1, 0, 5])
    mask = one.body(inputs()).text[2, 5]
    by_hand = one.head.decoder.weight @ mask + one.head.decoder.bias
    torch.testing.assert_close(one(inputs(), answers)[2], by_hand)
    config = VlBertVqaConfig(body=TASK, num_answers=9, classifier="2fc", classifier_width=5)
    two = lively(VlBertVqa(config))
    first, second = two.head.transform.dense, two.head.decoder
    assert second.in_features == 5
    mask = two.body(inputs()).text[2, 5]
    by_hand = second(first(mask).clamp(min=0))
    torch.testing.assert_close(two(inputs(), answers)[2], by_hand)
    with pytest.raises(ValueError, match="classifier='2fc' has no word head's shape"):
        two.start_from(tiny_model(), [[7]] * 9)


def test_refcoco_never_chooses_padding() -> None:
    model = lively(VlBertRefcoco(VlBertRefcocoConfig(body=TASK)))
    padded = changed(inputs(), region_mask=torch.arange(5) < torch.tensor([[5], [2], [1]]))
    logits = model(padded)
    assert logits.shape == (3, 5)
    assert torch.equal(logits.isinf(), ~padded.region_mask)
    model.start_from(pretrained := tiny_model())
    taken = pretrained.get_parameter("class_head.transform.dense.weight")
    assert torch.equal(model.get_parameter("head.transform.dense.weight"), taken)


def choices(**changes: Any) -> ChoiceInputs:
    """Two questions with four choices of up to six tokens; four and two regions."""
    generator = torch.Generator().manual_seed(2)
    parts = {
        "tokens": torch.randint(0, 50, (2, 4, 6), generator=generator),
        "token_mask": torch.rand(2, 4, 6, generator=generator) < 0.7,
        "segments": torch.randint(0, 2, (2, 4, 6), generator=generator),
        "text_regions": torch.randint(0, 2, (2, 4, 6), generator=generator),
        "region_features": torch.rand(2, 4, 16, generator=generator),
        "region_locations": torch.rand(2, 4, 5, generator=generator),
        "region_mask": torch.arange(4) < torch.tensor([[4], [2]]),
    }
    return ChoiceInputs(**(parts | changes))


def test_vcr_is_one_sequence_a_choice() -> None:
    model, batch = lively(VlBertVcr(VlBertVcrConfig(body=WITH_POOLER))), choices()
    output = model(batch)
    assert output.answer_logits.shape == (2, 4)
    alone = VLInputs(
        tokens=batch.tokens[1, 2:3],
        token_mask=batch.token_mask[1, 2:3],
        segments=batch.segments[1, 2:3],
        text_regions=batch.text_regions[1, 2:3],
        region_features=batch.region_features[1:, :2],
        region_locations=batch.region_locations[1:, :2],
        region_mask=batch.region_mask[1:, :2],
    )
    encoded = model.body(alone)
    torch.testing.assert_close(
        output.answer_logits[1, 2], model.answer_head(encoded.pooled)[0, 0], atol=1e-5, rtol=1e-5
    )
    assert output.category_logits.shape == (4 * 4 + 4 * 2, 81)
    last = (output.images == 1).nonzero().flatten()
    assert output.regions[last].tolist() == [0, 1] * 4
    torch.testing.assert_close(
        output.category_logits[last[4:6]],
        model.category_head(encoded.regions[0]),
        atol=1e-5,
        rtol=1e-5,
    )
    torch.testing.assert_close(
        model(batch, pack=False).answer_logits, output.answer_logits, atol=1e-5, rtol=1e-5
    )


def test_vcr_scores_choices_with_two_layers() -> None:
    config = VlBertVcrConfig(body=WITH_POOLER, classifier="2fc", classifier_width=5)
    two, pretrained = VlBertVcr(config), tiny_model()
    first, second = two.get_submodule("answer_hidden.dense"), two.answer_head
    assert isinstance(first, torch.nn.Linear)
    assert (first.out_features, second.in_features) == (5, 5)
    two.start_from(pretrained)  # neither layer has the matching head's shape
    pooled = pooled_of(two.eval(), choices())
    by_hand = second(first(pooled).clamp(min=0)).view(2, 4)
    torch.testing.assert_close(two(choices()).answer_logits, by_hand)


def test_vcr_asks_some_regions_and_masked_words() -> None:
    body = vlbert_for_task(tiny_config(), pooler=True, masked_region="vector")
    model = lively(VlBertVcr(VlBertVcrConfig(body=body, masked_words=True)))
    whole, places = model(choices()), (torch.tensor([1, 5]), torch.tensor([3, 0]))
    some = model(choices(), category_regions=places)
    of_places = [
        int(((whole.images == 0) & (whole.regions == 3)).nonzero()[1]),
        int(((whole.images == 1) & (whole.regions == 0)).nonzero()[1]),
    ]
    torch.testing.assert_close(some.category_logits, whole.category_logits[of_places])
    assert some.images.tolist() == [0, 1] and some.regions.tolist() == [3, 0]
    assert model.word_logits(whole.text[0]).shape == (6, body.vocab_size)
    masked = torch.zeros(2, 4, dtype=torch.bool)
    masked[0, 1] = True
    one, other = (
        model(choices(masked_regions=masked, region_features=features))
        for features in (choices().region_features, without(choices().region_features, masked))
    )
    torch.testing.assert_close(one.answer_logits, other.answer_logits)  # nothing of it is read
    assert not torch.allclose(one.answer_logits[0], whole.answer_logits[0])
    with pytest.raises(ValueError, match="masked_words=False"):
        VlBertVcr(VlBertVcrConfig(body=WITH_POOLER)).word_logits(whole.text[0])


def without(features: Tensor, masked: Tensor) -> Tensor:
    """Other features where regions are masked."""
    return torch.where(masked[..., None], 7.0, features)


def pooled_of(model: VlBertVcr, batch: ChoiceInputs) -> Tensor:
    """What the answer head reads, of all sequences."""
    pooled: list[Tensor] = []
    handle = model.body.pooler.register_forward_hook(lambda *call: pooled.append(call[2]))
    model(batch)
    handle.remove()
    return pooled[0]


def test_vcr_starts_from_matching() -> None:
    model, pretrained = VlBertVcr(VlBertVcrConfig(body=WITH_POOLER)), tiny_model()
    model.start_from(pretrained)
    pooled = torch.randn(3, 24)
    torch.testing.assert_close(
        model.answer_head(pooled)[:, 0], pretrained.match_logit(pooled), atol=1e-5, rtol=1e-5
    )
    segments = model.body.text_embedding.segment.weight
    assert torch.equal(segments[1], pretrained.text_embedding.segment.weight[0])
    assert torch.equal(segments[2], pretrained.text_embedding.segment.weight[2])


def test_vcr_shows_named_objects_from_the_first_step_as_asked() -> None:
    name, pretrained = "text_visual.norm.weight", tiny_model()
    for scale, wanted in ((0.3, torch.tensor(0.3)), (None, pretrained.get_parameter(name))):
        model = VlBertVcr(VlBertVcrConfig(body=WITH_POOLER, visual_scale_names=scale))
        gain = model.body.get_parameter(name)
        drawn = gain.clone()
        model.start_from(pretrained)
        torch.testing.assert_close(gain, wanted.expand_as(gain))
        assert torch.equal(drawn, gain) or scale is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 6, dtype=torch.int64)}, "token_mask has shape"),
        ({"region_mask": torch.ones(2, 3, dtype=torch.bool)}, "region_mask"),
    ],
)
def test_choices_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    held = choices()
    for name, value in change.items():
        object.__setattr__(held, name, value)  # past the shapes checked in tests
    with pytest.raises(ValueError, match=message):
        held.__post_init__()


def test_vcr_needs_the_pooler() -> None:
    with pytest.raises(ValueError, match=r"body\.pooler=False"):
        VlBertVcrConfig(body=TASK)


def test_vcr_has_no_word_head() -> None:
    with pytest.raises(ValueError, match="classifier='mlm': expected one of 1fc, 2fc"):
        VlBertVcrConfig(body=WITH_POOLER, classifier="mlm")


def test_heads_start_from_xavier() -> None:
    model = VlBertVqa(VlBertVqaConfig(body=TASK, num_answers=9))
    weight = model.head.decoder.weight
    assert weight.abs().max() <= (6 / (24 + 9)) ** 0.5 and not model.head.decoder.bias.any()
