"""Images by id and by row, of plain and of compressed shards."""

import pickle
from pathlib import Path

import pytest

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES


def write(folder: Path, images: dict[str, bytes | None], compression: str, index: int = 0) -> None:
    rows = [
        {**dict.fromkeys(IMAGES.schema.names), "image_id": k, "bytes": v} for k, v in images.items()
    ]
    write_shard(folder, IMAGES, rows, index, 2, compression=compression)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_by_id_and_by_row(tmp_path: Path, compression: str) -> None:
    write(tmp_path, {"a": b"one", "b": None}, compression)
    write(tmp_path, {"c": b"", "d": b"four" * 1000}, compression, 1)
    reader = ImageReader(tmp_path)
    again = pickle.loads(pickle.dumps(reader))
    assert reader.image_ids == ["a", "b", "c", "d"] and len(reader) == 4
    assert [again.read_bytes(i) for i in range(4)] == [b"one", None, b"", b"four" * 1000]
    assert reader["d"] == b"four" * 1000 and "c" in reader and "x" not in reader
    assert reader.find(["d", "x", "a"]).tolist() == [3, ABSENT, 0]
    with pytest.raises(KeyError):
        reader["x"]
    with pytest.raises(IndexError):
        reader.read_bytes(4)


def test_an_id_with_two_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"one"}, "none")
    write(tmp_path, {"a": b"two"}, "none", 1)
    with pytest.raises(InputError, match="--images: a has two rows"):
        ImageReader(tmp_path)
