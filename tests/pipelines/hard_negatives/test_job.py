"""The hard_negatives job: rows, resume, and a user's mistakes."""

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.factories import write_images
from tests.pipelines.hard_negatives.corpora import Answer, brute_force, captions, write_tsv

from vlmill.pipelines.hard_negatives import blocks, job
from vlmill.pipelines.hard_negatives.__main__ import main
from vlmill.pipelines.hard_negatives.job import estimate_cost, output_bytes
from vlmill.runtime.console.cost import Rate, size_words
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.tables import IMAGES, NEGATIVES, PAIRS, REJECTS, VOCABULARY

TEXTS = ["a red cat on a mat", "the red dog in a house", "two cats and one dog", "", "a blue cat"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = []
    for number, text in enumerate(TEXTS):
        image_id = compute_image_id(bytes([number]))
        rows.append(
            {"pair_id": compute_pair_id(image_id, text), "image_id": image_id, "text": text}
        )
    write_shard(tmp_path / "pairs", PAIRS, [*rows, rows[0]])
    return tmp_path / "pairs"


def run(pairs: Path, output: Path, *flags: str) -> int:
    return main(["--pairs", str(pairs), "--output", str(output), *flags])


def lists_of(output: Path) -> dict[str, list[str]]:
    rows = read_table(output, NEGATIVES).to_pylist()
    return {row["pair_id"]: row["negative_pair_ids"] for row in rows}


def ids_of(lists: Answer) -> dict[str, list[str]]:
    return {str(k): [str(number) for number, _ in best] for k, best in enumerate(lists)}


def test_every_pair_has_a_row_and_repeats_are_rejected(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path / "out", "--pairs-per-shard", "2") == 0
    assert "negatives of 5 pairs, 1 reject" in capsys.readouterr().out
    table = read_table(tmp_path / "out", NEGATIVES)
    ids = sorted(set(read_table(pairs, PAIRS).column("pair_id").to_pylist()))
    assert table.column("pair_id").to_pylist() == ids
    assert sum(map(len, table.column("negative_pair_ids").to_pylist())) > 0
    (rejected,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert rejected["reason"] == "duplicate"
    assert verify_folder(tmp_path / "out") == []
    assert len(list((tmp_path / "out").glob("negatives-*.parquet"))) == 3


def test_texts_without_a_image_are_images_of_their_own(pairs: Path, tmp_path: Path) -> None:
    texts = [{"pair_id": f"text {k}", "text": "a red cat and its tail"} for k in range(2)]
    write_shard(pairs, PAIRS, [*texts, {"pair_id": "far", "text": "the tail of a dog"}], 1, 2)
    assert run(pairs, tmp_path / "out", "--below", "1") == 0
    lists = lists_of(tmp_path / "out")
    assert "far" in lists["text 0"] and "text 0" in lists["far"] and "text 1" in lists["far"]
    assert json.loads((tmp_path / "out" / "funnel.json").read_text())[0]["without_picture"] == 3


def test_a_killed_run_continues_to_the_same_bytes(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard was not written, in another one a bit has flipped since.

    It continues in this process: the stderr of others is that of the test which first started one.
    """
    assert run(pairs, tmp_path / "whole", "--pairs-per-shard", "2") == 0
    with monkeypatch.context() as patched:
        patched.setattr(job, "collect_findings", _refuse)
        assert run(pairs, tmp_path / "killed", "--pairs-per-shard", "2") == 2
    first, second, third = sorted((tmp_path / "killed").glob("negatives-*.parquet"))
    first.unlink()
    content = bytearray(third.read_bytes())
    content[20] ^= 1
    third.write_bytes(content)
    (tmp_path / "killed" / ".tmp-1-negatives").write_bytes(b"half a shard")
    kept = second.stat().st_mtime_ns
    assert run(pairs, tmp_path / "killed", "--pairs-per-shard", "2", "--workers", "1") == 0
    said = capsys.readouterr().err
    assert "continuing: write, 1 of 3 units finished before" in said
    assert f"{third} has changed since it was written: its SHA-256 differs" in said
    assert "negatives-00002 is done again" in said
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
        (["--tokenizer", "bpe"], "--tokenizer bpe"),
        (["--token-pattern", "("], "--token-pattern"),
        (["--token-pattern", "x", "--tokenizer", "jieba"], "give one"),
        (["--below", "0.3333333"], "6 digits"),
        (["--id-column", "x"], "--text-column"),
        (["--text-column", "caption"], "--text-column caption"),
    ],
)
def test_wrong_arguments_exit_2_in_one_line(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
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
    assert "empty" in errors[-1]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_measures_and_writes_nothing(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "--pairs 6 pairs" in said and "measured on 5" in said
    assert f"up to {size_words(output_bytes(6, 30))}" in said
    assert not (tmp_path / "out").exists()


def test_the_most_bytes_by_hand() -> None:
    assert output_bytes(100, 30) == 100 * (36 + 30 * 40)
    assert output_bytes(2, 30) == 2 * (36 + 2 * 40)  # no more negatives than there are pairs


def test_a_query_takes_twice_as_long_among_four_times_the_captions() -> None:
    rate = Rate(items=1000, seconds=1.0, unit="captions")
    few, many = (estimate_cost(count, 30, rate).seconds for count in (20_000, 2_000_000))
    assert (few, many) == (20.0, 2000.0 * 10)


def test_the_manifest_names_the_pairs(pairs: Path, tmp_path: Path) -> None:
    assert run(pairs, tmp_path / "out") == 0
    (entry,) = read_manifest(tmp_path / "out")["inputs"]
    assert (entry.flag, entry.table, entry.rows, entry.rule) == ("--pairs", "pairs", 6, "ends")


COLUMNS = ["--id-column", "caption_id", "--image-column", "image", "--text-column", "caption"]
CORPUS = [(k // 2, text) for k, text in enumerate(captions(130, 11))]


def write_foreign(path: Path) -> None:
    table = {
        "caption_id": [*range(len(CORPUS))][::-1],
        "image": [image for image, _ in CORPUS][::-1],
        "caption": [text for _, text in CORPUS][::-1],
        "more": [1.5] * len(CORPUS),
    }
    pq.write_table(pa.table(table), path, row_group_size=50)


def test_other_tables_and_parts_give_the_rows_of_brute_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 17)
    expected = ids_of(brute_force(CORPUS))
    write_foreign(tmp_path / "captions.parquet")
    write_tsv(tmp_path / "captions.tsv", CORPUS)
    numbered = ["--workers", "1", "--id-column", "1", "--image-column", "2", "--text-column", "3"]
    assert run(tmp_path / "captions.parquet", tmp_path / "whole", "--workers", "1", *COLUMNS) == 0
    parts = ["--document-parts", "3", "--pairs-per-shard", "50", "--workers", "1"]
    assert run(tmp_path / "captions.parquet", tmp_path / "parts", *COLUMNS, *parts) == 0
    assert run(tmp_path / "captions.tsv", tmp_path / "tsv", *numbered) == 0
    for name in ("whole", "parts", "tsv"):
        assert lists_of(tmp_path / name) == expected
        # Numbers are in the order of numbers, though the table has them as texts.
        assert list(lists_of(tmp_path / name)) == [str(k) for k in range(len(CORPUS))]
    whole, parts_table = (read_table(tmp_path / name, NEGATIVES) for name in ("whole", "parts"))
    assert whole.equals(parts_table)


def test_beam_gives_the_same_bytes_as_this_machine(tmp_path: Path) -> None:
    write_foreign(tmp_path / "t.parquet")
    flags = [*COLUMNS, "--document-parts", "2", "--pairs-per-shard", "50"]
    assert run(tmp_path / "t.parquet", tmp_path / "here", *flags) == 0
    assert run(tmp_path / "t.parquet", tmp_path / "beam", *flags, "--runner=FnApiRunner") == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "here").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "beam").iterdir()} == files


def test_texts_as_ids_are_in_the_order_of_code_points(tmp_path: Path) -> None:
    ids = ["10", "9", "\uff5e", "\U0001f600", "a", "Z"]
    table = {"id": ids, "text": [f"word other{k}" for k in range(6)]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    flags = ["--id-column", "id", "--text-column", "text", "--below", "1"]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags) == 0
    assert list(lists_of(tmp_path / "out")) == sorted(ids)
    assert lists_of(tmp_path / "out")["10"] == sorted(set(ids) - {"10"})


def test_a_run_continues_from_what_lies_in_its_work(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before the report: staged captions, bags, index and lists are used again."""
    assert run(pairs, tmp_path / "whole") == 0
    with monkeypatch.context() as patched:
        patched.setattr(job, "collect_findings", _refuse)
        assert run(pairs, tmp_path / "out") == 2
    work = tmp_path / "out" / WORK
    assert {p.name for p in work.iterdir()} >= {"captions", "words", "bags", "part-0"}
    (work / ".tmp-1-bags").mkdir()
    for shard in (tmp_path / "out").glob("negatives-*"):
        shard.unlink()
    for step in ("stage", "load_bags", "build_index", "search_range", "count_chunk"):
        for module in ("job", "blocks", "vectors"):
            name = f"vlmill.pipelines.hard_negatives.{module}.{step}"
            monkeypatch.setattr(name, _stop, raising=False)
    assert run(pairs, tmp_path / "out") == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "whole").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == files


def _refuse(*_: object) -> None:
    raise InputError("--images x: it is damaged")


def _stop(*_: object, **__: object) -> None:
    raise OSError("the disk is gone")


def test_the_vocabulary_is_saved(pairs: Path, tmp_path: Path) -> None:
    assert run(pairs, tmp_path / "out", "--token-pattern", "[a-z]{3,}") == 0
    rows = read_table(tmp_path / "out", VOCABULARY).to_pylist()
    assert [(row["word"], row["captions"]) for row in rows][:4] == [
        *[("cat", 2), ("dog", 2), ("red", 2), ("and", 1)]
    ]
    assert rows[0]["idf"] == pytest.approx(1.6931471805599454)  # ln(6 / 3) + 1


CHINESE = ["一只红色的猫在垫子上", "一只黑色的狗在房子里", "红色的猫和黑色的狗", "我的房子里有垫子"]


def test_chinese_needs_a_tokenizer_that_cuts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"text": CHINESE}), tmp_path / "t.parquet")
    flags = ["--text-column", "text"]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "4 of 4 captions" in error and "--tokenizer jieba" in error
    cut = ["--tokenizer", "jieba", "--below", "1"]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags, *cut) == 0
    assert all(lists_of(tmp_path / "out").values())
    words = read_table(tmp_path / "out", VOCABULARY).column("word").to_pylist()
    assert "红色" in words and "房子" in words


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.5, 2.5], "--id-column id: the column of"),
        ([[1], [2]], "must be text or whole numbers"),
        (pa.array([1, 2**64 - 1], pa.uint64()), "a number above 2^63 - 1"),
    ],
)
def test_ids_that_cannot_be_compared_exit_2_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ids: object, message: str
) -> None:
    pq.write_table(pa.table({"id": ids, "text": ["a cat", "a dog"]}), tmp_path / "t.parquet")
    flags = ["--id-column", "id", "--text-column", "text"]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and "while running" not in error


