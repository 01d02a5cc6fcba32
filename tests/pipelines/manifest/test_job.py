"""manifest own: pairs and images, rejects, resume, and a user's mistakes."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipelines.manifest.running import reasons

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.cleaning import clean_text
from vlmill.pipelines.manifest.own.job import JudgedRow, Ledger, OwnJob, judge_rows, read_candidates
from vlmill.pipelines.manifest.own.kinds import Columns
from vlmill.pipelines.manifest.reading.rows import find_column_indices, table_file
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

ROWS = """file,caption,split,number
1,a red square,train,10
2.png,two dogs,val,11
1,  a red\u00a0 square,train,12
1,another text,,13
../secret,hello,train,14
gone,an image that is not there,train,15
broken.jpg,not an image,train,16
broken.jpg,still not an image,train,17
,no name,train,18
2.png,,train,19
2.png,cut
/etc/passwd,absolute,train,20
deep/3,in a folder,train,21
way/out,through a link,train,22
"""


@pytest.fixture
def photos(tmp_path: Path, image: Callable[..., bytes]) -> Path:
    root = tmp_path / "photos"
    (root / "deep").mkdir(parents=True)
    (root / "1.jpg").write_bytes(image(40, 30))
    (root / "2.png").write_bytes(image(20, 50, seed=1, format="PNG"))
    (root / "deep" / "3.JPG").write_bytes(image(10, 10, seed=2))
    (root / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "secret").write_bytes(image(9, 9))
    (tmp_path / "out.jpg").write_bytes(image(9, 9))
    (root / "way").symlink_to(tmp_path)
    (tmp_path / "own.csv").write_text(ROWS, encoding="utf-8")
    return root


def own(table: Path, output: Path, *flags: str) -> int:
    columns = ["--text-column", "caption", "--image-column", "file"]
    return main(["own", "--input", str(table), *columns, "--output", str(output), *flags])


def test_pairs_images_and_a_reason_for_every_other_row(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    flags = ["--image-root", str(photos), "--split-column", "split", "--split", "train"]
    assert own(tmp_path / "own.csv", out, *flags, "--language", "en") == 0
    assert "done: 4 pairs, 3 images, 10 rejects" in capsys.readouterr().out
    pairs = read_table(out, PAIRS).to_pylist()
    assert [(p["image_id"], p["text"], p["split"]) for p in pairs] == [
        ("1", "a red square", "train"),
        ("2.png", "two dogs", "val"),
        ("1", "another text", "train"),
        ("deep/3", "in a folder", "train"),
    ]
    assert pairs[0]["pair_id"] == compute_pair_id("1", "a red square")
    assert {(p["source"], p["language"], p["image_url"]) for p in pairs} == {("own", "en", None)}
    images = read_table(out, IMAGES).to_pylist()
    assert [i["image_id"] for i in images] == ["1", "2.png", "deep/3"]
    assert [(i["width"], i["height"], i["format"]) for i in images][:2] == [
        (40, 30, "jpeg"),
        (20, 50, "png"),
    ]
    assert all(i["sha256"] == compute_image_id(i["bytes"]) for i in images)
    assert reasons(out) == [
        ("own.csv:4", "duplicate"),
        ("own.csv:6", "unsafe_path"),
        ("own.csv:7", "missing_image"),
        ("own.csv:8", "unreadable_image"),
        ("own.csv:9", "unreadable_image"),
        ("own.csv:10", "no_id"),
        ("own.csv:11", "no_text"),
        ("own.csv:12", "bad_record"),
        ("own.csv:13", "unsafe_path"),
        ("own.csv:15", "unsafe_path"),
    ]
    assert verify_folder(out) == []


def test_the_funnel_adds_up(photos: Path, tmp_path: Path) -> None:
    assert own(tmp_path / "own.csv", tmp_path / "out", "--image-root", str(photos)) == 0
    rows, images = json.loads((tmp_path / "out" / "funnel.json").read_text())
    assert (rows["in"], rows["out"], images["in"], images["out"]) == (14, 10, 10, 4)
    for stage in (rows, images):
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values())


def test_without_a_root_there_are_pairs_only(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert own(tmp_path / "own.csv", out) == 0
    assert "done: 10 pairs, 4 rejects" in capsys.readouterr().out
    assert not list(out.glob("images-*"))
    assert "../secret" in read_table(out, PAIRS).column("image_id").to_pylist()


SPLITS = """\
file,caption,Split
1,one,train
2,two,Test
3,three,tset
4,four,
"""


def split_values(output: Path) -> list[str | None]:
    values: list[str | None] = read_table(output, PAIRS).column("split").to_pylist()
    return values


def test_a_column_called_split_is_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text(SPLITS)
    assert own(tmp_path / "x.csv", tmp_path / "out") == 0
    assert split_values(tmp_path / "out") == ["train", "Test", "tset", None]
    said = capsys.readouterr().out
    assert (
        "splits (column Split): no split 1, train 1 for training; Test 1 for test; tset 1 " in said
    )
    assert "train-vl pretrain refuses them" in said


def test_a_column_called_split_can_be_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text(SPLITS.replace("Split", "split"))
    assert own(tmp_path / "x.csv", tmp_path / "none", "--no-split-column") == 0
    assert split_values(tmp_path / "none") == [None] * 4
    assert own(tmp_path / "x.csv", tmp_path / "other", "--split-column", "caption") == 0
    assert split_values(tmp_path / "other")[0] == "one"
    assert own(tmp_path / "x.csv", tmp_path / "id", "--id-column", "split") == 0
    assert split_values(tmp_path / "id") == [None] * 3
    assert capsys.readouterr().out.count("splits (column") == 1


def test_two_columns_called_split_are_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("file,caption,split,Split\n1,one,train,test\n")
    assert own(tmp_path / "x.csv", tmp_path / "out") == 2
    assert "has the columns split, Split; name one with" in capsys.readouterr().err
    assert own(tmp_path / "x.csv", tmp_path / "out", "--split-column", "Split") == 0
    assert split_values(tmp_path / "out") == ["test"]


def test_ids_of_their_own(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "ids.tsv"
    rows = ["n\tfile\tcaption", "7\t1\tone", "7\t1\tone", "7\t1\ttwo", "8\t1\tone", "\t1\tsix"]
    table.write_text("\n".join(rows))
    assert own(table, tmp_path / "out", "--id-column", "n") == 0
    assert read_table(tmp_path / "out", PAIRS).column("pair_id").to_pylist() == ["7"]
    assert [r for _, r in reasons(tmp_path / "out")] == [
        "duplicate",
        "id_conflict",
        "duplicate",
        "no_id",
    ]


def test_parquet_with_numbers_as_names(photos: Path, tmp_path: Path) -> None:
    table = pa.table({"file": [1, 2], "caption": pa.array(["a", None], pa.large_string())})
    pq.write_table(table, tmp_path / "x.parquet")
    assert own(tmp_path / "x.parquet", tmp_path / "out", "--image-root", str(photos)) == 0
    assert read_table(tmp_path / "out", PAIRS).column("image_id").to_pylist() == ["1"]
    assert reasons(tmp_path / "out") == [("x.parquet:2", "no_text")]


def test_an_empty_table_gives_empty_tables(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("file,caption\n")
    assert own(tmp_path / "x.csv", tmp_path / "out") == 0
    assert read_table(tmp_path / "out", PAIRS).num_rows == 0
    assert verify_folder(tmp_path / "out") == []


def test_a_killed_run_continues_to_the_same_bytes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--image-root", str(photos), "--rows-per-shard", "3"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert own(tmp_path / "own.csv", whole, *flags) == 0
    assert own(tmp_path / "own.csv", killed, *flags, "--workers", "3") == 0
    written = {p.name: p.read_bytes() for p in whole.iterdir()}
    for lost in (["rejects-00001"], ["images-00000", "pairs-00003"], ["rejects-00002", "pairs"]):
        for name in (MANIFEST, "report.html"):
            (killed / name).unlink()
        for path in [p for name in lost for p in killed.glob(f"{name}*")]:
            path.unlink()
        (killed / ".tmp-1-pairs").write_bytes(b"half a shard")
        assert own(tmp_path / "own.csv", killed, *flags) == 0
        assert {p.name: p.read_bytes() for p in killed.iterdir()} == written
    capsys.readouterr()
    assert own(tmp_path / "own.csv", killed, *flags) == 0
    assert "finished before: 4 pairs, 3 images, 10 rejects" in capsys.readouterr().out


def test_another_input_is_not_mixed_in(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own(tmp_path / "own.csv", tmp_path / "out") == 0
    (tmp_path / "own.csv").write_text("file,caption\n1,x\n")
    assert own(tmp_path / "own.csv", tmp_path / "out") == 2
    assert "--fresh" in capsys.readouterr().err
    assert own(tmp_path / "own.csv", tmp_path / "out", "--fresh") == 0
    assert read_table(tmp_path / "out", PAIRS).num_rows == 1


def test_the_report_shows_images_and_escapes_captions(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("file,caption\n1,<script>alert(1)</script>\n,x\n")
    assert own(tmp_path / "x.csv", tmp_path / "out", "--image-root", str(photos)) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;script&gt;alert" in page and "<script>" not in page
    assert "data:image/jpeg;base64," in page and "the column file is empty" in page


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--text-column", "captio"], "--text-column captio: .*did you mean caption?"),
        (["--image-root", "nowhere"], "--image-root nowhere: no such folder"),
        (["--input", "nothing.csv"], "--input nothing.csv: no such file"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert own(tmp_path / "own.csv", tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_data_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["owm", "--input", "x"])
    assert left.value.code == 2 and "own" in capsys.readouterr().err


def test_all_rejected_is_said(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("file,caption\ngone,x\n")
    assert own(tmp_path / "x.csv", tmp_path / "out", "--image-root", str(photos)) == 1
    assert "0 pairs, 0 images, 1 reject (1 missing_image)" in capsys.readouterr().out


@given(st.text())
def test_clean_text_is_stable(text: str) -> None:
    once = clean_text(text)
    assert clean_text(once) == once and once == once.strip() and "\n" not in once


def test_clean_text_by_hand() -> None:
    assert clean_text(" e\u0301t\u00e9\t\n 1 ") == "\u00e9t\u00e9 1"
    assert clean_text("a\0b\u200dc") == "a\ufffdb\u200dc"


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut, repeated or put in."""
    for _ in range(chance.randint(1, 6)):
        at, length = chance.randrange(len(content) + 1), chance.randint(0, 12)
        new = chance.choice([b'"', b",", b"\n", b"\0", b"\xff", b"\r", b"\t", b"../", b'""', b""])
        piece = chance.choice([new, chance.randbytes(3), content[at : at + length] * 2])
        content = content[:at] + piece + content[at + length :]
    return content


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_rows_of_mutated_tables_are_judged(tmp_path: Path, ending: str) -> None:
    """1,000 tables: each is refused in one line, or each of its rows is a caption or a reject."""
    path, chance, outcomes = tmp_path / f"m.{ending}", random.Random(ending), set[str]()
    content = contents_of(tmp_path)[ending]
    for _ in range(334):
        path.write_bytes(mutated(content, chance))
        columns = Columns(image=("file",), text=("caption",))
        try:
            table = table_file(path)
            job = OwnJob(
                table=table,
                columns=columns,
                column_indices=tuple(find_column_indices(table, columns.flagged)),
                rows=0,
                digest="",
                output=path,
            )
            judged = list(judge_rows(job, read_candidates(job), Ledger()))
        except InputError as error:
            assert "\n" not in str(error)
            outcomes.add("refused")
            continue
        outcomes |= {type(result).__name__ for _, result in judged}
    assert outcomes == {"refused", JudgedRow.__name__, "Drop"}


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_mutated_tables_are_all_accounted_for(photos: Path, tmp_path: Path, ending: str) -> None:
    chance, statuses = random.Random(0), set[int]()
    content = contents_of(tmp_path)[ending]
    for number in range(5):
        table, out = tmp_path / f"m.{ending}", tmp_path / f"out-{number}"
        table.write_bytes(mutated(content, chance))
        statuses.add(own(table, out, "--image-root", str(photos), "--workers", "1"))
        if out.exists():
            rows, images = json.loads((out / "funnel.json").read_text())
            assert images["out"] == read_table(out, PAIRS).num_rows
            dropped = sum(rows["rejects"].values()) + sum(images["rejects"].values())
            assert dropped == read_table(out, REJECTS).num_rows
    assert statuses <= {0, 2}


def contents_of(folder: Path) -> dict[str, bytes]:
    """A table in each format."""
    pq.write_table(pa.table({"file": ["1", "2.png"] * 9, "caption": ["x"] * 18}), folder / "p")
    return {
        "csv": ROWS.encode(),
        "tsv": ROWS.replace(",", "\t").encode(),
        "parquet": (folder / "p").read_bytes(),
    }


def test_a_dry_run_measures_and_writes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "captions.csv"
    table.write_text("text,image\n" + "a kite,1.jpg\n" * 2)
    out = tmp_path / "out"
    columns = ["--text-column", "text", "--image-column", "image", "--image-root", str(photos)]
    words = ["own", "--input", str(table), *columns, "--output", str(out)]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    expected = (photos / "1.jpg").stat().st_size + len("a kite")  # the repetition is a reject
    assert f"about {size_words(expected)}, if" in said and "--input 2 rows" in said
    assert not out.exists()
    assert main(words) == 0
    flags = [(entry.flag, entry.rule) for entry in read_manifest(out)["inputs"]]
    assert flags == [("--input", "content"), ("--image-root", "listing")]
