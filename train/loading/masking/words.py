"""Cuts texts, and masks words by pure functions of random numbers. T tokens, W words.

Every rule samples in the order of the published code, one number at a time, so that a test can pass
it the numbers of a run of that code. ``mask_texts`` processes a whole batch, with N tokens in all
texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.random import Draws, Uniforms
from vlmill.train.loading.vocabulary import CLS, MASK, PAD, SEP, UNK
from vlmill.train.settings.parts import Masking


@dataclass(frozen=True, kw_only=True)
class MaskedTokens:
    """Holds a text [T] before and after masking; ``masked`` flags the tokens to predict."""

    original: Ids
    tokens: Ids
    masked: Flags


NO_TEXT = MaskedTokens(
    original=np.empty(0, dtype=np.int64),
    tokens=np.empty(0, dtype=np.int64),
    masked=np.empty(0, dtype=np.bool_),
)


def cut_tokens(tokens: Ids, longest: int | None) -> Ids:
    """Returns at most ``longest`` tokens of [CLS] text [SEP], the [SEP] kept."""
    if longest is None or len(tokens) <= longest:
        return tokens
    return tokens[select_tokens(len(tokens), longest)]


def cut_text(text: MaskedTokens, longest: int) -> MaskedTokens:
    """Returns at most ``longest`` tokens of a masked text, including the last one, the [SEP]."""
    if len(text.tokens) <= longest:
        return text
    positions = select_tokens(len(text.tokens), longest)
    return MaskedTokens(
        original=text.original[positions],
        tokens=text.tokens[positions],
        masked=text.masked[positions],
    )


def select_tokens(count: int, num_kept: int) -> Ids:
    """Returns the positions of ``num_kept`` of ``count`` tokens: the first ones, and the last, the
    [SEP].
    """
    return np.append(np.arange(num_kept - 1), count - 1).astype(np.int64)


def joined_texts(texts: Iterable[Ids], longest: int) -> Ids:
    """Joins texts of [CLS] ... [SEP] without these; returns the first ``longest`` tokens.

    VL-BERT's code joins lines until they have ``longest`` words, and cuts the result to ``longest``
    tokens. A word has one or more tokens, so the result is the same, and no line after these tokens
    is read. At most ``longest`` texts are read: all may be empty.
    """
    pieces, count = list[Ids](), 0
    for text in islice(texts, longest):
        pieces.append(text[1:-1])
        count += len(pieces[-1])
        if count >= longest:
            break
    return np.concatenate(pieces)[:longest]


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Holds the shares of masked tokens: ``to_mask`` [MASK], ``to_random`` any id, the rest stays.

    The shares are BERT's (Devlin et al. 2018, sec. 3.1), which all five papers use. Random ids are
    from the whole vocabulary, special and unused entries included.
    """

    mask_id: int
    vocab_size: int
    to_mask: float = 0.8
    to_random: float = 0.1

    def replace_token(self, token: int, fate: float, draws: Draws) -> int:
        """Returns the model's input for a masked token whose ``fate`` was sampled from [0, 1)."""
        if fate < self.to_mask:
            return self.mask_id
        if fate < self.to_mask + self.to_random:
            return int(draws.integers(0, self.vocab_size))
        return token


def mask_drawn(
    tokens: Ids,
    maskable: Flags,
    first: Flags,
    drawn: npt.NDArray[np.float64],
    *,
    share: float,
    replacement: Replacement,
) -> MaskedTokens:
    """Masks words with chance ``share`` in many texts: tokens [N], words begin at ``first`` [N].

    All tokens of a word have one fate (VL-BERT, 15 %). Where every token is a word this is BERT's
    masking, which ViLBERT (its code), ImageBERT and InterBERT without segments use. Special tokens
    are not ``maskable`` [N]. Two numbers from [0, 1) are ``drawn`` [N, 2] for each token. The first
    one of a word's first token is the word's fate: it is masked below ``share``, and the number
    divided by ``share`` selects the type of replacement. The second one of each token selects its
    random replacement.
    """
    positions = np.arange(len(tokens))
    fates = drawn[np.maximum.accumulate(np.where(first, positions, 0)), 0]
    masked = maskable & (fates < share)
    masked_positions = np.flatnonzero(masked)
    fate = fates[masked_positions] / max(share, np.finfo(np.float64).tiny)
    random_tokens = (drawn[masked_positions, 1] * replacement.vocab_size).astype(np.int64)
    unchanged = fate >= replacement.to_mask + replacement.to_random
    input_tokens = tokens.astype(np.int64)
    input_tokens[masked_positions] = np.where(
        fate < replacement.to_mask,
        replacement.mask_id,
        np.where(unchanged, tokens[masked_positions], random_tokens),
    )
    return MaskedTokens(original=tokens, tokens=input_tokens, masked=masked)


