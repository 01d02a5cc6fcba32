from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS, REJECTS
from vlmill.train.loading.store import files as prepared
from vlmill.train.loading.store import table as sample_table
from vlmill.train.loading.store.pairs import pair_rows, summarise_pairs
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples, region_facts
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.store.usable import require_images, sample_ids
from vlmill.train.loading.vocabulary import train_vocabulary

if TYPE_CHECKING:
    from tests.factories import Tables

ROWS = [("p", "a dog runs"), ("q", "a cat sleeps"), ("p", "The dog sleeps"), ("r", "A DOG RUNS")]


def prepare(
    tables: Tables, folder: Path, negatives: str | None = None, **changes: Any
) -> Counter[str]:
    what = PreparationInputs(
        pairs=tables.pairs,
        tokenizer=train_vocabulary([text for _, text in ROWS], 90),
        max_tokens=5,
        images=RegionReader(tables.regions),
        negatives=negatives,
    )
    with ShardWriter(folder, REJECTS, 0, 1) as rejects:
        return prepare_samples(folder / "prepared", dataclasses.replace(what, **changes), rejects)


def test_every_pair_is_kept_or_rejected(tables: Tables, tmp_path: Path) -> None:
    rows = [*ROWS, ("missing", "a dog"), ("empty", "a dog"), ("p", "\u200b"), ("p", "a cat")]
    splits = {"split": [*["train", None, None, None], None, None, None, "test"]}
    ids = tables.write_pairs(rows, splits)
    tables.write_regions(["p", "q", "r", "empty"], empty=("empty",))
    counts = prepare(tables, tmp_path)
    del counts["cut"]
    assert counts == {"kept": 4, "no_regions": 1, "no_boxes": 1, "no_text": 1, "held_out": 1}
    rejects = read_table(str(tmp_path), REJECTS).to_pylist()
    assert [(row["key"], row["reason"]) for row in rejects] == [
        (ids[4], "no_regions"),
        (ids[5], "no_boxes"),
        (ids[6], "no_text"),
        (ids[7], "held_out"),
    ]
    table = SampleTable.open(tmp_path / "prepared")
    assert [table.pair_id(row) for row in range(len(table))] == ids[:4]


def test_samples_read_back(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "ROWS", 3)  # two record batches
    monkeypatch.setattr(sample_table, "ROWS", 3)
    tables.write_pairs(ROWS, {"source": ["cc", "sbu", None, "cc"]})
    tables.write_regions(["p", "q", "r"])
    prepare(tables, tmp_path)
    table = SampleTable.open(tmp_path / "prepared")
    assert [table.image_id(row) for row in range(4)] == ["p", "q", "p", "r"]
    assert [len(table.tokens(row)) for row in range(4)] == [5, 5, 5, 5]
    assert table.tokens(0)[0] == 2 and table.tokens(3)[-1] == 3  # [CLS], [SEP]
    assert table.select_rows(("cc",)).tolist() == [0, 3]
    assert table.select_rows(("cc", "sbu")).tolist() == [0, 1, 3]
    assert table.select_rows(()).tolist() == [0, 2, 1, 3]  # those of one image side by side
    assert table.sources() == {"cc": 2, "null": 1, "sbu": 1}
    assert [int(table.has_source(name).sum()) for name in table.sources()] == [2, 1, 1]
    assert table.select_rows(("null", "sbu")).size == 2


