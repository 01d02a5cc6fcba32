"""tables: what is joined, what stays of a condition, a draw, a removal; and a user's mistakes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.object_stores import download_folder, upload_folder

from vlmill.pipelines.tables.__main__ import main
from vlmill.runtime.files.manifest import MANIFEST, verify_folder, write_manifest
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.ids import key64
from vlmill.schemas.tables import (
    ALIASES,
    IMAGES,
    NEGATIVES,
    PAIRS,
    REGIONS,
    REJECTS,
    STATEMENTS,
    Table,
)


def pair(number: int, image: str | None, **more: Any) -> dict[str, Any]:
    return {"pair_id": f"p{number}", "image_id": image, "text": f"text {number}"} | more


def image(name: str, content: bytes = b"x", **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"image_id": name, "bytes": content, "sha256": digest} | more


def folder(path: Path, tables: dict[Table, list[list[dict[str, Any]]]], **about: Any) -> str:
    """A job's output: the shards of each table."""
    shards = [
        write_shard(path, table, rows, index, len(parts), **about)
        for table, parts in tables.items()
        for index, rows in enumerate(parts)
    ]
    write_manifest(path, shards, job="made", settings={})
    return str(path)


@pytest.fixture
def mined(tmp_path: Path) -> str:
    """Five pairs of three images in two shards, with negatives and an alias."""
    scores = [0.9, 0.1, None, 0.6, 0.7]
    names = ["a", "a", "b", "c", None]
    rows = [
        pair(n, image_name, score=score, image_url=f"http://x/{image_name}.jpg", language="en")
        for n, (image_name, score) in enumerate(zip(names, scores, strict=True))
    ]
    negatives = [{"pair_id": "p0", "negative_pair_ids": ["p3", "p2"], "similarities": [0.4, 0.3]}]
    return folder(
        tmp_path / "mined",
        {
            PAIRS: [rows[:3], rows[3:]],
            IMAGES: [[image(name, name.encode(), source_url=f"http://x/{name}.jpg")
                      for name in ("a", "b", "c")]],
            NEGATIVES: [negatives],
            ALIASES: [[{"image_id": "b", "alias": "flickr/12"}]],
        },
    )  # fmt: skip


def ids(path: Path, table: Table, column: str = "pair_id") -> list[str]:
    return [str(value) for value in read_table(path, table).column(column).to_pylist()]


def test_concat_keeps_the_first_of_each_id_and_says_why_others_went(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = folder(
        tmp_path / "other",
        {PAIRS: [[pair(0, "a", score=0.9, image_url="http://x/a.jpg", language="en"),
                  pair(3, "z"), pair(9, "z")]],
         IMAGES: [[image("a", b"a"), image("z")]]},
    )  # fmt: skip
    out = tmp_path / "out"
    assert main(["concat", mined, other, "--output", str(out)]) == 0
    assert ids(out, PAIRS) == ["p0", "p1", "p2", "p3", "p4", "p9"]
    assert ids(out, IMAGES, "image_id") == ["a", "b", "c", "z"]
    rejects = [(r["key"], r["reason"]) for r in read_table(out, REJECTS).to_pylist()]
    assert rejects == [
        ("images:a", "duplicate"),  # its bytes are the same, wherever they came from
        ("pairs:p0", "duplicate"),
        ("pairs:p3", "id_conflict"),
    ]
    funnel = {s["stage"]: s for s in json.loads((out / "funnel.json").read_text())}
    assert funnel["pairs"] == {
        "stage": "pairs", "unit": "rows", "in": 8, "out": 6,
        "rejects": {"duplicate": 1, "id_conflict": 1},
    }  # fmt: skip
    assert verify_folder(out) == []
    assert "6 of 8 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "stay"),
    [
        ("score > 0.5", ["p0", "p3", "p4"]),
        ("not (score > 0.5)", ["p1"]),  # of a null neither holds
        ("score is None", ["p2"]),
        ("score is not None and image_id in ['a', 'b']", ["p0", "p1"]),
        ("image_id not in ('a',) or score == 0.9", ["p0", "p2", "p3"]),
        ("text == 'text 4'", ["p4"]),
        ("score < 0", []),
    ],
)
def test_filter_keeps_the_rows_of_which_a_condition_holds(
    mined: str, tmp_path: Path, where: str, stay: list[str]
) -> None:
    out = tmp_path / "out"
    assert main(["filter", mined, "--where", where, "--output", str(out)]) == 0
    pairs = read_table(out, PAIRS).to_pylist()
    assert [row["pair_id"] for row in pairs] == stay
    # Other tables keep what is about the images and pairs that are left.
    images = sorted({row["image_id"] for row in pairs if row["image_id"]})
    assert ids(out, IMAGES, "image_id") == images
    assert ids(out, NEGATIVES) == (["p0"] if "p0" in stay else [])
    assert ids(out, ALIASES, "image_id") == [name for name in images if name == "b"]
    assert verify_folder(out) == []


