"""Shards, manifest and reading: what is written is what is read, and damage is found."""

import hashlib
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.runtime.files.growing import GrowingFile
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, verify_folder, write_manifest
from vlmill.runtime.files.reading import find_shards, iter_batches, read_producer, read_table
from vlmill.runtime.files.shards import ShardWriter, describe_shard, shard_name, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS, Table, conform, table_of_rows


def pair(number: int, text: str = "a cat on a mat") -> dict[str, object]:
    image_id = compute_image_id(str(number).encode())
    return {"pair_id": compute_pair_id(image_id, text), "image_id": image_id, "text": text}


def write_folder(folder: Path, counts: tuple[int, ...] = (3, 2)) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    shards = []
    for index, count in enumerate(counts):
        part = [pair(len(rows) + k) for k in range(count)]
        shards.append(
            write_shard(folder, PAIRS, part, index, len(counts), producer={"job": "test"})
        )
        rows += part
    write_manifest(folder, shards, job="test", settings={"counts": list(counts)})
    return rows


def test_rows_come_back_from_folder_file_and_glob(tmp_path: Path) -> None:
    ids = [row["pair_id"] for row in write_folder(tmp_path)]
    assert read_table(tmp_path, PAIRS).column("pair_id").to_pylist() == ids
    assert read_table(f"{tmp_path}/pairs-*.parquet", PAIRS).column("pair_id").to_pylist() == ids
    one = read_table(tmp_path / shard_name(PAIRS, 1, 2), PAIRS, columns=["pair_id"])
    assert one.column("pair_id").to_pylist() == ids[3:]
    assert one.schema.names == ["pair_id"]
    assert read_producer(tmp_path / shard_name(PAIRS, 0, 2))["job"] == "test"


def test_batches_are_bounded(tmp_path: Path) -> None:
    write_folder(tmp_path, (5,))
    assert [b.num_rows for b in iter_batches(tmp_path, PAIRS, batch_rows=2)] == [2, 2, 1]


def test_an_empty_shard_is_a_valid_table(tmp_path: Path) -> None:
    write_manifest(tmp_path, [write_shard(tmp_path, PAIRS, [])], job="test", settings={})
    assert read_table(tmp_path, PAIRS).num_rows == 0
    assert verify_folder(tmp_path) == []