def replace_masked(
    tokens: Ids, masked: Flags, draws: Draws, replacement: Replacement
) -> MaskedTokens:
    """Replaces ``masked`` tokens of T, chosen before; uses one number for each, in order."""
    input_tokens = tokens.astype(np.int64)
    for i in np.flatnonzero(masked).tolist():
        input_tokens[i] = replacement.replace_token(int(tokens[i]), draws.random(), draws)
    return MaskedTokens(original=tokens, tokens=input_tokens, masked=masked.astype(np.bool_))


def segments(
    count: int, draws: Draws, *, anchor_share: float = 0.10, max_further: int = 2
) -> Flags:
    """Selects tokens by InterBERT's masked segment modelling, as described in its paper.

    Each token is an anchor with chance ``anchor_share`` and is masked with the next 0 to
    ``max_further`` tokens (equal chances), as far as they exist; segments may overlap.
    """
    masked = np.zeros(count, dtype=np.bool_)
    for i in range(count):
        if draws.random() < anchor_share:
            masked[i : i + 1 + int(draws.integers(0, max_further + 1))] = True
    return masked


def one_span(count: int, draws: Draws) -> Flags:
    """Selects one span of up to ``count`` tokens, as InterBERT's released code does.

    Captions of up to three tokens stay unmasked. The start may be the position after the last
    token, and the span ends with the caption, so that often less than its length is masked.
    """
    masked = np.zeros(count, dtype=np.bool_)
    if int(0.3 * count):
        start = int(draws.integers(0, count + 1))
        length = int(draws.integers(1, count + 1))
        masked[start : start + length] = True
    return masked


def whole_words(
    continues: Sequence[bool], blocked: Sequence[bool], draws: Draws, *, share: float
) -> Flags:
    """Selects whole words of T tokens, as VLMo's code does before it drops special ones.

    Token i belongs to the word before it where ``continues[i]``; ``blocked`` are [CLS] and [SEP].
    Each padding token counts as a word. The budget of ``share`` of T (at least 1, halves to even)
    is therefore based on the padded length unless only the caption itself is given. Words come in
    random order; one that would exceed the budget is skipped.
    """
    words: list[list[int]] = []
    for i in (i for i, is_blocked in enumerate(blocked) if not is_blocked):
        if continues[i] and words:
            words[-1].append(i)
        else:
            words.append([i])
    order, masked = list(range(len(words))), np.zeros(len(blocked), dtype=np.bool_)
    draws.shuffle(order)
    left = max(1, round(share * len(blocked)))
    for word in (words[i] for i in order):
        if not left:
            break
        if len(word) <= left:
            masked[word] = True
            left -= len(word)
    return masked


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Holds the facts about a vocabulary of V tokens that masking needs.

    ``continues`` [V]: tokens that continue a word (``##``). ``specials``: [PAD], [UNK], [CLS],
    [SEP] and [MASK], as far as they exist.
    """

    mask_id: int
    size: int
    continues: Flags
    specials: frozenset[int]

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer) -> "Lexicon":
        """Makes the lexicon of a tokenizer."""
        size = tokenizer.get_vocab_size()
        words = [tokenizer.id_to_token(i) or "" for i in range(size)]
        ids = [tokenizer.token_to_id(name) for name in (PAD, UNK, CLS, SEP, MASK)]
        assert ids[-1] is not None  # each function that makes a tokenizer checks this
        return Lexicon(
            mask_id=ids[-1],
            size=size,
            continues=np.array([word.startswith("##") for word in words]),
            specials=frozenset(i for i in ids if i is not None),
        )


def mask_texts(
    texts: Sequence[Ids],
    draws: Sequence[Uniforms],
    masking: Masking,
    lexicon: Lexicon,
    *,
    longest: int,
    specials: bool = True,
) -> list[MaskedTokens]:
    """Masks [CLS] text [SEP] (or, without ``specials``, only texts) by the stage's rule.

    ``longest`` is the maximum length of a text; VLMo's code computes its share from it.
    """
    if masking.word_rule not in ("tokens", "words"):
        return [
            _mask_text(text, text_draws, masking, lexicon, longest=longest, specials=specials)
            for text, text_draws in zip(texts, draws, strict=True)
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
    # Two numbers for each token: its fate, and the id of a random replacement.
    drawn = np.concatenate(
        [text_draws.many(2 * len(text)) for text, text_draws in zip(texts, draws, strict=True)]
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
        MaskedTokens(
            original=text, tokens=masked.tokens[start:end], masked=masked.masked[start:end]
        )
        for text, start, end in zip(texts, starts, ends.tolist(), strict=True)
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
