from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.schemas.reading import read_table
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.shards import ShardWriter
from vlmill.schemas.tables import REJECTS
from vlmill.train import data
from vlmill.train.data import SampleTable, pairs_digest, prepare_samples, region_facts
from vlmill.train.vocabulary import train_vocabulary

if TYPE_CHECKING:
    import pytest
    from tests.train.conftest import Tables

ROWS = [("p", "a dog runs"), ("q", "a cat sleeps"), ("p", "The dog sleeps"), ("r", "A DOG RUNS")]


def prepare(tables: Tables, folder: Path, negatives: str | None = None) -> Counter[str]:
    with ShardWriter(folder, REJECTS, 0, 1) as rejects:
        return prepare_samples(
            folder,
            pairs=tables.pairs,
            regions=RegionReader(tables.regions),
            facts=region_facts(tables.regions),
            negatives=negatives,
            tokenizer=train_vocabulary([text for _, text in ROWS], 90),
            max_tokens=5,
            rejects=rejects,
        )


def test_every_pair_is_kept_or_rejected(tables: Tables, tmp_path: Path) -> None:
    rows = [*ROWS, ("missing", "a dog"), ("empty", "a dog"), ("p", "\u200b"), ("p", "a cat")]
    splits = {"split": [*["train", None, None, None], None, None, None, "test"]}
    ids = tables.write_pairs(rows, splits)
    tables.write_regions(["p", "q", "r", "empty"], empty=("empty",))
    counts = prepare(tables, tmp_path)
    assert counts == {"kept": 4, "no_regions": 1, "no_boxes": 1, "no_text": 1, "held_out": 1}
    rejects = read_table(str(tmp_path), REJECTS).to_pylist()
    assert [(row["key"], row["reason"]) for row in rejects] == [
        (ids[4], "no_regions"),
        (ids[5], "no_boxes"),
        (ids[6], "no_text"),
        (ids[7], "held_out"),
    ]
    table = SampleTable(tmp_path)
    assert [table.pair_id(row) for row in range(len(table))] == ids[:4]


def test_samples_read_back(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "ROWS", 3)  # two record batches
    tables.write_pairs(ROWS, {"source": ["cc", "sbu", None, "cc"]})
    tables.write_regions(["p", "q", "r"])
    prepare(tables, tmp_path)
    table = SampleTable(tmp_path)
    assert [table.image_id(row) for row in range(4)] == ["p", "q", "p", "r"]
    assert [len(table.tokens(row)) for row in range(4)] == [5, 5, 5, 5]
    assert table.tokens(0)[0] == 2 and table.tokens(3)[-1] == 3  # [CLS], [SEP]
    assert table.rows_of(("cc",)).tolist() == [0, 3]
    assert table.rows_of(("cc", "sbu")).tolist() == [0, 1, 3]
    assert table.rows_of(()).tolist() == [0, 1, 2, 3]
    assert table.sources() == {"cc": 2, "null": 1, "sbu": 1}


def test_matches_by_picture_and_by_equal_text(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    prepare(tables, tmp_path)
    table = SampleTable(tmp_path)
    matching = {(t, i) for t in range(4) for i in range(4) if table.matches(t, i)}
    of_p, of_r = {(0, 0), (0, 2), (2, 0), (2, 2)}, {(3, 3)}
    # Rows 0 and 3 are the same text but for case: a caption of both pictures.
    assert matching == of_p | of_r | {(1, 1), (3, 0), (3, 2), (0, 3)}


def test_long_texts_are_cut_before_the_last_token(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([("p", "a dog runs a cat sleeps")])
    tables.write_regions(["p"])
    prepare(tables, tmp_path)
    tokens = SampleTable(tmp_path).tokens(0)
    assert len(tokens) == 5 and tokens[-1] == 3


def test_hard_negatives_become_rows(tables: Tables, tmp_path: Path) -> None:
    ids = tables.write_pairs(ROWS)
    tables.write_regions(["p", "q", "r"])
    negatives = tables.write_negatives({ids[2]: [ids[1], "unknown", ids[3]], "unknown": [ids[0]]})
    counts = prepare(tables, tmp_path, negatives)
    assert counts["hard_negatives"] == 2
    table = SampleTable(tmp_path)
    assert [table.hard_negatives(row).tolist() for row in range(4)] == [[], [], [1, 3], []]
    prepare(tables, tmp_path)  # without negatives: nothing is left of the earlier ones
    assert SampleTable(tmp_path).hard_negatives(2).tolist() == []


def test_facts_of_regions(tables: Tables) -> None:
    tables.write_regions(["p", "q"], empty=("q",))
    facts = region_facts(tables.regions)
    assert (facts.empty, facts.num_classes, facts.num_pictures) == (frozenset({"q"}), 5, 2)
    tables.write_regions(["p"], classes=None)
    assert region_facts(tables.regions).num_classes == 0


def test_no_pairs_at_all(tables: Tables, tmp_path: Path) -> None:
    tables.write_pairs([])
    tables.write_regions(["p"])
    assert prepare(tables, tmp_path)["kept"] == 0
    assert len(SampleTable(tmp_path)) == 0
    assert pairs_digest(tables.pairs)[0] == 0


def test_the_digest_depends_on_texts_and_their_order(tables: Tables) -> None:
    digests = set()
    for rows in (ROWS, ROWS[::-1], ROWS[:-1]):
        tables.write_pairs(rows)
        digests.add(pairs_digest(tables.pairs))
    assert len(digests) == 3