def test_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_folder(tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_checksum_is_that_of_the_file_which_is_not_read_again(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [
        [{"image_id": f"{n}-{k}", "bytes": bytes([n + k]) * 3000 * n} for k in range(3)]
        for n in range(4)
    ]
    with monkeypatch.context() as patch:
        patch.delattr(hashlib, "file_digest")
        with ShardWriter(tmp_path, IMAGES, 0, 1, compression=compression) as writer:
            for rows in groups:
                writer.write(rows)
    assert writer.shard.rows == 12
    assert writer.shard == describe_shard(writer.path, IMAGES.name)
    empty = write_shard(tmp_path / "empty", REJECTS, [])
    assert empty == describe_shard(tmp_path / "empty" / empty.name, REJECTS.name)


def test_the_checksum_of_a_growing_file(tmp_path: Path) -> None:
    path, content = tmp_path / "file", bytes(range(256)) * 100
    path.write_bytes(content)
    file = GrowingFile(path)
    assert file.extend(0) is None
    for size in (1, 4095, 4096, 4097, 20_000, len(content)):
        old = file.size
        added = file.extend(size)
        assert added is not None
        assert added.mapped[added.begin : added.end] == content[old:size]
        assert added.start + added.begin == old
        assert file.sha256() == hashlib.sha256(content[:size]).hexdigest()
    assert file.extend(len(content)) is None


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ShardWriter(tmp_path, PAIRS, 0, 1) as writer:
        writer.write([pair(1)])
        raise RuntimeError("the disk is full")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_column_is_refused_and_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pairs has no column captoin"):
        write_shard(tmp_path, PAIRS, [{**pair(1), "captoin": "x"}])


def test_rows_of_other_columns_come_together() -> None:
    rows = [pair(1) | {"score": 0.5}, pair(2) | {"language": "en"}, pair(3)]
    table = table_of_rows(rows[:2], PAIRS)  # as many columns, but others
    assert table.select(["score", "language"]).to_pydict() == {
        "score": [0.5, None],
        "language": [None, "en"],
    }
    assert table_of_rows(rows, PAIRS).column("text").to_pylist() == [row["text"] for row in rows]
    assert table_of_rows([], PAIRS).num_rows == 0


def test_conform_names_the_column() -> None:
    good = table_of_rows([pair(1)], PAIRS)
    with pytest.raises(ValueError, match="lacks the column text"):
        conform(good.drop_columns(["text"]), PAIRS)
    with pytest.raises(ValueError, match="no column surplus"):
        conform(good.append_column("surplus", pa.array([1])), PAIRS)
    with pytest.raises(ValueError, match=r"pairs\.score has NaN"):
        table_of_rows([{**pair(1), "score": float("nan")}], PAIRS)
    with pytest.raises(ValueError, match=r"pairs\.text has 1 nulls"):
        table_of_rows([{**pair(1), "text": None}], PAIRS)
    with pytest.raises(ValueError, match=r"pairs\.score is int64"):
        place = good.schema.get_field_index("score")
        conform(good.set_column(place, "score", pa.array([1])), PAIRS)


def test_verify_finds_every_kind_of_damage(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert verify_folder(tmp_path) == []
    first, second = sorted(tmp_path.glob("pairs-*.parquet"))

    whole = first.read_bytes()
    flipped = bytearray(whole)
    flipped[20] ^= 1  # in the first page
    first.write_bytes(flipped)
    assert "sha256" in verify_folder(tmp_path)[0]
    first.write_bytes(whole[:-7])
    assert str(first) in verify_folder(tmp_path)[0]
    first.write_bytes(whole)

    second.rename(tmp_path / "pairs-extra.parquet")
    problems = verify_folder(tmp_path)
    assert any("listed in the manifest, but missing" in p for p in problems)
    assert any("pairs-extra.parquet: not in the manifest" in p for p in problems)


def test_a_listed_shard_that_is_missing_is_no_empty_table(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / shard_name(PAIRS, 0, 2)).unlink()
    with pytest.raises(InputError, match="missing"):
        find_shards(tmp_path, PAIRS, "--pairs")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"shards": [{"name": 1}]}'])
def test_a_damaged_manifest_is_a_users_error(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match="damaged"):
        read_manifest(tmp_path)


def test_errors_of_arguments_name_argument_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--pairs .*nowhere.*give a folder, a file or a glob"):
        find_shards(tmp_path / "nowhere", PAIRS, "--pairs")
    text = tmp_path / "pairs-0.parquet"
    text.write_text("no parquet")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        find_shards(text, PAIRS, "--pairs")
    write_shard(tmp_path, REJECTS, [])
    with pytest.raises(InputError, match="a table of rejects; give a table of pairs"):
        find_shards(tmp_path / shard_name(REJECTS, 0, 1), PAIRS, "--pairs")
    pq.write_table(pa.table({"text": ["x"]}), text)
    with pytest.raises(InputError, match="no table of vlmill"):
        find_shards(text, PAIRS, "--pairs")


def test_another_major_version_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path, Table(name="pairs", version="2.0", schema=PAIRS.schema), [pair(1)])
    ours = re.escape(PAIRS.version)
    with pytest.raises(InputError, match=rf"version 2\.0 of pairs, this vlmill reads {ours}"):
        find_shards(tmp_path, PAIRS)


@pytest.mark.parametrize(("index", "total"), [(2, 2), (-1, 2), (0, 0)])
def test_shard_numbers_are_checked(index: int, total: int) -> None:
    with pytest.raises(ValueError, match="the index must be in"):
        shard_name(PAIRS, index, total)


@given(key=st.text(st.characters(exclude_categories=[])), detail=st.none() | st.text())
def test_a_reject_row_always_fits_its_table(key: str, detail: str | None) -> None:
    row = reject("pages", key, Reason.EMPTY, detail)
    (back,) = table_of_rows([row], REJECTS).to_pylist()
    assert back == row
    assert len(back["key"]) <= 2_048
    assert "\0" not in back["key"]


@given(st.text(), st.text(), st.text(), st.text())
def test_pair_ids_differ_where_pairs_do(a: str, b: str, c: str, d: str) -> None:
    image_a, image_c = compute_image_id(a.encode()), compute_image_id(c.encode())
    assert (compute_pair_id(image_a, b) == compute_pair_id(image_c, d)) == ((a, b) == (c, d))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_fails_before_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        write_shard(tmp_path / "out", PAIRS, [])
