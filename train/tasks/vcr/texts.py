"""Builds VCR's texts as ViLBERT and InterBERT do: with names, cut together.

T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