def test_null_texts_and_ids_are_rejected_and_empty_captions_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"id": ["a", "b", None, "c"], "text": ["one cat", None, "two cats", ""]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    flags = ["--id-column", "id", "--text-column", "text"]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags) == 0
    said = capsys.readouterr().out
    assert "2 pairs, 2 rejects (1 no_text, 1 no_id), 2 without negatives" in said
    assert lists_of(tmp_path / "out") == {"a": [], "c": []}
    captions_stage, lists_stage = json.loads((tmp_path / "out" / "funnel.json").read_text())
    assert captions_stage["rejects"] == {"no_text": 1, "no_id": 1}
    assert (captions_stage["in"], captions_stage["out"]) == (4, 2)
    assert (lists_stage["in"], lists_stage["out"], lists_stage["rejects"]) == (2, 2, {})
    assert lists_stage["without_negatives"] == 2


@pytest.mark.parametrize("parts", [1, 3])
def test_the_report_counts_how_often_a_caption_is_a_negative(
    pairs: Path, tmp_path: Path, parts: int
) -> None:
    cut = ["--document-parts", str(parts), "--below", "1"]
    assert run(pairs, tmp_path / "out", *cut) == 0
    texts = {row["pair_id"]: row["text"] for row in read_table(pairs, PAIRS).to_pylist()}
    times = Counter(texts[n] for many in lists_of(tmp_path / "out").values() for n in many)
    page = (tmp_path / "out" / "report.html").read_text()
    popular = page.partition("Most often a negative</h2>")[2].partition("</table>")[0]
    shown = re.findall(r"<td[^>]*>(\d+)</td>\s*<td[^>]*>([^<]*)</td>", popular)
    assert times and {text: int(count) for count, text in shown} == times


