"""Ranks by the scores of contrastive vectors (VLMo, arXiv:2111.02358, sec. 4.3), and reranks the
best ones by the matching head.

I images, T texts, H width of the vectors.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.models.bert.model import Bert
from vlmill.models.layers.operators import unchanging_weights
from vlmill.models.vlmo.model import Vlmo
from vlmill.runtime.cores import all_cores
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.arrays import Ids
from vlmill.train.tasks.retrieval.inputs import PixelImages, text_batches
from vlmill.train.tasks.retrieval.matching import Advance, ignore_progress

MOST_THREADS = 8  # threads that decode images
BELOW = 1e6  # how far candidates that were not ranked again are moved down


@torch.inference_mode()
def text_vectors(
    model: Vlmo | Bert,
    texts: Sequence[Ids],
    *,
    device: torch.device,
    batch_size: int,
    advance: Advance = ignore_progress,
) -> NDArray[np.float32]:
    """Returns unit vectors of texts, float32 [T, H]."""
    vectors = np.zeros((len(texts), model.config.width), dtype=np.float32)
    with unchanging_weights(len(texts)):
        for batch in text_batches(texts, batch_size, device):
            batch_vectors = model.text_vectors(batch.tokens, batch.token_mask, real=batch.real)
            vectors[batch.columns] = batch_vectors.float().cpu().numpy()
            advance(len(batch.columns))
    return vectors


@dataclass(frozen=True, kw_only=True)
class ImageVectors:
    """Holds unit vectors by image_id, float32 [H], and the reject reasons of images without one."""

    vectors: dict[str, NDArray[np.float32]]
    faults: dict[str, Reason]

    def stack(self, image_ids: Sequence[str]) -> NDArray[np.float32]:
        """Returns the vectors of some images, [I, H]."""
        return np.stack([self.vectors[image_id] for image_id in image_ids])


@torch.inference_mode()
def image_vectors(
    model: Vlmo,
    image_ids: Sequence[str],
    images: PixelImages,
    *,
    device: torch.device,
    batch_size: int,
    advance: Advance = ignore_progress,
) -> ImageVectors:
    """Embeds images, each decoded once; images with a fault are named instead."""
    vectors: dict[str, NDArray[np.float32]] = {}
    faults: dict[str, Reason] = {}
    threads = min(MOST_THREADS, all_cores())
    with unchanging_weights(len(image_ids)), ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(image_ids), batch_size):
            batch_ids = image_ids[start : start + batch_size]
            loaded = dict(zip(batch_ids, pool.map(images.load, batch_ids), strict=True))
            faults |= {
                image_id: image for image_id, image in loaded.items() if isinstance(image, Reason)
            }
            good = {
                image_id: image
                for image_id, image in loaded.items()
                if not isinstance(image, Reason)
            }
            if good:
                pixels = images.collate_pixels(good).to(device).pixels
                assert pixels is not None
                embedded = model.image_vectors(pixels).float().cpu().numpy()
                vectors |= dict(zip(good, embedded, strict=True))
            advance(len(batch_ids))
    return ImageVectors(vectors=vectors, faults=faults)


@dataclass(frozen=True, kw_only=True)
class RankScores:
    """Holds the scores by which texts rank images, and images texts: both [I, T], higher is better.

    Both are one matrix, unless the matching head scored only the first of each query, which are the
    ``shortlists``.
    """

    by_text: NDArray[np.floating]
    by_image: NDArray[np.floating]
    shortlists: "Shortlists | None" = None


def shortlist(scores: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Marks the ``count`` best of each row; of equals the first."""
    flags = np.zeros(scores.shape, dtype=np.bool_)
    for row, row_flags in zip(scores, flags, strict=True):
        row_flags[np.argsort(-row, kind="stable")[:count]] = True
    return flags


@dataclass(frozen=True, kw_only=True)
class Shortlists:
    """Holds pairs [I, T] that are among the best of their text, and of their image."""

    by_text: NDArray[np.bool_]
    by_image: NDArray[np.bool_]

    @staticmethod
    def from_scores(scores: NDArray[np.float32], count: int) -> "Shortlists":
        """Returns the ``count`` best images of each text and texts of each image."""
        return Shortlists(by_text=shortlist(scores.T, count).T, by_image=shortlist(scores, count))

    def shares(self, owners: NDArray[np.int64]) -> dict[str, float]:
        """Returns the share of texts whose image is listed, and of images with at least one listed
        text: no recall can be higher. ``owners`` [T] is the row of each text's image.
        """
        texts = np.arange(len(owners))
        right = np.zeros(self.by_image.shape, dtype=np.bool_)
        right[owners, texts] = True
        return {
            "image_retrieval/listed": float(self.by_text[owners, texts].mean()),
            "text_retrieval/listed": float((self.by_image & right).any(axis=1).mean()),
        }

    @property
    def listed_pairs(self) -> NDArray[np.bool_]:
        """Returns the pairs that have to be scored by the matching head."""
        return self.by_text | self.by_image


def rerank_scores(
    scores: NDArray[np.float32], shortlists: Shortlists, logits: NDArray[np.float32]
) -> RankScores:
    """Ranks each query's shortlist by ``logits``, and the others after it by ``scores``.

    These are moved down by :data:`BELOW`, in float64, which keeps their order.
    """
    lowered_scores = scores.astype(np.float64) - BELOW
    return RankScores(
        by_text=np.where(shortlists.by_text, logits, lowered_scores),
        by_image=np.where(shortlists.by_image, logits, lowered_scores),
        shortlists=shortlists,
    )
