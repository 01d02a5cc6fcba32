"""Batches of random pairs for the models and their peers, masked as a recipe masks real ones.

B pairs, T tokens, R regions with the full image in row 0, D feature width, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vlmill.train.loading.masking.regions import mask_image
from vlmill.train.loading.masking.words import Lexicon, mask_texts
from vlmill.train.loading.random import Uniforms, streams
from vlmill.train.recipes import Masking

WORDS = 30_522
CLS, SEP, MASK = 101, 102, 103  # of BERT's vocabulary, as the numbers of words are
LEXICON = Lexicon(
    mask_id=MASK,
    size=WORDS,
    continues=np.zeros(WORDS, np.bool_),  # a random token begins a word
    specials=frozenset((0, 100, CLS, SEP, MASK)),
)
SIDE_PX = 600.0  # of every image, in which groups of regions overlap


@dataclass(frozen=True, kw_only=True)
class RegionWork:
    """B pairs for a pretraining step; row 0 of the R regions is the full image.

    tokens int64 [B, T], masked; lengths of texts and region lists, int64 [B]; features [B, R, D];
    locations [B, R, 5] as fractions; word_labels [B, T], -1 where nothing is to be guessed;
    masked_regions bool [B, R]; targets [B, R, K] class distributions; mismatched int64 [B].
    """

    tokens: Tensor
    text_lengths: Tensor
    features: Tensor
    locations: Tensor
    region_lengths: Tensor
    word_labels: Tensor
    masked_regions: Tensor
    targets: Tensor
    mismatched: Tensor

    def pair(self, at: int) -> "RegionWork":
        """Returns one pair by itself, without padding."""
        one = {name: tensor[at : at + 1] for name, tensor in vars(self).items()}
        words, rows = int(self.text_lengths[at]), int(self.region_lengths[at])
        for name in ("tokens", "word_labels"):
            one[name] = one[name][:, :words]
        for name in ("features", "locations", "masked_regions", "targets"):
            one[name] = one[name][:, :rows]
        return RegionWork(**one)


@dataclass(frozen=True, kw_only=True)
class PixelWork:
    """Holds B pairs: tokens and masked tokens [B, T], lengths [B], labels (-100: none), pixels."""

    tokens: Tensor
    masked_tokens: Tensor
    text_lengths: Tensor
    word_labels: Tensor
    pixels: Tensor


def mask_of(lengths: Tensor, width: int) -> Tensor:
    """Returns a mask that is true for the first ``lengths`` of ``width`` positions."""
    return torch.arange(width)[None] < lengths[:, None]


def own_draws(count: int) -> list[Uniforms]:
    """The random numbers of each of so many pairs, always the same ones."""
    return streams(0, 0, [0] * count, np.arange(count, dtype=np.uint64))


def random_texts(
    lengths: Tensor, width: int, masking: Masking, draws: Sequence[Uniforms], *, none: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws texts [CLS] ... [SEP]: ids before and after masking, and labels, all int64 [B, T].

    Labels are ``none`` where nothing is to be guessed.
    """
    whole = torch.zeros(len(lengths), width, dtype=torch.int64)
    seen, labels = whole.clone(), torch.full_like(whole, none)
    texts = []
    for row, length in zip(whole, lengths.tolist(), strict=True):
        inner = torch.randint(1000, 30_000, (length - 2,))
        row[:length] = torch.cat([torch.tensor([CLS]), inner, torch.tensor([SEP])])
        texts.append(row[:length].numpy())
    for at, text in enumerate(mask_texts(texts, draws, masking, LEXICON, longest=width)):
        seen[at, : len(text.tokens)] = torch.from_numpy(text.tokens)
        masked = torch.from_numpy(np.flatnonzero(text.masked))
        labels[at, masked] = whole[at, masked]
    return whole, seen, labels


def random_regions(
    texts: Tensor,
    regions: Tensor,
    masking: Masking,
    *,
    size: tuple[int, int] | None = None,
    classes: int = 1601,
) -> RegionWork:
    """Draws pairs of the given lengths, masked by the rules of ``masking``.

    Padded to ``size`` (tokens, regions), otherwise to the longest.
    """
    batch, (width, rows) = len(texts), size or (int(texts.max()), int(regions.max()))
    draws = own_draws(batch)
    _, tokens, labels = random_texts(texts, width, masking, draws, none=-1)
    corners = torch.rand(batch, rows, 2, 2).sort(dim=2).values.flatten(2)
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    masked = torch.zeros(batch, rows, dtype=torch.bool)
    for at, count in enumerate(regions.tolist()):
        boxes = (corners[at, 1:count] * SIDE_PX).numpy()
        flags = mask_image(boxes, draws[at], masking, (int(SIDE_PX), int(SIDE_PX))).masked
        masked[at, 1:count] = torch.from_numpy(flags)
    return RegionWork(
        tokens=tokens,
        text_lengths=texts,
        features=torch.randn(batch, rows, 2048).relu_(),
        locations=torch.cat([corners, area[..., None]], dim=-1),
        region_lengths=regions,
        word_labels=labels,
        masked_regions=masked,
        targets=F.softmax(torch.randn(batch, rows, classes), dim=-1),
        mismatched=torch.arange(batch) % 2,
    )


def random_pixels(texts: Tensor, masking: Masking, *, side: int = 224) -> PixelWork:
    """Draws pairs with texts of the given lengths, padded to 40, masked by the same rules."""
    tokens, seen, labels = random_texts(texts, 40, masking, own_draws(len(texts)), none=-100)
    return PixelWork(
        tokens=tokens,
        masked_tokens=seen,
        text_lengths=texts,
        word_labels=labels,
        pixels=torch.rand(len(texts), 3, side, side) * 2 - 1,
    )
