"""VL-BERT's samples are made here as its published code makes them (arXiv:1908.08530, sec. 3.3).

T tokens, N regions of which the first is the whole picture, K region classes, D feature width.
Boxes are (x1, y1, x2, y2) in pixels of the resized picture. One source of random numbers, asked in
the published order: mirroring, relation, words, regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.boxes import Size
from vlmill.train.loading.masking.regions import MaskedRegions, mask_regions, mean_of_unmasked
from vlmill.train.loading.masking.words import NO_WORD, MaskedTokens, Replacement, mask_words
from vlmill.train.loading.random import Draws

MASKED_SHARE, HIDDEN_SHARE = 0.15, 0.9


@dataclass(frozen=True, kw_only=True)
class Regions:
    """A picture's regions: boxes [N, 4], classes' distributions [N, K], features [N, D] or none."""

    boxes: Array
    distributions: Array
    features: Array | None

    def first(self, count: int) -> "Regions":
        """The first ``count`` of them."""
        return Regions(
            boxes=self.boxes[:count],
            distributions=self.distributions[:count],
            features=None if self.features is None else self.features[:count],
        )


def with_picture(regions: Regions, size: Size) -> Regions:
    """The regions, surest first, after the whole picture, whose feature is their mean.

    Sure is what has the largest probability of any class, background included. The picture itself
    has no class: zeros.
    """
    order = np.argsort(-regions.distributions.max(axis=1, initial=0), kind="stable")
    whole = np.array([[0, 0, size.width - 1, size.height - 1]], dtype=np.float32)
    features = regions.features
    if features is not None:
        mean = features.sum(axis=0) / np.float32(max(len(features), 1))
        features = np.concatenate([mean[None], features[order]])
    none = np.zeros_like(regions.distributions, shape=(1, regions.distributions.shape[1]))
    return Regions(
        boxes=np.concatenate([whole, regions.boxes[order]]),
        distributions=np.concatenate([none, regions.distributions[order]]),
        features=features,
    )


def mask_picture_regions(regions: Regions, draws: Draws) -> tuple[Regions, MaskedRegions]:
    """15 % of the regions to be guessed, 90 % of those hidden; never the picture.

    The features of hidden regions stay, for the model puts its own in their place; the picture's
    feature becomes that of the rest. Distributions are zeros where nothing is to be guessed.
    """
    count = len(regions.boxes) - 1
    masks = mask_regions(count, draws, share=MASKED_SHARE, to_zero=HIDDEN_SHARE)
    masked, hidden = np.append(False, masks.masked), np.append(False, masks.zeroed)
    features = regions.features
    if features is not None and count:
        features = features.copy()
        features[0] = mean_of_unmasked(features[1:], features[0], masks.zeroed)
    targets = np.where(masked[:, None], regions.distributions, np.float32(0))
    kept = Regions(boxes=regions.boxes, distributions=targets, features=features)
    return kept, MaskedRegions(masked=masked, zeroed=hidden)


def hide_pixels(picture: Array, boxes: Array, hidden: npt.NDArray[np.bool_]) -> Array:
    """The normalised picture [3, H, W] with zeros inside hidden boxes, last pixels included."""
    picture = picture.copy()
    for x1, y1, x2, y2 in boxes[hidden].astype(np.int64).tolist():
        picture[:, y1 : y2 + 1, x1 : x2 + 1] = 0
    return picture


def own_caption(draws: Draws, *, relation: bool) -> bool:
    """Whether a picture keeps its caption; always without the task of relations, but one is drawn.

    Where it does not, `pairing.draw_other` finds another.
    """
    return draws.random() < 0.5 or not relation


def is_mirrored(draws: Draws, share: float = 0.5) -> bool:
    """Whether a picture is mirrored; with precomputed features only its boxes are."""
    return draws.random() < share


def mask_caption(pieces: Ids, words: Ids, draws: Draws, replacement: Replacement) -> MaskedTokens:
    """Whole words, 15 %; ``words`` as in `words.mask_words`, none of them forced."""
    return mask_words(pieces, words, draws, share=MASKED_SHARE, replacement=replacement)


def joined_lines(lengths: Sequence[int], first: int, fewest: int) -> list[int]:
    """The lines of a text corpus from ``first`` on with ``fewest`` words together, round its end.

    ``lengths`` counts each line's words. Lines repeat where the corpus is shorter than that. The
    sample is the first ``fewest`` word pieces after masking, without [CLS] and [SEP].
    """
    if not any(lengths):
        return []
    lines, words = [first], lengths[first]
    while words < fewest:
        line = (lines[-1] + 1) % len(lengths)
        lines.append(line)
        words += lengths[line]
    return lines


def with_specials(words: Ids) -> Ids:
    """The words of [CLS] text [SEP], from those of the text [T]."""
    return np.array([NO_WORD, *words.tolist(), NO_WORD], dtype=np.int64)
