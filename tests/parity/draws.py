"""Sources of random numbers that give what a run of the published code drew."""

import random
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from tests.parity.golden import NotComparable, expect

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.masking.words import MaskedTokens, Replacement
from vlmill.train.loading.random import Numbers, Uniforms
from vlmill.train.settings.parts import Masking


class Recorded(Uniforms):
    """Numbers from lists: uniform ones, and integers of any range, each list to its end."""

    def __init__(self, uniforms: Iterable[float] = (), integers: Iterable[int] = ()) -> None:
        self.uniforms, self.whole = list(uniforms), list(integers)

    def random(self) -> float:
        expect(self.uniforms, "a number is drawn here that the recording has not drawn")
        return float(self.uniforms.pop(0))

    def many(self, count: int) -> Numbers:
        return np.array([self.random() for _ in range(count)])

    def integers(self, low: int, high: int) -> int:
        expect(self.whole, "an integer is drawn here that the recording has not drawn")
        value = int(self.whole.pop(0))
        expect(low <= value < high, f"a recorded draw is {value}, ours is from {low} to {high - 1}")
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


def collator_row(
    length: int, replacement: Replacement, generator: torch.Generator
) -> tuple[npt.NDArray[np.float64], Numbers]:
    """What the collator of `transformers` draws for a row: each token's fate, and a random id."""
    shape = (1, length)
    is_mask, is_other = (
        torch.bernoulli(torch.full(shape, share), generator=generator).bool()[0].numpy()
        for share in (replacement.to_mask, replacement.to_random / (1 - replacement.to_mask))
    )
    ids = torch.randint(replacement.vocab_size, shape, generator=generator)[0].numpy()
    unchanged = replacement.to_mask + replacement.to_random
    other = np.where(is_other, replacement.to_mask, unchanged)
    return np.where(is_mask, 0.0, other), ids


def collator_draws(masked: Flags, replacement: Replacement, generator: torch.Generator) -> Recorded:
    """What the collator draws for a whole row, as single draws of its masked tokens."""
    fates, ids = collator_row(len(masked), replacement, generator)
    is_random = (fates >= replacement.to_mask) & (
        fates < replacement.to_mask + replacement.to_random
    )
    return Recorded(fates[masked].tolist(), ids[masked & is_random].tolist())


def labels_of(text: MaskedTokens, ignored: int) -> Ids:
    """Gives what is to be guessed as the recordings have it: a label for each token [T].

    A run has the places alone and what stood there.
    """
    return np.where(text.masked, text.original, ignored)
