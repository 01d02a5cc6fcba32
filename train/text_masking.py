"""Masking of a batch's texts by a stage's rule.  T tokens of a text, N of all texts."""

from collections.abc import Sequence

import numpy as np

from vlmill.train.draws import Uniforms
from vlmill.train.masking import (
    Flags,
    Ids,
    MaskedTokens,
    Replacement,
    mask_drawn,
    one_span,
    replace_masked,
    segments,
    whole_words,
)
from vlmill.train.recipes.base import Masking
from vlmill.train.samples import Lexicon


def mask_texts(
    texts: Sequence[Ids],
    draws: Sequence[Uniforms],
    masking: Masking,
    lexicon: Lexicon,
    *,
    longest: int,
    specials: bool = True,
) -> list[MaskedTokens]:
    """Mask [CLS] text [SEP] (or, without ``specials``, texts alone) by the stage's rule.

    ``longest`` is what a text may have, of which VLMo's code takes its share.
    """
    if masking.word_rule not in ("tokens", "words"):
        return [
            _mask_text(text, own, masking, lexicon, longest=longest, specials=specials)
            for text, own in zip(texts, draws, strict=True)
        ]
    ends = np.cumsum([len(text) for text in texts])
    tokens = np.concatenate(texts)
    maskable = np.ones(len(tokens), dtype=np.bool_)
    if specials:
        maskable[ends - 1] = maskable[ends[:-1]] = maskable[:1] = False
    first = np.ones_like(maskable)
    if masking.word_rule == "words":
        first = ~(lexicon.continues[tokens] & maskable)
        first[1:] |= ~maskable[:-1]
        first[ends[:-1]] = True
    # Two numbers for each token: what becomes of it, and which word a random one is.
    drawn = np.concatenate(
        [own.many(2 * len(text)) for text, own in zip(texts, draws, strict=True)]
    )
    masked = mask_drawn(
        tokens,
        maskable,
        first,
        drawn.reshape(-1, 2),
        share=masking.words,
        replacement=_replacement(masking, lexicon),
    )
    starts = [0, *ends[:-1].tolist()]
    return [
        MaskedTokens(tokens=masked.tokens[start:end], masked=masked.masked[start:end])
        for start, end in zip(starts, ends.tolist(), strict=True)
    ]


def _mask_text(
    tokens: Ids,
    draws: Uniforms,
    masking: Masking,
    lexicon: Lexicon,
    *,
    longest: int,
    specials: bool,
) -> MaskedTokens:
    maskable = np.ones(len(tokens), dtype=np.bool_)
    if specials:
        maskable[0] = maskable[-1] = False
    share = masking.words
    masked = np.zeros(len(tokens), dtype=np.bool_)
    count = int(maskable.sum())
    if masking.word_rule == "segments":
        masked[maskable] = segments(count, draws, anchor_share=share)
    elif masking.word_rule == "span":
        masked[maskable] = one_span(count, draws)
    else:
        masked = _by_budget(tokens, maskable, draws, share, lexicon, longest)
    return replace_masked(tokens, masked, draws, _replacement(masking, lexicon))


def _replacement(masking: Masking, lexicon: Lexicon) -> Replacement:
    return Replacement(
        mask_id=lexicon.mask_id,
        vocab_size=lexicon.size,
        to_mask=masking.word_to_mask,
        to_random=masking.word_to_random,
    )


def _by_budget(
    tokens: Ids, maskable: Flags, draws: Uniforms, share: float, lexicon: Lexicon, longest: int
) -> Flags:
    padding = max(longest - len(tokens), 0)
    continues = [*lexicon.continues[tokens].tolist(), *[False] * padding]
    blocked = [*(~maskable).tolist(), *[False] * padding]
    chosen = whole_words(continues, blocked, draws, share=share)[: len(tokens)]
    special = np.isin(tokens, list(lexicon.specials))
    flags: Flags = chosen & ~special
    return flags
