"""Swaps left and right in the text of a mirrored image (VL-BERT's code)."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from tokenizers import Tokenizer

from vlmill.train.loading.masking.words import MaskedTokens


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
