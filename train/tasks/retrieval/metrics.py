"""Computes retrieval metrics from a matrix of scores: pure functions of arrays.

I images, T texts. A text belongs to one image, an image may own any number of texts. Ranks count
from 0. Ties are pessimistic: a wrong candidate with the right one's score ranks before it, so that
a model that gives all pairs the same score recalls nothing and no figure depends on the order of
rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmill.train.tasks.scores import standard_error

Scores = NDArray[np.floating]
Ids = NDArray[np.integer]

KS = (1, 5, 10)  # the cut-offs that every retrieval paper prints


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Holds the ranks of the right answer, one per query: int64 [queries].

    ``pessimistic`` counts the wrong candidates that score as high or higher, ``optimistic`` only
    the higher ones; the rank in any order of equal scores is between the two.
    """

    pessimistic: NDArray[np.int64]
    optimistic: NDArray[np.int64]


def check_scores(scores: Scores, owners: Ids) -> None:
    """Raises ValueError unless ``scores`` [I, T] is finite and ``owners`` [T] names rows of it.

    Every image has to own a text: without one its query has no right answer.
    """
    if scores.ndim != 2 or owners.shape != (scores.shape[1],):
        raise ValueError(
            f"scores has shape {scores.shape} and owners {owners.shape}; expected [images, texts] "
            "and [texts]"
        )
    if bad := int((~np.isfinite(scores)).sum()):
        raise ValueError(f"scores holds {bad} NaN or infinite values of {scores.size}")
    image_rows = np.arange(len(scores))
    if not np.array_equal(np.unique(owners), image_rows):
        strange = np.setxor1d(owners, image_rows)[:5].tolist()
        raise ValueError(
            f"owners must name every row of the {len(scores)} images and no other; wrong: {strange}"
        )


def text_to_image_ranks(scores: Scores, owners: Ids) -> Ranks:
    """Returns the ranks of image retrieval: the rank of each text's image among all images."""
    check_scores(scores, owners)
    return ranks_among(scores.T, owners)


def ranks_among(scores: Scores, right: Ids) -> Ranks:
    """Returns each query's rank of its one right candidate: ``scores`` [queries, candidates]."""
    right_scores = scores[np.arange(len(scores)), right][:, None]
    higher = (scores > right_scores).sum(axis=1)
    as_high = (scores >= right_scores).sum(axis=1) - 1  # the right one itself is not wrong
    return Ranks(pessimistic=as_high, optimistic=higher)


def image_to_text_ranks(scores: Scores, owners: Ids) -> Ranks:
    """Returns the ranks of text retrieval: each image's rank of its best ranked text among the
    texts of other images.
    """
    check_scores(scores, owners)
    pessimistic = np.empty(len(scores), dtype=np.int64)
    optimistic = np.empty(len(scores), dtype=np.int64)
    for image, row in enumerate(scores):
        is_right = owners == image
        best, wrong = row[is_right].max(), row[~is_right]
        pessimistic[image] = (wrong >= best).sum()
        optimistic[image] = (wrong > best).sum()
    return Ranks(pessimistic=pessimistic, optimistic=optimistic)


def recall_at_k(ranks: NDArray[np.int64], k: int) -> float:
    """Returns the share of queries whose rank is below ``k``, 0..1. Raises ValueError without a
    query.
    """
    if not len(ranks):
        raise ValueError("recall without queries is undefined; give at least one rank")
    return float((ranks < k).mean())


def chance_image_recall(num_images: int, k: int) -> float:
    """Returns the expected recall at ``k`` of image retrieval if the order is random."""
    return min(k / num_images, 1.0)


def chance_text_recall(owners: Ids, k: int) -> float:
    """Returns the expected recall at ``k`` of text retrieval if the order is random.

    It is one minus the chance that the first k of T texts include none of an image's texts, as the
    mean over images.
    """
    texts_per_image = np.bincount(owners)
    total = len(owners)
    draws = np.arange(min(k, total))
    missed = np.clip((total - texts_per_image[:, None] - draws) / (total - draws), 0, 1).prod(
        axis=1
    )
    return float((1 - missed).mean())


