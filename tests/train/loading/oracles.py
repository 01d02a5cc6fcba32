"""The papers' rules for an image's feature, one image at a time, to compare batches with.

R regions, D feature width.
"""

import numpy as np

from vlmill.train.loading.arrays import Array, Flags


def without(features: Array, zeroed: Flags) -> Array:
    """Returns features [R, D] with zeros in place of the ``zeroed`` [R]."""
    return np.where(zeroed[:, None], np.float32(0), features)


def mean_after_masking(features: Array) -> Array:
    """The image's feature [D]: sum of the masked [R, D] by the number of regions, zeroed or not.

    ViLBERT's and InterBERT's in pretraining.
    """
    mean: Array = features.sum(axis=0) / np.float32(max(len(features), 1))
    return mean


def mean_of_unmasked(features: Array, mean: Array, zeroed: Flags) -> Array:
    """VL-BERT's: the feature [D] of the full image without what the ``zeroed`` [R] gave to it.

    ``mean`` [D] is of all ``features`` [R, D]. Zeros where nothing is left, of which the published
    code makes rounding noise a hundred thousand times as large.
    """
    count, gone = len(features), int(zeroed.sum())
    if gone == count:
        return np.zeros_like(mean)
    rest: Array = count * mean - features[zeroed].sum(axis=0)
    return rest / np.float32(count - gone + 1e-5)
