"""Builds VCR's inputs as ViLBERT and InterBERT do: text with names, regions of two origins.

T tokens, N detected and M annotated regions with the whole picture's before each, D feature width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmill.train.loading.arrays import Array

Words = Sequence[str | Sequence[int]]

CLS, SEP = "[CLS]", "[SEP]"


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """Holds two texts in one: ``tokens`` [T] with [CLS] and [SEP], ``segments`` [T] 0 or 1."""

    tokens: list[str]
    segments: list[int]


def name_objects(words: Words, names: Sequence[str]) -> list[str]:
    """Returns words with the objects' names in place of references, which are lists of their
    numbers.
    """
    named: list[str] = []
    for word in words:
        named.extend([word] if isinstance(word, str) else [names[i] for i in word])
    return named


def cut_pair(first: Sequence[str], second: Sequence[str], longest: int) -> tuple[int, int]:
    """Returns how many tokens stay of each, so that both have at most ``longest`` together.

    Token by token from the end of the longer one, of the second where they are equal.
    """
    num_first, num_second = len(first), len(second)
    while num_first + num_second > max(longest, 0):
        if num_first > num_second:
            num_first -= 1
        else:
            num_second -= 1
    return num_first, num_second


def choice_texts(
    first: Sequence[str],
    choices: Sequence[Sequence[str]],
    *,
    max_tokens: int,
    shared_cut: bool = False,
) -> list[TextPair]:
    """Returns [CLS] first [SEP] choice [SEP] for each choice, at most ``max_tokens``.

    ``shared_cut``: what is cut from the first text for one choice stays cut for the later ones, as
    in the released code, which shortens it in place.
    """
    texts: list[TextPair] = []
    for choice in choices:
        num_first, num_choice = cut_pair(first, choice, max_tokens - 3)
        if shared_cut:
            first = first[:num_first]
        tokens = [CLS, *first[:num_first], SEP, *choice[:num_choice], SEP]
        texts.append(
            TextPair(tokens=tokens, segments=[0] * (num_first + 2) + [1] * (num_choice + 1))
        )
    return texts


def merge_regions(
    detected: tuple[Array, Array], annotated: tuple[Array, Array], max_regions: int
) -> tuple[Array, Array]:
    """Merges the features and locations of the detected regions, then of the annotated ones.

    Each is (features [N + 1, D], locations [N + 1, 5]) with the whole picture first; so is the
    result, of at most ``max_regions`` rows. Annotated regions have the right of way. The picture's
    feature is the mean of the two, weighted with the rows of each.
    """
    rows = len(detected[0]), len(annotated[0])
    num_annotated = min(max_regions - 1, rows[1] - 1)
    num_detected = min(max_regions - num_annotated, rows[0])
    features = np.concatenate([detected[0][:num_detected], annotated[0][1 : num_annotated + 1]])
    weighted = detected[0][0] * rows[0] + annotated[0][0] * rows[1]
    features[0] = weighted / sum(rows)
    return features, np.concatenate(
        [detected[1][:num_detected], annotated[1][1 : num_annotated + 1]]
    )
