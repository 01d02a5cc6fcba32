"""The tree of inputs: states, the way back through folders, and records that are damaged."""

import json
from pathlib import Path

import pytest
from tests.object_stores import upload_folder

from vlmill.runtime.console.lineage import format_lines, lineage, mismatches, read_record
from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.digests import path_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import MANIFEST, write_manifest
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import NEGATIVES, PAIRS, Table


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives -> pairs -> negatives -> run, which has read the pairs too."""
    monkeypatch.chdir(tmp_path)
    Path("a.warc").write_bytes(b"WARC")
    write(Path("pairs"), "web_pairs", [path_input("--warc", "*.warc")], PAIRS)
    pairs = table_input("--pairs", "pairs", PAIRS)
    write(Path("negatives"), "hard_negatives", [pairs], NEGATIVES)
    negatives = table_input("--negatives", "negatives", NEGATIVES)
    Path("run").mkdir()
    write_manifest("run", [], job="train-vl pretrain", settings={}, inputs=[pairs, negatives])
    return tmp_path


def write(folder: Path, job: str, inputs: list[Input], spec: Table) -> None:
    write_manifest(folder, [write_shard(folder, spec, [])], job=job, settings={}, inputs=inputs)


def test_the_chain_goes_from_a_run_to_its_archives(house: Path) -> None:
    nodes = lineage(house / "run")
    assert mismatches(nodes) == 0
    lines = list(format_lines(nodes))
    assert [line.split()[0] for line in lines] == ["--pairs", "--warc", "--negatives", "--pairs"]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 0, 2]
    assert lines[0].endswith("by web_pairs: ok") and lines[3].endswith("are listed above")


def test_a_folder_that_was_moved_as_a_whole_still_matches(house: Path) -> None:
    moved = house.with_name("moved")
    house.rename(moved)
    assert mismatches(lineage(moved / "run")) == 0


def test_what_changed_and_what_is_missing_is_told(house: Path) -> None:
    (house / "a.warc").write_bytes(b"WARC/1.1")
    nodes = lineage(house / "run")
    warc = nodes[0].inputs[0]
    assert (warc.state, warc.detail) == ("changed", "bytes 4 then, 8 now")
    (house / "a.warc").write_bytes(b"CRAW")
    assert "different content" in lineage(house / "run")[0].inputs[0].detail
    (house / "a.warc").unlink()
    (house / "negatives" / MANIFEST).unlink()
    next((house / "negatives").glob("*.parquet")).unlink()
    (house / "negatives").rmdir()
    nodes = lineage(house / "run")
    assert nodes[0].inputs[0].state == "missing" and nodes[1].state == "missing"
    assert mismatches(nodes) == 2


def test_a_table_that_was_written_again_with_other_rows_is_changed(house: Path) -> None:
    row = dict.fromkeys(PAIRS.schema.names) | {"pair_id": "1", "text": "a"}
    write_manifest("pairs", [write_shard("pairs", PAIRS, [row])], job="web_pairs", settings={})
    node = lineage(house / "run")[0]
    assert node.state == "changed" and "rows 0 then, 1 now" in node.detail


def test_an_older_manifest_ends_the_chain_and_says_so(house: Path) -> None:
    content = json.loads((house / "pairs" / MANIFEST).read_text())
    del content["inputs"]
    (house / "pairs" / MANIFEST).write_text(json.dumps(content))
    node = lineage(house / "run")[0]
    assert node.state == "ok" and "older vlmill" in node.detail and node.inputs == ()


def test_records_that_name_one_another_come_to_an_end(house: Path) -> None:
    content = json.loads((house / "run" / MANIFEST).read_text())
    loop = [entry for entry in content["inputs"] if entry["flag"] == "--negatives"]
    pairs = json.loads((house / "pairs" / MANIFEST).read_text())
    pairs["inputs"] = loop
    (house / "pairs" / MANIFEST).write_text(json.dumps(pairs))
    lines = list(format_lines(lineage(house / "run")))
    assert sum("are listed above" in line for line in lines) == 2


def test_a_damaged_record_is_an_error_at_the_top_and_a_state_below(house: Path) -> None:
    (house / "negatives" / MANIFEST).write_text("[]")
    assert lineage(house / "run")[1].state == "changed"
    (house / "run" / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(InputError, match="damaged"):
        lineage(house / "run")


def test_a_folder_without_a_record_says_nothing(tmp_path: Path) -> None:
    assert read_record(tmp_path) == (None, None) and lineage(tmp_path) == ()


def test_the_chain_goes_through_a_store(house: Path, bucket: str) -> None:
    """A house that was copied there as a whole, and of which something is changed."""
    upload_folder(house, f"{bucket}/house")
    there = f"{bucket}/house"
    nodes = lineage(f"{there}/run")
    assert mismatches(nodes) == 0 and nodes[0].path == f"{there}/pairs"
    assert [node.path for node in nodes[0].inputs] == [f"{there}/*.warc"]
    write_bytes(f"{there}/a.warc", b"WARC/1.1")
    (to_path(there) / "negatives" / MANIFEST).unlink()
    nodes = lineage(f"{there}/run")
    assert [nodes[0].inputs[0].state, nodes[1].state] == ["changed", "changed"]


def test_what_anybody_may_read_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_manifest(
        tmp_path, [], job="web_pairs", settings={}, inputs=[path_input("--warc", "s3://a/b")]
    )
    nodes = lineage(tmp_path)
    assert nodes[0].state == "not checked" and mismatches(nodes) == 0
