"""VLMo's pretraining step, and its negatives, drawn by numbers that belong to pairs."""

import dataclasses
import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from tests.models.vlmo.test_model import BOTH, random_batch, tiny_model
from torch import Tensor

from vlmill.models import PixelInputs, VLInputs
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.train.loading.batch import Batch
from vlmill.train.objectives import negatives
from vlmill.train.objectives.contrast import contrast_and_matching, global_contrast
from vlmill.train.objectives.negatives import (
    draw_negatives,
    make_draw,
    negative_numbers,
    negative_weights,
    same_images,
)
from vlmill.train.recipes import Objectives
from vlmill.train.run.pretraining import make_step


def dealt(process: int, processes: int) -> Any:
    """What `negative_numbers` asks of an accelerator."""
    return Mock(
        spec=Accelerator,
        process_index=process,
        num_processes=processes,
        device=torch.device("cpu"),
    )


def test_numbers_belong_to_pairs_whoever_has_them() -> None:
    whole = negative_numbers(3, 7, 0, 6, dealt(0, 1))
    parts = [negative_numbers(3, 7, 0, 3, dealt(process, 2)) for process in (0, 1)]
    assert whole.shape == (2, 6) and torch.equal(whole, torch.cat(parts, 1))
    assert float(whole.min()) >= 0 and float(whole.max()) < 1
    for other in ((4, 7, 0), (3, 8, 0), (3, 7, 1)):
        assert not torch.equal(whole, negative_numbers(*other, 6, dealt(0, 1)))


def test_candidates_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]]).expand(8, 4)
    numbers = torch.tensor([0, 0.1, 0.24, 0.25, 0.26, 0.5, 0.9, 1 - 2**-24])
    images, texts = make_draw(torch.stack([numbers, numbers.flip(0)]))(weights, weights)
    assert images.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert texts.tolist() == images.tolist()[::-1]


def test_one_candidate_of_any_weight_is_taken() -> None:
    weights = torch.tensor([[0.0, torch.finfo(torch.float32).tiny, 0.0]])
    ((image,), (text,)) = make_draw(torch.tensor([[0.0], [1 - 2**-24]]))(weights, weights)
    assert (image, text) == (1, 1)


def test_weights_that_are_nan_give_a_candidate_so_that_the_loss_is_reported() -> None:
    columns, _ = make_draw(torch.tensor([[0.0, 0.9], [0.0, 0.9]]))(
        *[torch.full((2, 4), math.nan)] * 2
    )
    assert int(columns.max()) < 4


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_processes_draw_as_one(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns with one's own pairs first mean the same candidates."""
    pairs, world = 2, 3
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).fill_diagonal_(0)
    numbers = torch.rand(2, 6, generator=torch.Generator().manual_seed(1))
    expected = make_draw(numbers)(weights, weights.T)
    own = torch.arange(rank * pairs, (rank + 1) * pairs)
    first = torch.cat([own, torch.tensor([i for i in range(6) if i not in own])])
    monkeypatch.setattr(negatives, "world_size", lambda: world)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    found = make_draw(numbers[:, own])(weights[own][:, first], weights.T[own][:, first])
    drawn: list[Tensor] = [first[columns] for columns in found]
    assert torch.equal(drawn[0], expected[0][own]) and torch.equal(drawn[1], expected[1][own])


