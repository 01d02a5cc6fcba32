"""Which pairs a caption is told from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vlmill.schemas.errors import InputError
from vlmill.train.loading.random import Uniforms
from vlmill.train.tasks.retrieval.settings import RetrievalSettings
from vlmill.train.tasks.retrieval.task import draw_candidates

ALL = np.arange(8)  # rows, two captions an image
ALIGNMENT = RetrievalSettings(negatives="alignment")


class Captions:
    """Eight captions of four images; the sixth has the words of the first."""

    image_keys = np.arange(8) // 2
    text_keys = np.array([10, 11, 12, 13, 14, 10, 16, 17])

    def pair_id(self, row: int) -> str:
        return f"pair-{row}"


class Pairs:
    """What drawing asks of a stage: near each image lies the last one."""

    def __init__(self, *, near: int | None = 7) -> None:
        self.table, self.near = Captions(), near

    def matches(self, text_row: int, image_row: int) -> bool:
        table = self.table
        images = table.image_keys[table.text_keys == table.text_keys[text_row]]
        return bool((images == table.image_keys[image_row]).any())

    def near_caption(self, row: int, draws: object) -> int | None:
        return self.near


def drawn(row: int, settings: RetrievalSettings, pool: Any = ALL, **pairs: Any) -> Any:
    """Candidates of a row for 200 streams, as (text_row, image_row)."""
    stage: Any = Pairs(**pairs)
    return [
        [tuple(one) for one in draw_candidates(row, pool, stage, Uniforms(seed), settings)]
        for seed in range(200)
    ]


def test_alignment_takes_a_near_images_caption_another_caption_and_another_image() -> None:
    texts, images = Counter[int](), Counter[int]()
    for own, near, text, image in drawn(2, ALIGNMENT):
        assert own == (2, 2) and near == (7, 2)
        assert text[1] == 2 and image[0] == 2
        texts[text[0]] += 1
        images[image[1]] += 1
    # Captions and images of all others, none of its own, and no caption twice.
    assert set(texts) == {0, 1, 4, 5, 6} and set(images) == {0, 1, 4, 5, 6, 7}


def test_without_near_images_there_are_two_other_captions() -> None:
    settings = replace(ALIGNMENT, nearest=False)
    for candidates in [*drawn(2, settings), *drawn(2, ALIGNMENT, near=None)]:
        (one, image), (other, _) = candidates[1:3]
        assert image == 2 and one not in (2, 3)
        assert Captions.text_keys[one] != Captions.text_keys[other]


@pytest.mark.parametrize("negatives", ["texts", "pictures", "both"])
def test_negatives_are_of_one_kind_and_none_comes_twice(negatives: Any) -> None:
    settings = RetrievalSettings(negatives=negatives, num_candidates=4)
    kinds = Counter[str]()
    for own, *others in drawn(2, settings):
        assert own == (2, 2)
        if others[0][1] == 2:
            kinds["texts"] += 1
            words = [Captions.text_keys[text] for text, _ in others]
            assert all(image == 2 for _, image in others)
            assert len(set(words)) == 3 and not {12, 13} & set(words)
        else:
            kinds["pictures"] += 1
            assert {image // 2 for _, image in others} == {0, 2, 3}
    expected = {"texts", "pictures"} if negatives == "both" else {negatives}
    assert set(kinds) == expected
    assert negatives != "both" or 70 < kinds["texts"] < 130


def test_a_caption_of_another_image_with_the_same_words_is_no_negative() -> None:
    of_texts = RetrievalSettings(negatives="texts", num_candidates=2)
    assert all(text not in (0, 1, 5) for _, (text, _) in drawn(0, of_texts))
    of_images = RetrievalSettings(negatives="pictures", num_candidates=2)
    assert all(image // 2 not in (0, 2) for _, (_, image) in drawn(0, of_images))


def test_too_few_negatives_are_told_with_the_pair() -> None:
    settings = RetrievalSettings(negatives="pictures", num_candidates=4)
    with pytest.raises(InputError, match=r"pair-2 finds 1 of the 3 negatives .* among 4 pairs"):
        drawn(2, settings, pool=np.array([2, 3, 6, 7]))


def test_the_only_negative_of_many_pairs_is_found() -> None:
    """By chance it would be missed: 64 draws of 5,000."""
    settings = RetrievalSettings(negatives="texts", num_candidates=2)
    pool = np.append(np.full(5000, 2), 6)
    assert {candidates[1] for candidates in drawn(2, settings, pool=pool)} == {(6, 2)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_candidates": 3}, "negatives=alignment has 4"),
        ({"negatives": "both", "num_candidates": 1}, "expected at least 2"),
        ({"losses": ()}, "expected at least one"),
        ({"losses": ("binary", "binary")}, "each named once"),
        ({"margin": 2.0}, "from 0 to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RetrievalSettings(**fields)
