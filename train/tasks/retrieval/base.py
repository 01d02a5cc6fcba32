"""Defines retrieval, regardless of how its model reads a text and an image."""

import pyarrow as pa

from vlmill.schemas.tables import PAIRS
from vlmill.train.checkpoints.files import TaskRecord
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.run.learning import Criterion
from vlmill.train.tasks.retrieval.held_out import select_image_rows
from vlmill.train.tasks.task import LearntTask

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
