"""Defines retrieval, regardless of how its model reads a text and an image.

It is validated by held-out images with all of their captions. T texts, I images, P candidates of a
text.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vlmill.schemas.tables import PAIRS
from vlmill.train.checkpoints.files import TaskRecord
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.run.learning import Criterion
from vlmill.train.tasks.retrieval.metrics import KS, alignment_accuracy, retrieval_metrics
from vlmill.train.tasks.task import LearntTask, Prediction

NAME = "retrieval"


def as_they_are(pairs: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows of a table of pairs, which are examples already."""
    return pairs


class RetrievalTask(LearntTask):
    """Reads captions, and validates by the mean of the six recalls."""

    name = NAME
    criterion = Criterion(name="mean_recall", highest=True)

    def examples(self, path: str) -> Examples:
        """Reads captions with their images."""
        return Examples(path=path, table=PAIRS, as_pairs=as_they_are)

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the head's outputs are the same for all data."""
        return TaskRecord(name=NAME)

    def held_out(self, table: SampleTable, rows: Ids, max_rows: int) -> list[int]:
        """Returns all captions of some images."""
        return select_image_rows(table, rows, max_rows)


DIRECTIONS = ("image_retrieval", "text_retrieval")
Scores = NDArray[np.floating]


def select_image_rows(table: SampleTable, rows: Ids, max_rows: int) -> list[int]:
    """Returns all of the ``rows`` of some images: at most ``max_rows``, but of one image at least.

    The images are the first ones by the hashes of their ids, regardless of the table's other rows.
    """
    keys = table.image_keys[rows]
    _, images, counts = np.unique(keys, return_inverse=True, return_counts=True)
    chosen = np.cumsum(counts) <= max_rows
    chosen[:1] = True
    held_rows: list[int] = np.sort(rows[chosen[images]]).tolist()
    return held_rows


def one_row_each(table: SampleTable, rows: Ids) -> Ids:
    """Returns the first of the ``rows`` of each image, by the hashes of the images' ids: [I]."""
    chosen: Ids = rows[np.unique(table.image_keys[rows], return_index=True)[1]]
    return chosen


def scores_of_candidates(
    table: SampleTable, predicted: Sequence[Prediction]
) -> tuple[Scores, NDArray[np.int64]]:
    """Returns scores [I, T] and the image of each text [T], of texts scored with every image.

    A prediction is of a text with its own image and then with the others, as :func:`one_row_each`
    orders them.
    """
    rows = np.array([prediction.row for prediction in predicted], dtype=np.int64)
    _, owners = np.unique(table.image_keys[rows], return_inverse=True)
    columns = []
    for prediction, owner in zip(predicted, owners.tolist(), strict=True):
        own_scores, other_scores = prediction.value[:1], prediction.value[1:]
        columns.append(np.concatenate([other_scores[:owner], own_scores, other_scores[owner:]]))
    return np.stack(columns, axis=1), owners


def scores_of_vectors(
    table: SampleTable, predicted: Sequence[Prediction]
) -> tuple[Scores, NDArray[np.int64]]:
    """Returns the same for predictions that are the vectors of a text and its image: [2, H]."""
    rows = np.array([prediction.row for prediction in predicted], dtype=np.int64)
    _, firsts, owners = np.unique(table.image_keys[rows], return_index=True, return_inverse=True)
    texts = np.stack([prediction.value[0] for prediction in predicted])
    images = np.stack([predicted[first].value[1] for first in firsts.tolist()])
    return images @ texts.T, owners


def measure_recalls(
    scores: Scores, owners: NDArray[np.int64], *, alignment: bool = False
) -> dict[str, float]:
    """Returns recalls of both directions and their mean, and on request the ``alignment``."""
    metrics = retrieval_metrics(scores, owners)
    names = [f"{direction}/r{k}" for direction in DIRECTIONS for k in KS]
    numbers = {name: metrics[name] for name in (*names, "mean_recall")}
    if alignment and len(scores) > 1:
        numbers["alignment4/accuracy"] = alignment_accuracy(sample_alignment_scores(scores, owners))
    return numbers


def sample_alignment_scores(scores: Scores, owners: NDArray[np.int64]) -> Scores:
    """Returns the scores of each text and its image, and of three random negatives, the same every
    time: two captions of other images, and an image (ViLBERT's and InterBERT's code): [T, 4].
    """
    generator, texts = np.random.default_rng(0), np.arange(len(owners))
    rows = []
    for text, owner in enumerate(owners.tolist()):
        captions = generator.choice(texts[owners != owner], 2)
        image = generator.integers(len(scores) - 1)
        image += image >= owner
        rows.append([scores[owner, text], *scores[owner, captions], scores[image, text]])
    return np.array(rows)
