"""What samples are cut and ordered by; parity with recordings stands in tests/parity."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.runtime.readers.regions import RegionRow
from vlmill.train.loading.boxes import Size, resized_boxes
from vlmill.train.loading.masking.words import joined_texts, select_tokens
from vlmill.train.loading.sample import kept_lengths, surest_first


@pytest.mark.parametrize(
    ("width", "height", "limits", "resized"),
    [(64, 48, (60, 100), (80, 60)), (1652, 938, (600, 1000), (998, 567))],
)
def test_sizes(width: int, height: int, limits: tuple[int, int], resized: tuple[int, int]) -> None:
    new = Size(width=width, height=height).resized(*limits)
    assert (new.width, new.height) == resized
    turned = Size(width=height, height=width).resized(*limits)
    assert (turned.height, turned.width) == resized


def test_mirrored_twice_is_not_mirrored() -> None:
    size = Size(width=30, height=30)
    low = np.random.default_rng(0).random((3, 2)) * 20
    boxes = np.concatenate([low, low + 5], axis=1).astype(np.float32)
    once = resized_boxes(boxes, size, size, mirrored=True)
    again = resized_boxes(once, size, size, mirrored=True)
    np.testing.assert_allclose(again, np.clip(boxes, 0, 29), atol=1e-5)


def ranked(row: RegionRow) -> list[int]:
    order = surest_first(row)
    assert order is not None
    return [int(place) for place in order]


def test_how_sure_the_detector_was() -> None:
    """Of any class, background included; of the class's score where only that is stored."""
    probs = np.array([[0.1, 0.5, 0.4], [0.9, 0.1, 0], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6]])
    scores = np.array([0.5, 0.1, 0.3, 0.6], np.float32)
    boxes = np.zeros((4, 4), np.float32)
    row = RegionRow(image_id="a", width=1, height=1, boxes=boxes, class_scores=scores)
    assert ranked(row) == [3, 0, 2, 1]
    for kind in (np.float16, np.float32):
        assert ranked(replace(row, class_probs=probs.astype(kind))) == [1, 3, 0, 2]
    assert surest_first(replace(row, class_scores=None)) is None
    assert ranked(replace(row, boxes=boxes[:0], class_probs=probs[:0])) == []


@given(st.integers(2, 80), st.integers(1, 110), st.integers(0, 100))
def test_what_is_kept_fits(tokens: int, regions: int, longest: int) -> None:
    kept, number = kept_lengths(tokens, regions, longest)
    assert 2 <= kept <= tokens and 1 <= number <= regions
    assert kept + number == min(tokens + regions, max(longest, 3))
    places = select_tokens(tokens, kept)
    assert len(places) == kept and places[-1] == tokens - 1 and (np.diff(places) > 0).all()


def test_lines_are_joined_until_they_are_long_enough() -> None:
    lines = [np.array([2, *range(10 * n, 10 * n + n), 3]) for n in (3, 2, 4)]
    assert joined_texts(iter([*lines, *lines]), 7).tolist() == [30, 31, 32, 20, 21, 40, 41]
    assert joined_texts(lines, 3).tolist() == [30, 31, 32]
    assert joined_texts([lines[1]] * 2, 3).tolist() == [20, 21, 20]
    assert joined_texts([np.array([2, 3])] * 9, 3).tolist() == []


WORDS = st.lists(st.integers(1, 4), min_size=1, max_size=9)  # of a line, by their pieces


@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(1, 12))
def test_joined_lines_are_those_of_the_code_that_counts_words(
    lines: list[list[int]], longest: int
) -> None:
    ends = np.cumsum([sum(words) for words in lines])
    pieces = [10 + np.arange(end - sum(words), end) for words, end in zip(lines, ends, strict=True)]
    joined, words, around = list[int](), 0, itertools.cycle(range(len(lines)))
    while words < longest:
        line = next(around)
        joined += pieces[line].tolist()
        words += len(lines[line])
    prepared = [np.array([2, *line[:longest], 3]) for line in pieces]
    assert joined_texts(itertools.cycle(prepared), longest).tolist() == joined[:longest]
