"""Builds the input texts of VL-BERT's tasks: padded batches from token ids, and mirrored texts.

B texts, T tokens of the longest.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from tokenizers import Tokenizer
from torch import Tensor

from vlmill.train.loading.masking.words import MaskedTokens


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Holds a vocabulary's special tokens; the defaults are BERT's, uncased."""

    cls: int = 101
    sep: int = 102
    mask: int = 103


@dataclass(frozen=True, kw_only=True)
class TaskText:
    """Holds a batch of texts, padded with 0. ``text_regions``: the region that a token refers to;
    ``answers``: the position of [MASK], if the text has one.
    """

    tokens: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"]
    text_regions: Int[Tensor, "B T"]
    answers: Int[Tensor, " B"] | None = None


Row = tuple[list[int], list[int], list[int]]  # ids, segments, regions


def vqa_text(questions: Sequence[Sequence[int]], ids: SpecialIds) -> TaskText:
    """Returns ``[CLS] question [SEP] [MASK] [SEP]``; the last two are segment B."""
    rows = [_row([ids.cls, *text, ids.sep], [ids.mask, ids.sep]) for text in questions]
    answers = torch.tensor([len(text) + 2 for text in questions], dtype=torch.int64)
    padded = _padded(rows)
    return TaskText(
        tokens=padded.tokens,
        token_mask=padded.token_mask,
        segments=padded.segments,
        text_regions=padded.text_regions,
        answers=answers,
    )


def vcr_text(
    pairs: Sequence[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]],
    ids: SpecialIds,
    *,
    one_sentence: bool = False,
) -> TaskText:
    """Returns ``[CLS] question [SEP] choice [SEP]``, the choice segment B.

    Each token comes with the row of the region that it refers to, 0 for none in particular.
    ``one_sentence`` (the released code's QA_ONE_SENT): ``[CLS] question choice [SEP]``, segment A.
    """
    cls, sep = (ids.cls, 0), (ids.sep, 0)
    rows = []
    for question, choice in pairs:
        first, second = [cls, *question, sep], [*choice, sep]
        if one_sentence:
            first, second = [cls, *question, *choice, sep], []
        text = _row([piece for piece, _ in first], [piece for piece, _ in second])
        rows.append((*text[:2], [region for _, region in [*first, *second]]))
    return _padded(rows)


def _row(first: list[int], second: Sequence[int] = ()) -> Row:
    return [*first, *second], [0] * len(first) + [1] * len(second), [0] * len([*first, *second])


def _padded(rows: Sequence[Row]) -> TaskText:
    longest = max((len(ids) for ids, _, _ in rows), default=0)
    tokens, segments, regions = (
        torch.tensor(
            [[*row[part], *[0] * (longest - len(row[part]))] for row in rows], dtype=torch.int64
        ).view(len(rows), longest)
        for part in range(3)
    )
    lengths = torch.tensor([len(ids) for ids, _, _ in rows], dtype=torch.int64)
    return TaskText(
        tokens=tokens,
        token_mask=torch.arange(longest) < lengths[:, None],
        segments=segments,
        text_regions=regions,
    )


def find_sides(words: Tokenizer) -> dict[int, int]:
    """Returns which token replaces which; empty where the vocabulary lacks a side."""
    ids = words.get_vocab()
    if "left" not in ids or "right" not in ids:
        return {}
    return {ids["left"]: ids["right"], ids["right"]: ids["left"]}


def mirrored_text(text: MaskedTokens, sides: Mapping[int, int]) -> MaskedTokens:
    """Returns the text with its sides exchanged."""
    tokens = np.array([sides.get(token, token) for token in text.tokens.tolist()])
    return dataclasses.replace(text, original=tokens, tokens=tokens)
