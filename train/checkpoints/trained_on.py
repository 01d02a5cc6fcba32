"""A checkpoint keeps the hashes of the pairs and pictures that its weights were trained on.

Two files of sorted 64-bit hashes (:func:`vlmill.schemas.ids.key64`), 8 bytes an id, mapped when
they are read: an evaluation can tell what of its own pairs the model knows already, whichever table
they stood in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vlmill.schemas.ids import key64
from vlmill.train.loading.arrays import Keys

TRAINED_PAIRS, TRAINED_IMAGES = "trained_pairs.npy", "trained_images.npy"
NO_KEYS: Keys = np.empty(0, np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedOn:
    """Holds sorted hashes, each once, of ``pairs`` and of ``images``: uint64 [P], [I].

    ``complete`` says whether the weights that training began with said theirs, too; random ones
    have none.
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
    """Maps what :meth:`TrainedOn.write` wrote. Raises OSError or ValueError for other files."""
    return TrainedOn(
        pairs=_mapped(folder / TRAINED_PAIRS),
        images=_mapped(folder / TRAINED_IMAGES),
        complete=complete,
    )


def _mapped(path: Path) -> Keys:
    try:
        keys: Keys = np.load(path, mmap_mode="r", allow_pickle=False)
    except EOFError:
        raise ValueError(f"{path.name} is empty") from None
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"{path.name} holds {keys.dtype} {list(keys.shape)}, want uint64 [N]")
    return keys


def count_known(ids: Iterable[str], keys: Keys) -> int:
    """Returns how many of the ids have their hash among the sorted ``keys``."""
    asked = np.fromiter(map(key64, ids), np.uint64)
    if not len(keys):
        return 0
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return int(np.count_nonzero(keys[at] == asked))