def test_matches_by_image_and_by_equal_text(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    prepare(tables, tmp_path)
    table = SampleTable.open(tmp_path / "prepared")
    matching = {(t, i) for t in range(4) for i in range(4) if table.matches(t, i)}
    of_p, of_r = {(0, 0), (0, 2), (2, 0), (2, 2)}, {(3, 3)}
    # Rows 0 and 3 are the same text but for case: a caption of both images.
    assert matching == of_p | of_r | {(1, 1), (3, 0), (3, 2), (0, 3)}


def test_long_texts_are_cut_before_the_last_token(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([("p", "a dog runs a cat sleeps")])
    tables.write_regions(["p"])
    assert prepare(tables, tmp_path)["cut"] == 1
    tokens = SampleTable.open(tmp_path / "prepared").tokens(0)
    assert len(tokens) == 5 and tokens[-1] == 3


def test_regions_that_are_not_finite_are_rejected_where_their_writer_has_not_looked(
    tables: Tables, tmp_path: Path
) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    arrays, rows = RegionReader(tables.regions).arrays, read_table(tables.regions, REGIONS)
    spoilt = rows.to_pylist()
    spoilt[0]["features"] = spoilt[0]["features"][:-2] + b"\x00\x7e"  # NaN
    write_shard(tables.regions, REGIONS, spoilt, arrays=arrays)
    counts = prepare(tables, tmp_path)
    assert (counts["kept"], counts["not_finite"]) == (2, 2)
    rejects = read_table(tmp_path, REJECTS).to_pylist()
    assert [(row["reason"], row["detail"]) for row in rejects] == [("not_finite", "p")] * 2


def test_texts_alone_have_a_length_of_their_own(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([("p", "a dog runs a cat sleeps"), ("p", "a cat runs a dog sleeps")])
    tables.write_regions(["p"])
    rows = [row for batch in pair_rows(tables.pairs) for row in batch]
    rows[1]["image_id"] = None
    empty = dict.fromkeys(PAIRS.schema.names)
    write_shard(tables.pairs, PAIRS, [{**empty, **row} for row in rows])
    for longest, lengths, cut in (
        (20, [5, 10], 1),
        (8, [5, 8], 2),
        (4, [5, 4], 2),
        (None, [5, 5], 2),
    ):
        counts = prepare(tables, tmp_path, takes_texts=True, max_tokens_alone=longest)
        table = SampleTable.open(tmp_path / "prepared")
        assert table.num_tokens.tolist() == lengths and counts["cut"] == cut
        assert [table.tokens(row)[-1] for row in (0, 1)] == [3, 3]


def test_hard_negatives_become_rows(tables: Tables, tmp_path: Path) -> None:
    ids = tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    negatives = tables.write_negatives({ids[2]: [ids[1], "unknown", ids[3]], "unknown": [ids[0]]})
    counts = prepare(tables, tmp_path, negatives)
    assert counts["hard_negatives"] == 2
    table = SampleTable.open(tmp_path / "prepared")
    assert [table.hard_negatives(row).tolist() for row in range(4)] == [[], [], [1, 3], []]
    prepare(tables, tmp_path)  # without negatives: nothing is left of the earlier ones
    assert SampleTable.open(tmp_path / "prepared").hard_negatives(2).tolist() == []


def test_images_meet_regions_and_images_by_name(
    tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a/p.jpg", "a dog runs"), ("q", "a cat sleeps"), ("gone.jpg", "The dog sleeps")]
    tables.write_pairs(rows)
    tables.write_regions(["q.png", "p"])
    empty = dict.fromkeys(IMAGES.schema.names)
    images = [{**empty, "image_id": name, "bytes": b"x"} for name in ("p.jpg", "q")]
    write_shard(tmp_path / "images", IMAGES, images)
    counts = prepare(tables, tmp_path, other_tables=(ImageReader(tmp_path / "images"),))
    assert (counts["kept"], counts["no_regions"]) == (2, 1)
    table = SampleTable.open(tmp_path / "prepared")
    assert table.image_rows.tolist() == [1, 0]
    assert [table.image_id(row) for row in range(2)] == ["a/p.jpg", "q"]
    said = capsys.readouterr().err
    assert "note: --pairs and --regions call 2 images by different ids; they met: " in said
    assert "1 but for an ending (q is q.png), 1 but for folders (a/p.jpg is p)" in said
    assert "--images call 1 images by different ids" in said


def test_of_a_pair_id_that_comes_again_the_first_pair_is_kept(
    tables: Tables, tmp_path: Path
) -> None:
    ids = tables.write_pairs([*ROWS[:2], *ROWS[:2], ROWS[3], ROWS[1]])
    tables.write_regions(["p", "q", "r"])
    counts = prepare(tables, tmp_path)
    assert (counts["kept"], counts["duplicate"]) == (3, 3)
    rejects = read_table(str(tmp_path), REJECTS).to_pylist()
    assert [(row["key"], row["reason"]) for row in rejects] == [
        (ids[0], "duplicate"),
        (ids[1], "duplicate"),
        (ids[1], "duplicate"),
    ]


def test_negatives_of_other_pairs_are_refused(
    tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    others = {"x": ["y"], "y": ["x"]}
    message = f"0 of the 2 pair_ids of --negatives .* .it has x, --pairs has {ids[0]}"
    with pytest.raises(InputError, match=message):
        prepare(tables, tmp_path, tables.write_negatives(others))
    assert prepare(tables, tmp_path, tables.write_negatives(others | {ids[0]: [ids[1]]}))
    said = capsys.readouterr().err
    assert "warning: only 1 of the 3 pair_ids of --negatives" in said
    half = {ids[0]: [ids[1]], "x": ["y"]}
    assert prepare(tables, tmp_path, tables.write_negatives(half))["hard_negatives"] == 1
    assert "warning" not in capsys.readouterr().err


def test_ids_of_both_tables_for_an_error(tables: Tables) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["x", "y"])
    what = PreparationInputs(
        pairs=tables.pairs,
        tokenizer=train_vocabulary([text for _, text in ROWS], 90),
        max_tokens=5,
        images=RegionReader(tables.regions),
    )
    assert sample_ids(what) == "--pairs has p q p, --regions has x y"
    assert sample_ids(dataclasses.replace(what, images=None)) == ""
    tables.write_pairs([])
    assert sample_ids(what) == "--pairs has no ids, --regions has x y"


def test_facts_of_regions(tables: Tables) -> None:
    tables.write_regions(["p", "q"], empty=("q",))
    facts = region_facts(tables.regions)
    assert (facts.empty, facts.num_classes, facts.num_images) == (frozenset({"q"}), 5, 2)
    tables.write_regions(["p"], classes=None)
    assert region_facts(tables.regions).num_classes == 0


def test_no_pairs_at_all(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([])
    tables.write_regions(["p"])
    assert prepare(tables, tmp_path)["kept"] == 0
    assert len(SampleTable.open(tmp_path / "prepared")) == 0
    assert summarise_pairs(tables.pairs).count == 0


def test_the_digest_depends_on_texts_and_their_order(tables: Tables) -> None:
    digests = set()
    for rows in (ROWS, ROWS[::-1], ROWS[:-1]):
        tables.write_pairs(rows)
        digests.add(summarise_pairs(tables.pairs).digest)
    assert len(digests) == 3


def test_the_digest_does_not_depend_on_shards(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs(ROWS, {"source": ["cc", None, "", "sbu"]})
    whole = summarise_pairs(tables.pairs)
    rows = [row for batch in pair_rows(tables.pairs) for row in batch]
    empty = dict.fromkeys(PAIRS.schema.names)
    for index, part in enumerate((rows[:3], [], rows[3:])):
        write_shard(tmp_path / "cut", PAIRS, [{**empty, **row} for row in part], index, 3)
    assert summarise_pairs(str(tmp_path / "cut")) == whole


def test_texts_alone(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    rows = [row for batch in pair_rows(tables.pairs) for row in batch]
    rows[1]["image_id"] = None
    empty = dict.fromkeys(PAIRS.schema.names)
    write_shard(tables.pairs, PAIRS, [{**empty, **row} for row in rows])
    counts = prepare(tables, tmp_path)
    assert (counts["kept"], counts["no_picture"]) == (3, 1)
    assert prepare(tables, tmp_path, takes_texts=True)["kept"] == 4
    table = SampleTable.open(tmp_path / "prepared")
    assert table.select_rows((), "text").tolist() == [1]
    assert table.select_rows(()).tolist() == [0, 2, 3]
    assert table.select_rows((), "pictures").tolist() == [0, 3]
    assert table.image_id(1) == ""


def test_rows_come_in_the_order_of_their_images(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["r", "q", "p"])
    prepare(tables, tmp_path)
    assert SampleTable.open(tmp_path / "prepared").select_rows(()).tolist() == [3, 1, 0, 2]


def test_missing_images_can_be_an_error(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([*ROWS, ("missing", "a dog")])
    tables.write_regions(["p", "q", "r"])
    counts = prepare(tables, tmp_path)
    require_images(counts, "skip")
    with pytest.raises(InputError, match=r"1 pairs lack their image \(1 no_regions"):
        require_images(counts, "error")
