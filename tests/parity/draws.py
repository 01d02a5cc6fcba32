"""Sources of random numbers that give what a run of the published code drew."""

import random
from collections.abc import Iterable

import numpy as np
import torch
from tests.parity.golden import NotComparable

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.masking.words import MaskedTokens, Replacement
from vlmill.train.loading.random import Numbers, Uniforms
from vlmill.train.recipes.spec import Masking


class Recorded(Uniforms):
    """Numbers from lists: uniform ones, and integers of any range, each list to its end."""

    def __init__(self, uniforms: Iterable[float] = (), integers: Iterable[int] = ()) -> None:
        self.uniforms, self.whole = list(uniforms), list(integers)

    def random(self) -> float:
        return float(self.uniforms.pop(0))

    def many(self, count: int) -> Numbers:
        return np.array([self.random() for _ in range(count)])

    def integers(self, low: int, high: int) -> int:
        value = int(self.whole.pop(0))
        assert low <= value < high
        return value

    def shuffle(self, x: list[int]) -> None:
        raise NotComparable("no recording shuffles")

    def finish(self) -> None:
        """Complain of what was drawn then and not now."""
        if self.uniforms or self.whole:
            raise NotComparable(f"{len(self.uniforms) + len(self.whole)} recorded draws are left")


def laid_out(
    begins: Flags, maskable: Flags, draws: Recorded, masking: Masking, vocabulary_size: int
) -> Numbers:
    """What was drawn word by word as a run draws it, two numbers for each piece [T, 2].

    The first is the word's fate, where the piece ``begins`` a word; the second picks the id that
    the piece becomes, which was drawn only where it becomes any.
    """
    numbers, fate = np.zeros((len(begins), 2)), 1.0
    for i in np.flatnonzero(maskable).tolist():
        if begins[i]:
            fate = numbers[i, 0] = draws.random()
        other = fate / masking.words - masking.word_to_mask
        if fate < masking.words and 0 <= other < masking.word_to_random:
            numbers[i, 1] = (draws.integers(0, vocabulary_size) + 0.5) / vocabulary_size
    return numbers


class Python:
    """Python's own random numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def random(self) -> float:
        return self.source.random()

    def integers(self, low: int, high: int) -> int:
        return self.source.randrange(low, high)

    def shuffle(self, x: list[int]) -> None:
        self.source.shuffle(x)


def collator_draws(masked: Flags, replacement: Replacement, generator: torch.Generator) -> Recorded:
    """What the collator of `transformers` draws for a whole row, as single draws of its masked."""
    shape = (1, len(masked))
    is_mask, is_other = (
        torch.bernoulli(torch.full(shape, share), generator=generator).bool()[0].numpy()
        for share in (0.8, 0.5)
    )
    ids = torch.randint(replacement.vocab_size, shape, generator=generator)[0].numpy()
    is_random = is_other & ~is_mask
    fates = np.where(is_mask, 0.0, np.where(is_random, replacement.to_mask, 0.99))
    return Recorded(fates[masked].tolist(), ids[masked & is_random].tolist())


def labels_of(text: MaskedTokens, original: Ids, ignored: int) -> Ids:
    """What is to be guessed as the recordings have it: a label for each token, most of them none.

    A run has the places alone and what stood there.
    """
    labels = np.full_like(original, ignored)
    places = np.flatnonzero(text.masked)
    labels[places] = original[places]
    return labels
