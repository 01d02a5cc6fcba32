"""A continued run finds what was prepared; another one does not."""

from collections import Counter
from pathlib import Path

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import REJECTS
from vlmill.train.loading.store.files import DONE, Preparation, read_preparation, write_preparation


def test_what_was_prepared_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    assert read_preparation(folder, tmp_path) is None
    shard = write_shard(tmp_path, REJECTS, [])
    made = Preparation(counts=Counter(kept=3), rejects=shard, tokenizer="{}")
    write_preparation(folder, made)
    assert read_preparation(folder, tmp_path) == made
    (tmp_path / shard.name).write_bytes(b"")
    assert read_preparation(folder, tmp_path) is None
    (folder / DONE).write_text("{", encoding="utf-8")
    assert read_preparation(folder, tmp_path) is None
