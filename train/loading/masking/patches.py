"""Masks image patches block-wise, as BEiT does (arXiv:2106.08254, sec. 2.3, algorithm 1)."""

import math
from dataclasses import dataclass

import numpy as np

from vlmill.train.loading.arrays import Flags
from vlmill.train.loading.random import Draws

ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class BlockMasking:
    """Masks ``patches`` of a ``grid`` x ``grid`` image in blocks of ``smallest`` to ``largest``.

    ``aspect`` is the lower bound of height / width, and its inverse the upper bound. VLMo's first
    stage has these values. The count is never exceeded and falls short in about a third of the
    masks.
    """

    grid: int = 14
    patches: int = 75
    smallest: int = 16
    largest: int | None = None  # bounded by ``patches`` only
    aspect: float = 0.3

    @staticmethod
    def for_grid(grid: int) -> "BlockMasking":
        """Returns the same shares for another grid; for 14 x 14 the default values."""
        like = BlockMasking()
        share = (grid / like.grid) ** 2
        smallest = max(int(like.smallest * share), 1)
        return BlockMasking(grid=grid, patches=round(like.patches * share), smallest=smallest)

    def draw(self, draws: Draws) -> Flags:
        """Returns a random mask of the patches [grid, grid]."""
        mask = np.zeros((self.grid, self.grid), dtype=np.bool_)
        while left := self.patches - int(mask.sum()):
            if not self._add_block(mask, min(left, self.largest or self.patches), draws):
                break
        return mask

    def _add_block(self, mask: Flags, max_patches: int, draws: Draws) -> bool:
        """Masks a block with 1 to ``max_patches`` new patches; returns False if none fits."""
        for _ in range(ATTEMPTS):
            # Below ``smallest`` the interval is reversed, as in the published code.
            area = self.smallest + (max_patches - self.smallest) * draws.random()
            widest = -math.log(self.aspect)
            ratio = math.exp(-widest + 2 * widest * draws.random())
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height >= self.grid or width >= self.grid:
                continue
            top = int(draws.integers(0, self.grid - height + 1))
            left = int(draws.integers(0, self.grid - width + 1))
            block = mask[top : top + height, left : left + width]
            if 0 < block.size - int(block.sum()) <= max_patches:
                block[:] = True
                return True
        return False