@pytest.mark.parametrize(
    "words",
    [
        ["filter", "--where", "score > 0.5"],
        ["sample", "--rows", "2"],
        ["remove", "--urls", "asked.txt"],
        ["concat"],
    ],
)
def test_each_table_s_rows_are_kept_or_counted_by_reason(
    mined: str, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.txt").write_text("http://x/b.jpg\n")
    more = [] if words[0] == "concat" else words[1:]
    inputs = [mined, mined] if words[0] == "concat" else [mined]
    assert main([words[0], *inputs, *more, "--output", "out"]) == 0
    tables = {table.name: table for table in (PAIRS, IMAGES, NEGATIVES, ALIASES)}
    stages = json.loads((tmp_path / "out/funnel.json").read_text())
    assert {stage["stage"] for stage in stages} == set(tables)
    for stage in stages:
        table = tables[stage["stage"]]
        assert stage["in"] == len(inputs) * read_table(mined, table).num_rows
        assert stage["out"] == stage["in"] - sum(stage["rejects"].values())
        found = list((tmp_path / "out").glob(f"{table.name}-*"))
        assert stage["out"] == (read_table(tmp_path / "out", table).num_rows if found else 0)


def test_filter_drops_pairs_of_low_scores(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["filter", mined, "--min-score", "0.7", "--output", str(out)]) == 0
    assert ids(out, PAIRS) == ["p0", "p4"]
    (stage,) = (s for s in json.loads((out / "funnel.json").read_text()) if s["stage"] == "pairs")
    assert stage["rejects"] == {"low_score": 3}  # one of them has no score
    assert ids(out, IMAGES, "image_id") == ["a"] and verify_folder(out) == []
    wrong = ["--min-score", "0.7", "--table", "images", "--output", str(tmp_path / "no")]
    assert main(["filter", mined, *wrong]) == 2
    assert "images has no such scores" in capsys.readouterr().err


def test_filter_reads_earlier_versions_and_single_tables(tmp_path: Path, mined: str) -> None:
    out = tmp_path / "out"
    assert main(["filter", f"{mined}/pairs-*.parquet", "--where", "fold is None",
                 "--output", str(out)]) == 0  # fmt: skip
    assert ids(out, PAIRS) == ["p0", "p1", "p2", "p3", "p4"]
    assert not list(out.glob("images-*"))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("scor > 1", "pairs has no column scor"),
        ("score = 1", "invalid syntax"),
        ("score", "not a comparison"),
        ("1 > 0", "names no column"),
        ("__import__('os').system('id')", "no column __import__"),
        ("score > open('x')", "no column open"),
        ("score > [1]", "not a value"),
        ("score > 'a'", "expected a condition"),
        ("score in []", "needs a list"),
        ("text is text", "only for None"),
    ],
)
def test_a_condition_that_is_none_is_told_in_a_line(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, said: str
) -> None:
    assert main(["filter", mined, "--where", where, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_sample_depends_on_ids_and_seed_alone(mined: str, tmp_path: Path) -> None:
    drawn = {}
    for seed in ("1", "2", "3"):
        out = tmp_path / f"out{seed}"
        assert main(["sample", mined, "--rows", "2", "--seed", seed, "--output", str(out)]) == 0
        drawn[seed] = ids(out, PAIRS)
        assert len(drawn[seed]) == 2
    assert len(set(map(tuple, drawn.values()))) > 1
    rows = read_table(mined, PAIRS).to_pylist()[::-1]
    backwards = folder(tmp_path / "backwards", {PAIRS: [rows]})
    assert main(["sample", backwards, "--rows", "2", "--seed", "1", "--output",
                 str(tmp_path / "b")]) == 0  # fmt: skip
    assert sorted(ids(tmp_path / "b", PAIRS)) == sorted(drawn["1"])
    assert main(["sample", mined, "--fraction", "1", "--output", str(tmp_path / "all")]) == 0
    assert ids(tmp_path / "all", PAIRS) == ["p0", "p1", "p2", "p3", "p4"]


def test_remove_takes_a_image_out_of_every_table_and_names_who_saw_it(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text("http://x/b.jpg\n\n")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name, ids_ in (("images", ["a", "b"]), ("pairs", ["p0", "p3"])):
        np.save(checkpoint / f"trained_{name}.npy", np.unique(np.array([*map(key64, ids_)], "u8")))
    out = tmp_path / "out"
    flags = ["--urls", str(asked), "--checkpoints", str(checkpoint)]
    assert main(["remove", mined, *flags, "--output", str(out)]) == 0
    assert ids(out, PAIRS) == ["p0", "p1", "p3", "p4"]
    assert ids(out, IMAGES, "image_id") == ["a", "c"]
    assert read_table(out, ALIASES).num_rows == 0
    (negatives,) = read_table(out, NEGATIVES).to_pylist()
    assert negatives["negative_pair_ids"] == ["p3"]  # p2 was of the image
    assert negatives["similarities"] == pytest.approx([0.4])
    assert "was trained on 1 of these images and 0 of these pairs" in capsys.readouterr().err
    assert b"http://x/b.jpg" not in b"".join(p.read_bytes() for p in out.glob("*"))


def test_remove_finds_images_by_digest_and_by_id_in_lists_too(tmp_path: Path) -> None:
    rows = [
        {"example_id": f"e{n}", "image_ids": names, "text_a": "t", "label_id": 1}
        for n, names in enumerate((["a", "b"], ["c", "d"], []))
    ]
    given = folder(tmp_path / "in", {STATEMENTS: [rows], IMAGES: [[image("b", b"b"), image("c")]]})
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(hashlib.sha256(b"b").hexdigest().upper() + "\n")
    assert main(["remove", given, "--sha256", str(wanted), "--output", str(tmp_path / "o")]) == 0
    assert ids(tmp_path / "o", STATEMENTS, "example_id") == ["e1", "e2"]
    assert ids(tmp_path / "o", IMAGES, "image_id") == ["c"]
    wanted.write_text("d\n")
    assert main(["remove", given, "--image-ids", str(wanted), "--output", str(tmp_path / "q")]) == 0
    assert ids(tmp_path / "q", STATEMENTS, "example_id") == ["e0", "e2"]


def test_remove_says_what_is_nowhere_in_the_tables(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ["http://x/b.jpg", *(f"http://nowhere/<{n}>.jpg" for n in range(5))]
    digests = [hashlib.sha256(content).hexdigest() for content in (b"b", b"nothing")]
    flags = []
    for flag, lines in (
        ("--urls", [*urls, urls[-1]]),
        ("--sha256", digests),
        ("--image-ids", ["z", "a"]),
    ):
        (tmp_path / flag[2:]).write_text("\n".join(lines))
        flags += [flag, str(tmp_path / flag[2:])]
    command = ["remove", mined, *flags, "--output", str(tmp_path / "out")]
    for _ in range(2):  # a finished run says the same again
        assert main(command) == 0
        error = capsys.readouterr().err
        first = ", ".join(urls[1:4])
        assert f"warning: 5 of --urls not found in IN: {first}, ...; all of them: " in error
        assert f"1 of --sha256 not found in IN: {digests[1]}; " in error
        assert "1 of --image-ids not found in IN: z; " in error
    absent = json.loads((tmp_path / "out/not_found.json").read_text())
    assert absent == {"urls": urls[1:], "sha256": digests[1:], "image_ids": ["z"]}
    assert "http://nowhere/&lt;0&gt;.jpg" in (tmp_path / "out/report.html").read_text()


def test_remove_finds_a_url_by_its_alias_and_an_id_in_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alias = f"url-sha256/{hashlib.sha256(b'http://x/1').hexdigest()}"
    statement = {"example_id": "e", "image_ids": ["d", "e"], "text_a": "t", "label_id": 1}
    rows: list[dict[str, Any]] = [{"image_id": "c", "alias": alias}]
    given = folder(tmp_path / "in", {STATEMENTS: [[statement]], ALIASES: [rows]})
    (tmp_path / "urls").write_text("http://x/1\n")
    (tmp_path / "ids").write_text("e\n")
    flags = ["--urls", str(tmp_path / "urls"), "--image-ids", str(tmp_path / "ids")]
    assert main(["remove", given, *flags, "--output", str(tmp_path / "o")]) == 0
    assert "nowhere" not in capsys.readouterr().err
    assert json.loads((tmp_path / "o/not_found.json").read_text()) == {"urls": [], "image_ids": []}
    assert read_table(tmp_path / "o", ALIASES).num_rows == 0


@pytest.mark.parametrize("asked", ["vg/1", "coco/9", "flickr/7", "flickr30k/7", "copy"])
def test_remove_takes_a_image_out_under_all_its_names(tmp_path: Path, asked: str) -> None:
    names = [("vg/1", "coco/9"), ("coco/9", "flickr/7"), ("flickr30k/7", "flickr/7"), ("vg/2", "x")]
    aliases = [{"image_id": name, "alias": alias} for name, alias in names]
    images = [image("flickr30k/7", b"seven"), image("copy", b"seven"), image("vg/2", b"two")]
    of = ("vg/1", "coco/9", "flickr30k/7", "copy", "vg/2", None)
    pairs = [pair(number, name) for number, name in enumerate(of)]
    given = folder(tmp_path / "in", {PAIRS: [pairs], IMAGES: [images], ALIASES: [aliases]})
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(asked)
    assert main(["remove", given, "--image-ids", str(wanted), "--output", str(tmp_path / "o")]) == 0
    assert ids(tmp_path / "o", PAIRS) == ["p4", "p5"]
    assert ids(tmp_path / "o", IMAGES, "image_id") == ["vg/2"]
    assert ids(tmp_path / "o", ALIASES, "alias") == ["x"]


def regions(name: str) -> list[dict[str, Any]]:
    return [{"image_id": name, "width": 2, "height": 2, "num_boxes": 0, "boxes": [],
             "features": b""}]  # fmt: skip


def test_regions_of_different_detectors_are_not_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        folder(tmp_path / name, {REGIONS: [regions(name)]}, producer={"detector_fingerprint": name})
        for name in ("one", "two")
    ]
    assert main(["concat", *given, "--output", str(tmp_path / "out")]) == 2
    assert "by the detector two" in capsys.readouterr().err
    third = folder(
        tmp_path / "three", {REGIONS: [regions("x")]}, producer={"detector_fingerprint": "one"}
    )
    assert main(["concat", given[0], third, "--output", str(tmp_path / "joined")]) == 0
    from vlmill.runtime.readers.regions import RegionReader

    assert RegionReader(tmp_path / "joined").detector_fingerprint == "one"


def test_a_killed_run_is_continued_to_the_same_bytes(mined: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["concat", mined, "--output", str(out)]
    assert main(flags) == 0
    files = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    for name in (MANIFEST, "pairs-00001-of-00002.parquet", "rejects-00000-of-00001.parquet"):
        (out / name).unlink()
    (out / ".tmp-1-pairs-00001-of-00002.parquet").write_bytes(b"half")
    assert main(flags) == 0
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == files
    assert not list(out.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["concat", "nowhere"], "IN nowhere: no table there"),
        (["filter", "{mined}", "--where", "score > 1", "--table", "regions"], "has only"),
        (["sample", "{mined}", "--fraction", "1.5"], "at most 1"),
        (["sample", "{mined}", "--rows", "1", "--table", "aliases"], "no id to sample by"),
        (["remove", "{mined}"], "name the rows"),
        (["remove", "{mined}", "--urls", "nowhere"], "no such file"),
        (["remove", "{mined}", "--sha256", "{mined}/_manifest.json"], "not a SHA-256"),
        (["remove", "{mined}", "--image-ids", "{empty}"], "is empty"),
    ],
)
def test_mistakes_are_one_line(
    mined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    places = {"mined": mined, "empty": str(tmp_path / "empty.txt")}
    flags = [argument.format(**places) for argument in arguments]
    assert main([*flags, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("table", "column", "values", "said"),
    [
        (ALIASES, "alias", [3], "aliases.alias is int64, must be string"),
        (STATEMENTS, "example_id", [None], "1 nulls, must have none"),
    ],
)
def test_a_table_that_breaks_its_contract_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    table: Table,
    column: str,
    values: list[Any],
    said: str,
) -> None:
    rows: dict[Table, dict[str, Any]] = {
        ALIASES: {"image_id": "a", "alias": "b"},
        STATEMENTS: {"example_id": "e", "image_ids": [], "text_a": "t", "label_id": 1},
    }
    given = folder(tmp_path / "in", {table: [[rows[table]]]})
    path = tmp_path / "in" / f"{table.name}-00000-of-00001.parquet"
    broken = pq.read_table(path)
    kind = pa.array(values, None if values[0] is not None else pa.string())
    at = broken.schema.get_field_index(column)
    pq.write_table(broken.remove_column(at).add_column(at, column, kind), path)
    assert main(["concat", given, "--output", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_an_output_among_the_inputs_is_refused(
    mined: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["concat", mined, "--output", mined]) == 2
    assert "is one of the IN" in capsys.readouterr().err


@pytest.mark.nightly  # test_sets.py of manifest reads and writes tables in a store
def test_tables_in_a_store(mined: str, bucket: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text("http://x/a.jpg\n")
    upload_folder(tmp_path / "mined", f"{bucket}/mined")
    upload_folder(tmp_path / "mined", f"{bucket}/again")
    to_path(f"{bucket}/asked.txt").upload(asked)  # type: ignore[attr-defined]
    verbs = {
        "concat": ("concat", "{}/mined", "{}/again"),
        "filter": ("filter", "{}/mined/pairs-*.parquet", "--where", "score > 0.5"),
        "remove": ("remove", "{}/mined", "--urls", "{}/asked.txt"),
    }
    (tmp_path / "again").symlink_to(mined)
    for verb, words in verbs.items():
        for place in (str(tmp_path), bucket):
            command = [word.format(place) for word in words]
            assert main([*command, "--output", f"{place}/{verb}"]) == 0
        there = download_folder(f"{bucket}/{verb}", tmp_path / f"{verb}-there")
        names = sorted(path.name for path in (tmp_path / verb).glob("*.parquet"))
        assert names == sorted(path.name for path in there.glob("*.parquet"))
        assert [pq.read_table(there / n).num_rows for n in names] == [
            pq.read_table(tmp_path / verb / n).num_rows for n in names
        ]
        assert verify_folder(f"{bucket}/{verb}") == []
    # A kill before the end: what is there is read again, and not written.
    (to_path(f"{bucket}/concat") / MANIFEST).unlink()
    command = [word.format(bucket) for word in verbs["concat"]]
    assert main([*command, "--output", f"{bucket}/concat"]) == 0
    assert ids(tmp_path / "concat", PAIRS) == ids(tmp_path / "concat-there", PAIRS)
