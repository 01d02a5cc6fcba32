"""Inputs are recorded by digest, found again from the record, and told apart when they change."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from vlmill.runtime.files import digests
from vlmill.runtime.files.digests import file_input, measure_path, path_input, table_input
from vlmill.runtime.files.inputs import Input, make_records, parse_inputs, resolve_path
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, write_manifest
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS


def pairs_folder(folder: Path, texts: list[str], *, manifest: bool = True) -> Path:
    rows = [{"pair_id": str(number), "text": text} for number, text in enumerate(texts)]
    shard = write_shard(folder, PAIRS, rows)
    if manifest:
        write_manifest(folder, [shard], job="test", settings={})
    return folder


def test_a_table_is_known_by_its_manifest_and_its_job_is_named(tmp_path: Path) -> None:
    entry = table_input("--pairs", pairs_folder(tmp_path, ["a", "b"]), PAIRS)
    shard = read_manifest(tmp_path)["shards"][0]
    line = f"{shard.name} 2 {shard.bytes} {shard.sha256}"
    assert entry.digest == hashlib.sha256(line.encode()).hexdigest()
    assert (entry.rule, entry.rows, entry.files, entry.job) == ("manifest", 2, 1, "test")
    assert entry.bytes == shard.bytes


def test_shards_without_a_manifest_are_known_by_their_ends(tmp_path: Path) -> None:
    pairs_folder(tmp_path, ["a"], manifest=False)
    entry = table_input("--pairs", tmp_path, PAIRS)
    assert (entry.rule, entry.rows, entry.job) == ("ends", 1, None)


def test_a_listed_shard_of_another_size_does_not_match(tmp_path: Path) -> None:
    pairs_folder(tmp_path, ["a"])
    shard = next(tmp_path.glob("pairs-*"))
    shard.write_bytes(shard.read_bytes() + b"PAR1")
    with pytest.raises(InputError, match="bytes"):
        measure_path(str(tmp_path), "manifest", "pairs")


def test_content_is_what_sha256sum_prints(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"words\n")
    entry = file_input("--vocab", tmp_path / "vocab.txt")
    assert entry.digest == hashlib.sha256(b"words\n").hexdigest() and entry.bytes == 6


@pytest.mark.parametrize(("at", "seen"), [(0, True), (5, False), (11, True)])
def test_ends_see_the_first_and_the_last_bytes(
    at: int, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "ENDS_BYTES", 4)
    archive = tmp_path / "a.warc.gz"
    archive.write_bytes(bytes(12))
    before = path_input("--warc", archive).digest
    archive.write_bytes(bytes(at) + b"x" + bytes(11 - at))
    assert (path_input("--warc", archive).digest != before) == seen


def test_a_short_file_is_seen_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "ENDS_BYTES", 4)
    (tmp_path / "a").write_bytes(b"12345")
    before = path_input("--warc", tmp_path / "a").digest
    (tmp_path / "a").write_bytes(b"1234x")
    assert path_input("--warc", tmp_path / "a").digest != before


def test_a_folder_is_known_by_names_and_sizes_without_what_a_job_wrote_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"12")
    before = path_input("INPUT", tmp_path)
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "_plan.json").write_text("{}")
    assert path_input("INPUT", tmp_path) == before and before.rule == "listing"
    (tmp_path / "b.jpg").write_bytes(b"3")
    assert path_input("INPUT", tmp_path).digest != before.digest


def test_many_files_of_a_glob_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MANY_FILES", 1)
    for name in "ab":
        (tmp_path / name).write_bytes(b"1")
    assert path_input("INPUT", tmp_path / "*").rule == "listing"
    assert path_input("INPUT", tmp_path / "*").files == 2
    assert path_input("INPUT", tmp_path / "a").rule == "ends"


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    for rule in ("ends", "listing", "content"):
        with pytest.raises(FileNotFoundError):
            measure_path(str(tmp_path / "none"), rule)


def test_files_that_anybody_may_read_are_recorded_and_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    entry = path_input("--warc", "s3://bucket/a-*.warc.gz")
    assert entry.digest is None and entry.path == "s3://bucket/a-*.warc.gz"


def test_relative_paths_are_relative_to_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    entry = Input(flag="--pairs", path="pairs", rule="ends", digest="", files=0, bytes=0)
    (record,) = make_records([entry], "here/run")
    assert record["path"] == "../../pairs"
    monkeypatch.chdir("/")
    assert resolve_path(record["path"], tmp_path / "here" / "run") == os.path.realpath(
        tmp_path / "pairs"
    )
    absolute = Input(flag="--pairs", path="/a/b", rule="ends", digest="", files=0, bytes=0)
    assert make_records([absolute], "run")[0]["path"] == "/a/b"


def test_a_manifest_keeps_its_inputs_and_older_ones_have_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    entry = path_input("INPUT", tmp_path / "in")
    write_manifest(tmp_path, [], job="test", settings={}, inputs=[entry])
    assert read_manifest(tmp_path)["inputs"] == [entry]
    content = json.loads((tmp_path / MANIFEST).read_text())
    del content["inputs"]
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    assert read_manifest(tmp_path)["inputs"] == []


GOOD = {"flag": "--x", "path": "p", "rule": "ends", "digest": None, "files": 0, "bytes": 0}


@pytest.mark.parametrize(
    "records", [{}, ["x"], [GOOD | {"path": 3}], [GOOD | {"rows": "3"}], [GOOD | {"rule": "mtime"}]]
)
def test_records_of_other_types_are_refused(records: object) -> None:
    with pytest.raises(ValueError, match="input"):
        parse_inputs(records)


def test_a_field_of_a_later_version_is_left_aside() -> None:
    assert parse_inputs([GOOD | {"colour": "red"}])[0].flag == "--x"


def test_a_damaged_manifest_is_told_in_one_line(tmp_path: Path) -> None:
    write_manifest(tmp_path, [], job="test", settings={})
    content = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(content | {"inputs": [{"flag": "--x"}]}))
    with pytest.raises(InputError, match="damaged"):
        read_manifest(tmp_path)
