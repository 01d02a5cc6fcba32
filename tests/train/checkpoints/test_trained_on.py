"""What a checkpoint was trained on is kept as sorted hashes and found again."""

from pathlib import Path

import numpy as np
import pytest

from vlmill.runtime.files.checkpoints import TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.readers.trained_on import count_known
from vlmill.schemas.ids import key64
from vlmill.train.checkpoints.files import TrainedOn, read_trained_on


def keys(*ids: str) -> np.ndarray:
    return np.array([key64(one) for one in ids], np.uint64)


def test_hashes_are_joined_sorted_and_read_back_mapped(tmp_path: Path) -> None:
    first = TrainedOn(complete=False).and_also(keys("a", "b"), keys("p"))
    first.and_also(keys("c", "a"), keys("p", "p", "q")).write(tmp_path)
    back = read_trained_on(tmp_path, complete=False)
    assert isinstance(back.pairs, np.memmap) and not back.complete
    assert back.pairs.tolist() == sorted(keys("a", "b", "c").tolist())
    assert back.images.tolist() == sorted(keys("p", "q").tolist())
    assert (tmp_path / TRAINED_PAIRS).stat().st_size == 128 + 3 * 8
    assert count_known(["c", "d", "a", "a"], back.pairs) == 3
    assert count_known(["d"], back.pairs) == count_known([], back.pairs) == 0


def test_nothing_is_read_back_as_nothing(tmp_path: Path) -> None:
    TrainedOn().write(tmp_path)
    back = read_trained_on(tmp_path, complete=True)
    assert len(back.pairs) == len(back.images) == count_known(["a"], back.pairs) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: np.save(path, np.zeros((2, 2), np.uint64)),
        lambda path: np.save(path, np.zeros(2, np.float64)),
        lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
        lambda path: path.unlink(),
    ],
    ids=["empty", "cut", "shape", "dtype", "pickle", "absent"],
)
def test_other_files_are_refused(tmp_path: Path, damage: object) -> None:
    TrainedOn().and_also(keys("a"), keys("p")).write(tmp_path)
    damage(tmp_path / TRAINED_IMAGES)  # type: ignore[operator]
    with pytest.raises((OSError, ValueError)):
        read_trained_on(tmp_path, complete=True)
