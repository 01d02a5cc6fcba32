"""Stores the hashes of the pairs and images that a checkpoint's weights were trained on.

Two files of sorted 64-bit hashes (:func:`vlmill.schemas.ids.key64`), 8 bytes an id, mapped when
they are read: an evaluation can find which of its pairs the model was trained on, regardless of
their table.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vlmill.runtime.files.checkpoints import TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.readers.trained_on import count_known, mapped_keys
from vlmill.train.loading.arrays import Keys

__all__ = [
    "NO_KEYS",
    "TRAINED_IMAGES",
    "TRAINED_PAIRS",
    "TrainedOn",
    "count_known",
    "read_trained_on",
]
NO_KEYS: Keys = np.empty(0, np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedOn:
    """Holds sorted hashes, each once, of ``pairs`` and of ``images``: uint64 [P], [I].

    ``complete`` is true if the weights that training began with recorded theirs, too; random
    weights have none.
    """

    pairs: Keys = field(default_factory=lambda: NO_KEYS)
    images: Keys = field(default_factory=lambda: NO_KEYS)
    complete: bool = True

    def and_also(self, pairs: Keys, images: Keys) -> "TrainedOn":
        """Returns these hashes with further ones, which may come in any order."""
        return TrainedOn(
            pairs=np.union1d(self.pairs, pairs),
            images=np.union1d(self.images, images),
            complete=self.complete,
        )

    def write(self, folder: Path) -> None:
        """Writes both files."""
        np.save(folder / TRAINED_PAIRS, self.pairs)
        np.save(folder / TRAINED_IMAGES, self.images)


def read_trained_on(folder: Path, *, complete: bool) -> TrainedOn:
    """Maps the files of :meth:`TrainedOn.write`. Raises OSError or ValueError for other files."""
    return TrainedOn(
        pairs=mapped_keys(folder / TRAINED_PAIRS),
        images=mapped_keys(folder / TRAINED_IMAGES),
        complete=complete,
    )
