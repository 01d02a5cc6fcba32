"""Batches for the benchmark of models are masked as the recipes mask, and cut into their pairs."""

import pytest
import torch
from peers.works import CLS, SEP, RegionWork, mask_of, random_pixels, random_regions

from vlmill.train.recipes import recipe_named

pytestmark = pytest.mark.nightly

TEXTS, ROWS = torch.tensor([9, 36, 20]), torch.tensor([11, 101, 2])


def drawn(recipe: str) -> RegionWork:
    torch.manual_seed(0)
    return random_regions(TEXTS, ROWS, recipe_named(recipe).stages[-1].masking, size=(36, 101))


def test_masked_places_are_anywhere_but_special_tokens_padding_and_the_full_image() -> None:
    for recipe in ("vilbert", "vl-bert", "interbert-released", "imagebert"):
        work = drawn(recipe)
        guessed = work.word_labels >= 0
        assert not guessed[:, 0].any() and not guessed[torch.arange(3), TEXTS - 1].any()
        assert not (guessed & ~mask_of(TEXTS, 36)).any()
        assert not (work.masked_regions & ~mask_of(ROWS, 101)).any()
        assert not work.masked_regions[:, 0].any() and work.masked_regions.any()
        assert (work.tokens[torch.arange(3), TEXTS - 1] == SEP).all()
        assert (work.tokens[:, 0] == CLS).all()
    places = torch.nonzero(drawn("vilbert").masked_regions[1]).flatten()
    assert 5 <= len(places) <= 30 and places.max() > 50  # 15 % of 100, not the first ones


def test_a_pair_by_itself_is_the_batchs_without_padding() -> None:
    work = drawn("vl-bert")
    one = work.pair(0)
    assert one.tokens.shape == (1, 9) and one.features.shape == (1, 11, 2048)
    assert torch.equal(one.word_labels[0], work.word_labels[0, :9])
    assert torch.equal(one.masked_regions[0], work.masked_regions[0, :11])
    assert int(one.mismatched[0]) == 0 and work.pair(2).targets.shape == (1, 2, 1601)


def test_images_come_with_texts_before_and_after_masking() -> None:
    work = random_pixels(torch.tensor([40, 12]), recipe_named("vlmo-base").stages[-1].masking)
    guessed = work.word_labels >= 0
    assert guessed.any() and torch.equal(work.word_labels[guessed], work.tokens[guessed])
    assert torch.equal(work.tokens[~guessed], work.masked_tokens[~guessed])