def test_a_word_thousands_of_times_has_its_negatives_or_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = [(0, "spam " * 30_000), *((k, f"spam eggs{k} ham{k % 3}") for k in range(1, 9))]
    write_tsv(tmp_path / "t.tsv", corpus)
    flags = ["--id-column", "1", "--image-column", "2", "--text-column", "3"]
    assert run(tmp_path / "t.tsv", tmp_path / "out", *flags) == 0
    assert lists_of(tmp_path / "out") == ids_of(brute_force(corpus))
    assert lists_of(tmp_path / "out")["0"]
    assert run(tmp_path / "t.tsv", tmp_path / "fine", *flags, "--below", "0.499999") == 2
    assert "the caption 0 repeats a word" in capsys.readouterr().err
    # What was refused is not in the way of other flags.
    assert not (tmp_path / "fine").exists()
    assert run(tmp_path / "t.tsv", tmp_path / "fine", *flags) == 0
    assert lists_of(tmp_path / "fine") == lists_of(tmp_path / "out")


def test_the_report_shows_captions_and_the_images_of_both(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 2)
    image_ids = read_table(tmp_path / "images", IMAGES).column("image_id").to_pylist()
    texts = ["<b>a cat</b> of stone", "a cat of wood and iron"]
    table = {"image": image_ids, "text": texts}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    flags = ["--text-column", "text", "--image-column", "image", "--below", "1"]
    images = ["--images", str(tmp_path / "images")]
    assert run(tmp_path / "t.parquet", tmp_path / "out", *flags, *images) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 4  # two captions, each with its negative
    assert page.count("negative, cosine") == 2
    assert "&lt;b&gt;a cat" in page and "<b>a cat" not in page
