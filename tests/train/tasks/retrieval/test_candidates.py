"""What is ranked and what was found: pairs left out, texts cut, orders that never flatter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS
from vlmill.train.loading.store.pairs import summarise_pairs
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer, encode_texts
from vlmill.train.tasks.retrieval.candidates import Pair, read_pairs, select_candidates
from vlmill.train.tasks.retrieval.examples import (
    evenly,
    examples,
    nearest_images,
    nearest_texts,
    neighbours_json,
)
from vlmill.train.tasks.retrieval.inputs import text_batches
from vlmill.train.tasks.retrieval.metrics import Ranks, image_to_text_ranks, text_to_image_ranks

CPU = torch.device("cpu")


def random_texts(count: int, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 30, generator.integers(1, 9)) for _ in range(count)]


def pairs_of(*rows: tuple[str, str | None]) -> list[Pair]:
    """Pairs by their ids and images."""
    return [Pair(pair_id=key, image_id=image, text="a dog") for key, image in rows]


def test_pairs_are_kept_in_their_order_or_rejected_with_a_reason() -> None:
    pairs = pairs_of(("p", "b"), ("q", "a"), ("r", "b"), ("s", None), ("t", "c"), ("u", "a"))
    tokens = [np.arange(n) for n in (4, 3, 5, 4, 4, 2)]
    candidates, rejects = select_candidates(pairs, tokens, {"c": Reason.NOT_FINITE})
    assert [pair.pair_id for pair in candidates.pairs] == ["p", "q", "r"]
    assert candidates.image_ids == ("b", "a") and candidates.owners.tolist() == [0, 1, 0]
    assert [len(text) for text in candidates.tokens] == [4, 3, 5]
    assert {row["key"]: row["reason"] for row in rejects} == {
        "s": "no_picture",
        "t": "not_finite",
        "u": "no_text",
    }


def test_of_a_pair_id_that_comes_again_the_first_pair_counts() -> None:
    tokens = [np.arange(n) for n in (4, 3, 5, 4)]
    pairs = pairs_of(("p", "b"), ("q", "b"), ("p", "a"), ("q", "b"))
    candidates, rejects = select_candidates(pairs, tokens, {})
    assert [(pair.pair_id, pair.image_id) for pair in candidates.pairs] == [("p", "b"), ("q", "b")]
    assert [(row["key"], row["reason"]) for row in rejects] == [
        ("p", "duplicate"),
        ("q", "duplicate"),
    ]


def test_the_table_is_read_once_for_pairs_and_digest(tmp_path: Path) -> None:
    empty = dict.fromkeys(PAIRS.schema.names)
    rows = [
        {**empty, "pair_id": f"p{i}", "image_id": "a", "text": f"dog {i}", "split": split}
        for i, split in enumerate(["test", None, "train", "test"])
    ]
    write_shard(tmp_path, PAIRS, rows)
    digest = summarise_pairs(str(tmp_path)).digest
    whole, some = read_pairs(str(tmp_path)), read_pairs(str(tmp_path), "test")
    assert whole.digest == some.digest == digest
    assert len(whole.pairs) == 4 and [pair.text for pair in some.pairs] == ["dog 0", "dog 3"]
    with pytest.raises(InputError, match="its splits are None, test, train"):
        read_pairs(str(tmp_path), "dev")


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
    texts = encode_texts(tokenizer, ["A b", "a a a b b b"], max_tokens=5)
    (short, long) = texts.tokens
    assert texts.cut == 1
    assert short.tolist() == [2, 5, 6, 3]
    assert long.tolist() == [2, 5, 5, 5, 3]
    assert len(tokenizer.encode("a a a b b b").ids) == 8


def test_nearest_by_hand() -> None:
    scores = np.array([[0.0, 3.0, 1.0], [2.0, 1.0, 1.0]])
    owners = np.array([1, 0, 1])
    images = nearest_images(scores, owners, text_to_image_ranks(scores, owners), k=5)
    assert [outcome.rank for outcome in images] == [
        0,
        0,
        1,
    ]  # the third text ties with a wrong image
    third = images[2].neighbours
    assert [(n.candidate, n.score, n.right) for n in third] == [(0, 1.0, False), (1, 1.0, True)]
    texts = nearest_texts(scores, owners, image_to_text_ranks(scores, owners), k=1)
    assert [[n.candidate for n in outcome.neighbours] for outcome in texts] == [[1], [0]]


def test_the_shown_place_of_the_right_answer_is_its_rank() -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 3, (5, 9)).astype(np.float64)
    owners = np.array([0, 1, 2, 3, 4, 0, 1, 1, 3])
    for outcomes in (
        nearest_images(scores, owners, text_to_image_ranks(scores, owners), k=9),
        nearest_texts(scores, owners, image_to_text_ranks(scores, owners), k=9),
    ):
        for outcome in outcomes:
            assert [n.right for n in outcome.neighbours].index(True) == outcome.rank
            assert outcome.neighbours[outcome.rank] == outcome.right


def test_examples_are_the_surest_the_furthest_off_and_some_spread_evenly() -> None:
    # The texts' own images are 0 to 5; by rank, then by how far they are from the next.
    scores = np.zeros((6, 6))
    scores[range(6), range(6)] = [5.0, -1.0, 3.0, 9.0, 0.5, -2.0]
    outcomes = nearest_images(scores, np.arange(6), text_to_image_ranks(scores, np.arange(6)), k=2)
    chosen = examples(outcomes, 2)
    assert [outcome.query for outcome in chosen.best] == [3, 0]
    assert [(outcome.query, outcome.rank, outcome.margin) for outcome in chosen.worst] == [
        (5, 5, -2),
        (1, 5, -1),
    ]
    assert [outcome.query for outcome in chosen.spread] == [0, 5]
    for count in range(7):
        few = examples(outcomes[:count], 4)
        shown = [outcome.query for outcome in (*few.best, *few.worst)]
        assert len(set(shown)) == len(shown) == min(count, 8)


def test_what_is_right_is_never_furthest_off_nor_what_is_wrong_surest() -> None:
    for scores, kind in ((np.eye(3), "worst"), (np.eye(3)[[1, 2, 0]], "best")):
        outcomes = nearest_images(
            scores, np.arange(3), text_to_image_ranks(scores, np.arange(3)), k=1
        )
        chosen = examples(outcomes, 4)
        assert getattr(chosen, kind) == () and len(chosen.best) + len(chosen.worst) == 3


def test_examples_are_spread_evenly() -> None:
    ranks = Ranks(pessimistic=np.arange(10), optimistic=np.arange(10))
    outcomes = nearest_images(np.eye(10), np.arange(10), ranks, k=1)
    assert [outcome.query for outcome in evenly(outcomes, 4)] == [0, 3, 6, 9]
    assert [outcome.query for outcome in evenly(outcomes[:2], 4)] == [0, 1]
    assert evenly([], 4) == []


def test_what_stands_behind_a_shortlist_is_told_with_its_own_score() -> None:
    pairs = pairs_of(("p", "a"), ("q", "b"))
    candidates, _ = select_candidates(pairs, [np.arange(4)] * 2, {})
    scores = np.array([[2.5, 0.25 - 1e6], [1.5, 7.0]])
    owners = candidates.owners
    by_text = nearest_images(scores, owners, text_to_image_ranks(scores, owners), k=2)
    told = neighbours_json(candidates, by_text, [])["image_retrieval"][1]
    assert told["neighbours"] == [
        {"image_id": "b", "score": 7.0, "right": True},
        {"image_id": "a", "score": 0.25, "right": False, "listed": False},
    ]
