"""Scoring all pairs: the batching changes no score, the order of what was found never flatters."""

from typing import Any

import numpy as np
import pytest
import torch

from vlmill.models import VLInputs
from vlmill.models.imagebert import ImageBert, ImageBertConfig
from vlmill.train.collate import Regions
from vlmill.train.metrics import Ranks, image_to_text_ranks, text_to_image_ranks
from vlmill.train.tasks.retrieval import (
    encode_texts,
    found_images,
    found_texts,
    score_matrix,
    text_batches,
)
from vlmill.train.tasks.retrieval_report import evenly, percent
from vlmill.train.vocabulary import SPECIAL, bert_tokenizer

CPU = torch.device("cpu")


def tiny_model() -> ImageBert:
    torch.manual_seed(0)
    model = ImageBert(
        ImageBertConfig(
            vocab_size=30,
            width=16,
            num_layers=2,
            num_heads=2,
            intermediate_width=32,
            num_positions=12,
            max_text_tokens=8,
            visual_position_id=8,
            region_width=6,
            num_region_classes=3,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def random_texts(count: int, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 30, generator.integers(1, 9)) for _ in range(count)]


def random_pictures(count: int, seed: int = 0) -> list[Regions]:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 6, count)
    return [
        Regions(
            features=generator.standard_normal((n, 6)).astype(np.float32),
            locations=generator.random((n, 5)).astype(np.float32),
            class_ids=np.zeros(n, np.int64),
        )
        for n in sizes
    ]


def score_one(model: ImageBert, text: Any, picture: Regions) -> float:
    inputs = VLInputs(
        tokens=torch.from_numpy(text)[None],
        token_mask=torch.ones(1, len(text), dtype=torch.bool),
        region_features=torch.from_numpy(picture.features)[None],
        region_locations=torch.from_numpy(picture.locations)[None],
        region_mask=torch.ones(1, len(picture.features), dtype=torch.bool),
    )
    with torch.no_grad():
        return float(model.eval().match_logit(model(inputs).pooled))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_scores_equal_the_model_pair_by_pair(batch_size: int) -> None:
    model, texts, pictures = tiny_model(), random_texts(7), random_pictures(4)
    told: list[int] = []
    scores = score_matrix(
        model, texts, pictures, device=CPU, batch_size=batch_size, advance=told.append
    )
    one_by_one = [[score_one(model, text, picture) for text in texts] for picture in pictures]
    np.testing.assert_allclose(scores, one_by_one, atol=1e-5)
    assert scores.dtype == np.float32
    assert sum(told) == 28 and max(told) <= batch_size


def test_no_picture_and_no_text_are_empty_matrices() -> None:
    model = tiny_model()
    assert score_matrix(model, random_texts(3), [], device=CPU, batch_size=2).shape == (0, 3)
    empty = score_matrix(model, [], random_pictures(2), device=CPU, batch_size=2)
    assert empty.shape == (2, 0)


def test_features_that_are_not_finite_are_refused() -> None:
    pictures = random_pictures(2)
    pictures[1].features[0, 0] = np.nan
    with pytest.raises(ValueError, match="picture 1: its features or locations are not finite"):
        score_matrix(tiny_model(), random_texts(2), pictures, device=CPU, batch_size=2)


def test_batches_hold_each_text_once_with_little_padding() -> None:
    texts = random_texts(25)
    batches = text_batches(texts, 4, CPU)
    assert sorted(np.concatenate([b.columns for b in batches])) == list(range(25))
    lengths = [b.tokens.shape[1] for b in batches]
    assert lengths == sorted(lengths)
    for batch in batches:
        for row, column in enumerate(batch.columns):
            kept = batch.tokens[row][batch.token_mask[row]]
            np.testing.assert_array_equal(kept, texts[column])


def test_texts_are_cut_at_the_end_and_the_tokenizer_is_left_alone() -> None:
    tokenizer = bert_tokenizer({word: i for i, word in enumerate((*SPECIAL, "a", "b"))})
    (short, long) = encode_texts(tokenizer, ["A b", "a a a b b b"], max_tokens=5)
    assert short.tolist() == [2, 5, 6, 3]
    assert long.tolist() == [2, 5, 5, 5, 3]
    assert len(tokenizer.encode("a a a b b b").ids) == 8


def test_found_by_hand() -> None:
    scores = np.array([[0.0, 3.0, 1.0], [2.0, 1.0, 1.0]])
    owners = np.array([1, 0, 1])
    images = found_images(scores, owners, text_to_image_ranks(scores, owners), k=5)
    assert [one.rank for one in images] == [0, 0, 1]  # the third text ties with a wrong picture
    third = images[2].neighbours
    assert [(n.candidate, n.score, n.right) for n in third] == [(0, 1.0, False), (1, 1.0, True)]
    texts = found_texts(scores, owners, image_to_text_ranks(scores, owners), k=1)
    assert [[n.candidate for n in one.neighbours] for one in texts] == [[1], [0]]


def test_the_shown_place_of_the_right_answer_is_its_rank() -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 3, (5, 9)).astype(np.float64)
    owners = np.array([0, 1, 2, 3, 4, 0, 1, 1, 3])
    for found in (
        found_images(scores, owners, text_to_image_ranks(scores, owners), k=9),
        found_texts(scores, owners, image_to_text_ranks(scores, owners), k=9),
    ):
        for one in found:
            assert [n.right for n in one.neighbours].index(True) == one.rank
            assert one.neighbours[one.rank] == one.right


def test_examples_are_spread_evenly() -> None:
    ranks = Ranks(pessimistic=np.arange(10), optimistic=np.arange(10))
    found = found_images(np.eye(10), np.arange(10), ranks, k=1)
    assert [one.query for one in evenly(found, 4)] == [0, 3, 6, 9]
    assert [one.query for one in evenly(found[:2], 4)] == [0, 1]
    assert evenly([], 4) == []


def test_percent_rounds_halves_up() -> None:
    assert [percent(share) for share in (0.0, 0.0005, 0.1234, 1.0)] == [
        "0.0",
        "0.1",
        "12.3",
        "100.0",
    ]
