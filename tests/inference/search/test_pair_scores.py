"""``train-vl score``: the scores of every variant, rejects, resuming, and what the filter reads."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.inference.search.test_embed import Shop
from tests.train.tasks.retrieval.cases import RANKED
from tests.train.tasks.retrieval.test_matching import NAMES, TEXTS, TOKENIZER, write_regions

from vlmill.pipelines.tables.__main__ import main as tables
from vlmill.runtime.files.manifest import MANIFEST, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores


def score(shop: Shop, *more: str, tables: tuple[str, ...] | None = None) -> int:
    pixels = RANKED[shop.name].feeding.kind == "pixels"
    names = ("pairs", "images" if pixels else "regions") if tables is None else tables
    words = [x for name in names for x in (f"--{name}", str(shop.folder / name))]
    where = ["--checkpoint", str(shop.folder / "checkpoint"), "--output", str(scored(shop))]
    return main(["score", *words, *where, *more])


def scored(shop: Shop) -> Path:
    return shop.folder / "scored"


@pytest.mark.parametrize("name", ["vilbert", "interbert", "vilbert-tasks"])
def test_a_score_is_the_probability_of_the_matching_head(name: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, name)
    assert score(shop) == 0 and not verify_folder(scored(shop))
    pairs = read_table(scored(shop), PAIRS)
    assert pairs.column("text").to_pylist() == TEXTS
    case = RANKED[name]
    images = RegionImages(write_regions(str(tmp_path / "again")), case.feeding)
    tokens = encode_texts(TOKENIZER, TEXTS, case.feeding.max_tokens or 8).tokens
    scorer = make_scorer(shop.model, get_max_elements(case.feeding))
    logits = match_scores(scorer, tokens, NAMES, images, device=torch.device("cpu"), batch_size=64)
    own = [logits[row % len(NAMES), row] for row in range(len(TEXTS))]
    expected = 1 / (1 + np.exp(-np.array(own, dtype=np.float64)))
    np.testing.assert_allclose(pairs.column("score").to_numpy(), expected, atol=2e-5)


def test_a_contrastive_head_gives_cosines_and_the_filter_reads_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert score(shop, "--rows-per-shard", "2") == 0 and shop.embed() == 0
    rows = read_table(scored(shop), PAIRS).to_pylist()
    texts = {
        row["pair_id"]: vector
        for row, vector in zip(
            [r for r in shop.rows() if r["kind"] == "text"], shop.matrix("text"), strict=True
        )
    }
    images = {
        row["image_id"]: vector
        for row, vector in zip(
            [r for r in shop.rows() if r["kind"] == "image"], shop.matrix("image"), strict=True
        )
    }
    for row in rows:
        cosine = float(texts[row["pair_id"]] @ images[row["image_id"]])
        assert row["score"] == pytest.approx(cosine, abs=2e-5)
    median = float(np.median([row["score"] for row in rows]))
    flags = ["--min-score", str(median), "--output", str(tmp_path / "better")]
    assert tables(["filter", str(scored(shop)), *flags]) == 0
    kept = read_table(tmp_path / "better", PAIRS).column("score").to_pylist()
    assert kept == [row["score"] for row in rows if row["score"] >= median]
    # A killed run continues to the same bytes.
    files = {p.name: p.read_bytes() for p in scored(shop).glob("*.parquet")}
    (scored(shop) / MANIFEST).unlink()
    first = min(scored(shop).glob("pairs-*.parquet"))
    first.unlink()
    assert score(shop, "--rows-per-shard", "2") == 0
    assert {p.name: p.read_bytes() for p in scored(shop).glob("*.parquet")} == files


def test_pairs_without_an_image_are_rejects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)
    assert score(shop, tables=("pairs",)) == 2
    assert "--images is missing" in capsys.readouterr().err
    table = read_table(shop.folder / "images", IMAGES)
    names = table.column("image_id").to_pylist()
    write_shard(shop.folder / "fewer", IMAGES, table.slice(0, 1))
    where = ["--checkpoint", str(shop.folder / "checkpoint"), "--output", str(scored(shop))]
    tables = ["--pairs", str(shop.folder / "pairs"), "--images", str(shop.folder / "fewer")]
    assert main(["score", *tables, *where]) == 0
    rows = read_table(scored(shop), PAIRS).to_pylist()
    rejects = read_table(scored(shop), REJECTS).to_pylist()
    assert {row["image_id"] for row in rows} == {names[0]}
    assert len(rows) + len(rejects) == len(TEXTS)
    assert {row["reason"] for row in rejects} == {"no_picture"}