def retrieval_metrics(
    scores: Scores, owners: Ids, ks: Sequence[int] = KS, *, by_image: Scores | None = None
) -> dict[str, float]:
    """Returns both directions' figures under flat names, shares in 0..1.

    ``scores`` [I, T], higher for better; ``by_image`` are the scores by which images rank texts, if
    these differ. ``owners`` [T] is the row of each text's image. Of ``image_retrieval`` (the query
    is a text) and ``text_retrieval`` (the query is an image): r1, r5, r10 with ``_stderr`` and
    ``_chance``, r1_optimistic, median_rank and mean_rank (from 1), ties (queries whose rank depends
    on how equal scores are ordered), mean_recall and n. Of both directions: mean_recall and rsum,
    the mean and the sum of all recalls.
    """
    directions = {
        "image_retrieval": text_to_image_ranks(scores, owners),
        "text_retrieval": image_to_text_ranks(scores if by_image is None else by_image, owners),
    }
    metrics: dict[str, float] = {}
    for direction, ranks in directions.items():
        metrics |= {f"{direction}/{name}": value for name, value in rank_summary(ranks, ks).items()}
    for k in ks:
        metrics[f"image_retrieval/r{k}_chance"] = chance_image_recall(len(scores), k)
        metrics[f"text_retrieval/r{k}_chance"] = chance_text_recall(owners, k)
    recalls = [metrics[f"{direction}/r{k}"] for direction in directions for k in ks]
    return metrics | {"mean_recall": float(np.mean(recalls)), "rsum": float(np.sum(recalls))}


def alignment_accuracy(scores: Scores) -> float:
    """Returns the share of rows [N, candidates] whose first score, the right pair's, is above all
    others: ViLBERT's 4-way alignment (arXiv:1908.02265, sec. 3.2).

    The released code takes the first of equal scores, so that a constant model is always right; a
    tie counts as wrong here. Raises ValueError for scores that are not finite, or without a row.
    """
    if not scores.size or not np.isfinite(scores).all():
        raise ValueError(
            f"scores of shape {scores.shape}: expected finite scores and at least one row"
        )
    return float((scores[:, :1] > scores[:, 1:]).all(axis=1).mean())


def rank_summary(ranks: Ranks, ks: Sequence[int] = KS) -> dict[str, float]:
    """Returns one direction's figures: recalls with their errors and their mean, median and mean
    rank from 1, ties, n.
    """
    n = len(ranks.pessimistic)
    summary: dict[str, float] = {}
    for k in ks:
        share = recall_at_k(ranks.pessimistic, k)
        summary |= {f"r{k}": share, f"r{k}_stderr": standard_error(share, n)}
    return summary | {
        "mean_recall": float(np.mean([summary[f"r{k}"] for k in ks])),
        "r1_optimistic": recall_at_k(ranks.optimistic, 1),
        "median_rank": float(np.floor(np.median(ranks.pessimistic)) + 1),
        "mean_rank": float(ranks.pessimistic.mean() + 1),
        "ties": int((ranks.pessimistic != ranks.optimistic).sum()),
        "n": n,
    }


def fold_metrics(
    scores: Scores, owners: Ids, fold_images: int, ks: Sequence[int] = KS
) -> list[dict[str, float]]:
    """Returns the figures of consecutive blocks of ``fold_images`` images, each scored separately:
    its images against its own texts.

    Raises ValueError if the images do not fill whole blocks.
    """
    check_scores(scores, owners)
    if fold_images < 1 or len(scores) % fold_images:
        raise ValueError(
            f"fold_images={fold_images} does not divide the {len(scores)} images into whole folds"
        )
    folds = []
    for first in range(0, len(scores), fold_images):
        in_fold = (owners >= first) & (owners < first + fold_images)
        block = scores[first : first + fold_images, in_fold]
        folds.append(retrieval_metrics(block, owners[in_fold] - first, ks))
    return folds


def mean_of_folds(
    scores: Scores, owners: Ids, fold_images: int, ks: Sequence[int] = KS
) -> dict[str, float]:
    """Returns the mean of every figure over :func:`fold_metrics`, like COCO 1K; for ``n`` and
    ``ties`` the sum, and the standard error of the mean of recalls.
    """
    folds = fold_metrics(scores, owners, fold_images, ks)
    return {name: _over_folds(name, [fold[name] for fold in folds]) for name in folds[0]}


def _over_folds(name: str, values: Sequence[float]) -> float:
    if name.endswith(("/n", "/ties")):
        return float(np.sum(values))
    if name.endswith("_stderr"):
        return float(np.sqrt(np.sum(np.square(values))) / len(values))
    return float(np.mean(values))
