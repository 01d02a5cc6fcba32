"""The hard_negatives job: rows, resume, and a user's mistakes."""

from pathlib import Path

import pytest

from vlmill.pipelines.hard_negatives.command import main
from vlmill.pipelines.hard_negatives.cost import estimate_of, output_bytes
from vlmill.schemas.console.cost import Rate, size_words
from vlmill.schemas.files.manifest import MANIFEST, read_manifest, verify_folder
from vlmill.schemas.files.reading import read_table
from vlmill.schemas.files.shards import write_shard
from vlmill.schemas.ids import image_id_of, pair_id_of
from vlmill.schemas.tables import NEGATIVES, PAIRS, REJECTS

TEXTS = ["a red cat on a mat", "the red dog in a house", "two cats and one dog", "", "a blue cat"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = []
    for number, text in enumerate(TEXTS):
        image_id = image_id_of(bytes([number]))
        rows.append({"pair_id": pair_id_of(image_id, text), "image_id": image_id, "text": text})
    write_shard(tmp_path / "pairs", PAIRS, [*rows, rows[0]])
    return tmp_path / "pairs"


def run(pairs: Path, output: Path, *flags: str) -> int:
    return main(["--pairs", str(pairs), "--output", str(output), *flags])


def test_every_pair_has_a_row_and_repeats_are_rejected(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path / "out", "--pairs-per-shard", "2") == 0
    assert "negatives of 5 pairs, 1 rejects" in capsys.readouterr().out
    table = read_table(tmp_path / "out", NEGATIVES)
    ids = sorted(set(read_table(pairs, PAIRS).column("pair_id").to_pylist()))
    assert table.column("pair_id").to_pylist() == ids
    assert sum(map(len, table.column("negative_pair_ids").to_pylist())) > 0
    (rejected,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert rejected["reason"] == "duplicate"
    assert verify_folder(tmp_path / "out") == []
    assert len(list((tmp_path / "out").glob("negatives-*.parquet"))) == 3


def test_texts_without_a_picture_are_rejected(pairs: Path, tmp_path: Path) -> None:
    text = {"pair_id": pair_id_of("", "a cat"), "text": "a cat"}
    write_shard(pairs, PAIRS, [text], 1, 2)
    assert run(pairs, tmp_path / "out") == 0
    rejects = {
        row["key"]: row["reason"] for row in read_table(tmp_path / "out", REJECTS).to_pylist()
    }
    assert rejects.pop(text["pair_id"]) == "no_picture"
    assert list(rejects.values()) == ["duplicate"]
    assert read_table(tmp_path / "out", NEGATIVES).num_rows == len(TEXTS)


def test_a_killed_run_continues_to_the_same_bytes(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "killed"):
        assert run(pairs, tmp_path / name, "--pairs-per-shard", "2") == 0
    first, second, _ = sorted((tmp_path / "killed").glob("negatives-*.parquet"))
    for path in (first, tmp_path / "killed" / MANIFEST):
        path.unlink()
    (tmp_path / "killed" / ".tmp-1-negatives").write_bytes(b"half a shard")
    kept = second.stat().st_mtime_ns
    assert run(pairs, tmp_path / "killed", "--pairs-per-shard", "2") == 0
    assert "continuing: 2 shards are there" in capsys.readouterr().err
    assert second.stat().st_mtime_ns == kept
    expected = {p.name: p.read_bytes() for p in (tmp_path / "whole").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "killed").iterdir()} == expected


def test_a_finished_run_says_so(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path / "out") == run(pairs, tmp_path / "out") == 0
    assert "finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--below", "2"], "--below 2"),
        (["--below", "x"], "--below x"),
        (["--top", "0"], "top is 0"),
        (["--topp", "3"], "--topp"),
        (["--pairs-per-shard", "0"], "--pairs-per-shard 0"),
    ],
)
def test_wrong_arguments_exit_2_in_one_line(
    pairs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    assert run(pairs, tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_missing_and_empty_inputs_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere", tmp_path / "out") == 2
    write_shard(tmp_path / "empty", PAIRS, [])
    assert run(tmp_path / "empty", tmp_path / "out") == 2
    errors = capsys.readouterr().err.splitlines()
    assert "--pairs" in errors[0]
    assert "empty" in errors[1]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_measures_and_writes_nothing(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "--pairs 5 pairs" in said and "measured on 5" in said
    assert f"up to {size_words(output_bytes(5, 30))}" in said
    assert not (tmp_path / "out").exists()


def test_the_most_bytes_by_hand() -> None:
    assert output_bytes(100, 30) == 100 * (36 + 30 * 40)
    assert output_bytes(2, 30) == 2 * (36 + 2 * 40)  # no more negatives than there are pairs


def test_time_grows_with_the_square_of_the_captions() -> None:
    rate = Rate(items=1000, seconds=1.0, unit="captions")
    few, many = (estimate_of(count, 30, rate).seconds for count in (20_000, 2_000_000))
    assert (few, many) == (20.0, 2000.0 * 100)


def test_the_manifest_names_the_pairs(pairs: Path, tmp_path: Path) -> None:
    assert run(pairs, tmp_path / "out") == 0
    (entry,) = read_manifest(tmp_path / "out")["inputs"]
    assert (entry.flag, entry.table, entry.rows, entry.rule) == ("--pairs", "pairs", 6, "ends")