def fixed(images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair's negative is the next pair."""
    following = (torch.arange(len(images)) + 1) % len(images)
    return following, following


@BOTH
def test_shapes_of_a_pretraining_step(paper: bool) -> None:
    model, batch = tiny_model(paper=paper), random_batch(padded=True)
    made = contrast_and_matching(model, batch, batch.tokens, fixed)
    assert made.match_logits.shape == (12, 2)
    assert made.masked_text.shape == (4, 6, 24)
    assert (made.text.fused is None) == (model.fused_scale() is None) == paper
    torch.testing.assert_close(made.image.unimodal.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(model.log_scale.exp(), torch.tensor(1 / 0.07))
    encoded = model(batch)
    assert encoded.regions.shape == (4, 10, 24)
    assert (encoded.pooled.abs() <= 1).all() or paper
    assert torch.equal(encoded.pooled, encoded.text[:, 0]) == paper


@BOTH
def test_packed_rows_give_the_numbers_and_gradients_of_the_grid(paper: bool) -> None:
    batch = random_batch(padded=True)
    results = []
    for pack in (False, True):
        model = tiny_model(paper=paper)
        made = contrast_and_matching(model, batch, batch.tokens, fixed, pack=pack)
        words = made.masked_text[batch.token_mask]
        loss = model.mlm_logits(words).square().mean() + made.match_logits.square().sum()
        (loss + made.contrast.loss).backward()  # type: ignore[no-untyped-call]
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((words, made.match_logits, grads))
    (words, match, grads), (packed_words, packed_match, packed_grads) = results
    torch.testing.assert_close(packed_words, words, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(packed_match, match, atol=1e-5, rtol=1e-4)
    assert grads.keys() == packed_grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(packed_grads[name], grad, atol=1e-4, rtol=1e-3, msg=name)


@BOTH
def test_a_step_is_its_passes_one_by_one(paper: bool) -> None:
    model, batch = tiny_model(paper=paper), random_batch(padded=True)
    masked = batch.tokens.clone()
    masked[:, 1] = 4
    made = contrast_and_matching(model, batch, masked, fixed)
    following, _ = fixed(batch.tokens, batch.tokens)
    passes = [
        model(batch),
        model(PixelInputs(**(vars(batch) | {"pixels": batch.pixels[following]}))),
        model(
            PixelInputs(
                tokens=batch.tokens[following],
                token_mask=batch.token_mask[following],
                pixels=batch.pixels,
            )
        ),
    ]
    logits = model.match_logits(torch.cat([encoded.pooled for encoded in passes]))
    torch.testing.assert_close(made.match_logits, logits, atol=1e-5, rtol=1e-4)
    on_masked = model(PixelInputs(**(vars(batch) | {"tokens": masked})))
    torch.testing.assert_close(made.masked_text, on_masked.text, atol=1e-5, rtol=1e-4)
    vectors = model.text_vectors(batch.tokens, batch.token_mask)
    torch.testing.assert_close(made.text.unimodal, vectors, atol=1e-5, rtol=1e-4)
    vectors = model.image_vectors(batch.pixels)
    torch.testing.assert_close(made.image.unimodal, vectors, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.match_logit(passes[0].pooled), logits[:4, 1] - logits[:4, 0])


def test_every_parameter_learns_but_those_that_are_never_read() -> None:
    model, batch = tiny_model(), random_batch(padded=True)
    made = contrast_and_matching(model, batch, batch.tokens, fixed)
    loss = model.mlm_logits(made.masked_text).square().sum() + made.match_logits[:, 0].sum()
    (loss + made.contrast.loss).backward()  # type: ignore[no-untyped-call]
    unread = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unread == ["encoder.text_embedding.position.weight"]
    held = model.encoder.text_embedding.position.weight
    assert not held.requires_grad
    segments = model.encoder.text_embedding.segment.weight.grad
    assert segments is not None and not segments[1].any()


def test_negatives_are_drawn_by_their_weights_and_never_the_partner() -> None:
    scores = torch.tensor([[9.0, 1.0, 2.0], [0.0, 9.0, -200.0], [300.0, 0.0, 500.0]])
    weights = negative_weights(scores)
    expected = scores.softmax(dim=1) * (1 - torch.eye(3))
    torch.testing.assert_close(weights, expected, atol=1e-12, rtol=1e-5)
    assert (weights.sum(dim=1) > 0).all()  # the third partner is sure: the others still have some
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        images, texts = draw_negatives(weights, weights.T.contiguous(), generator)
        assert not (images == torch.arange(3)).any() and not (texts == torch.arange(3)).any()
    with pytest.raises(ValueError, match="1 candidates contain no negative"):
        negative_weights(scores[:1, :1])


def test_candidates_of_other_processes_come_after_the_own() -> None:
    weights = negative_weights(torch.zeros(2, 5))
    assert weights[0, 0] == weights[1, 1] == 0 and (weights[:, 2:] > 0).all()


def test_what_nobody_asks_for_is_not_computed() -> None:
    model, batch = tiny_model(), random_batch()
    whole = contrast_and_matching(model, batch, batch.tokens, fixed)
    without_words = contrast_and_matching(model, batch, None, fixed)
    assert len(without_words.masked_text) == 0
    torch.testing.assert_close(without_words.match_logits, whole.match_logits, atol=1e-5, rtol=1e-4)

    def never(of_images: torch.Tensor, of_texts: torch.Tensor) -> Any:
        raise AssertionError("negatives were drawn")

    without_matching = contrast_and_matching(model, batch, batch.tokens, never, match=False)
    torch.testing.assert_close(
        without_matching.masked_text, whole.masked_text, atol=1e-5, rtol=1e-4
    )
    assert without_matching.match_logits.shape == (0, 2)
    contrast = contrast_and_matching(model, batch, None, never, match=False)
    assert (
        torch.equal(contrast.text.unimodal, whole.text.unimodal) and len(contrast.masked_text) == 0
    )


def test_captions_of_one_image_are_no_negatives_of_each_other() -> None:
    """The second and the fourth pair show one image; the first is drawn for nobody but them."""
    scores = torch.tensor(
        [[1.0, 2.0, 0.0, 1.0], [0.0, 2.0, 1.0, 9.0], [2.0, 0.0, 1.0, 1.0], [0.0, 9.0, 1.0, 2.0]]
    )
    excluded = same_images(torch.tensor([5, 7, -3, 7]))
    assert excluded.nonzero().tolist() == [[1, 3], [3, 1]]
    weights = negative_weights(scores, excluded)
    expected = scores.softmax(dim=1).masked_fill(excluded | torch.eye(4, dtype=torch.bool), 0.0)
    torch.testing.assert_close(weights, expected)
    alone = negative_weights(scores[:2, :2], same_images(torch.tensor([7, 7])))
    assert alone.tolist() == [[1.0, 0.0], [0.0, 1.0]]  # no negative: the pair itself once more


@BOTH
def test_a_step_spares_the_captions_of_a_image(paper: bool) -> None:
    """Contrast is that of the other candidates alone, and what is drawn twice counts as a match."""
    model, batch = tiny_model(paper=paper), random_batch()
    keys = torch.tensor([1, 2, 1, 3])
    made = contrast_and_matching(model, batch, None, make_draw(torch.rand(2, 4)), image_keys=keys)
    for weights in made.contrast.weights(4):
        assert weights[0, 2] == weights[2, 0] == 0 and (weights > 0).sum() == 4 * 3 - 2
    logits = made.contrast.scores
    losses = []
    for one in (logits, logits.T):
        others = [[0, 1, 3], [0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
        losses += [one[b, some].logsumexp(0) - one[b, b] for b, some in enumerate(others)]
    if paper:  # one contrastive pair
        torch.testing.assert_close(made.contrast.loss, torch.stack(losses).mean())
    assert made.match_classes.tolist() == [1] * 4 + [0] * 8
    plain = contrast_and_matching(model, batch, None, fixed)
    distinct = contrast_and_matching(model, batch, None, fixed, image_keys=torch.arange(4))
    assert torch.equal(plain.contrast.loss, distinct.contrast.loss)
    assert not torch.equal(plain.contrast.loss, made.contrast.loss)
    same = contrast_and_matching(
        model,
        batch,
        None,
        make_draw(torch.rand(2, 4)),
        image_keys=torch.ones(4, dtype=torch.int64),
    )
    assert same.match_classes.tolist() == [1] * 12 and same.contrast.loss == 0


def test_a_stage_can_have_captions_of_one_image_as_negatives() -> None:
    """The batch's keys decide, unless the stage says that such captions are negatives."""
    model, pixels = tiny_model(), random_batch()
    none = torch.zeros(0, dtype=torch.int64)
    inputs = VLInputs(
        tokens=pixels.tokens,
        token_mask=pixels.token_mask,
        region_features=torch.zeros(4, 0, 1),
        region_locations=torch.zeros(4, 0, 5),
        region_mask=torch.zeros(4, 0, dtype=torch.bool),
    )
    batch = Batch(
        inputs=inputs,
        original_tokens=pixels.tokens,
        pixels=pixels.pixels,
        masked_tokens=none,
        token_targets=none,
        masked_regions=none,
        class_targets=none,
        feature_targets=torch.zeros(0, 1),
        matching=torch.ones(4),
        pair_ids=("a", "b", "c", "d"),
        image_keys=torch.tensor([1, 2, 1, 3]),
    )
    weights = Objectives(mlm=0, moc=0, mrfr=0, itm=0, itc=1)

    def loss(of: Batch, *, same_picture_negatives: bool) -> Tensor:
        step = make_step(model, weights, same_picture_negatives=same_picture_negatives)
        total: Tensor = step(of, torch.ones(1))[0].detach()
        return total

    unknown = dataclasses.replace(batch, image_keys=None)
    spared = loss(batch, same_picture_negatives=False)
    assert spared < loss(batch, same_picture_negatives=True)
    for flag in (False, True):
        plain = loss(unknown, same_picture_negatives=flag)
        assert torch.equal(plain, loss(batch, same_picture_negatives=True))


def test_logits_are_of_float32_under_autocast() -> None:
    """At VLMo's highest scale bfloat16's are off by tenths, and so are the negatives' shares."""
    generator = torch.Generator().manual_seed(0)
    texts, images = (F.normalize(torch.randn(8, 64, generator=generator)) for _ in range(2))
    images = F.normalize(images + 4 * texts)
    model = Mock(spec=Vlmo, log_scale=torch.tensor(100.0).log(), fused_scale=lambda: None)
    made = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            one = global_contrast(model, Contrast(unimodal=texts), Contrast(unimodal=images))
            made.append((one.scores, one.loss, *one.weights(8)))
    for plain, half in zip(*made, strict=True):
        assert torch.equal(plain, half)


def test_vectors_have_length_one_under_autocast() -> None:
    model, batch = tiny_model(), random_batch()
    with torch.autocast("cpu", torch.bfloat16):
        vectors = model.text_vectors(batch.tokens, batch.token_mask)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
