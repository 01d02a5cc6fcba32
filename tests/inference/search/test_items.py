"""Similar items: histories, filters, columns, stored neighbours, and rows that come and go."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.inference.search.test_embed import Shop
from tests.inference.search.test_search import answers, unit_vectors, write_vectors
from tests.train.tasks.retrieval.cases import RANKED
from tests.train.tasks.retrieval.test_matching import NAMES, TEXTS, TOKENIZER

from vlmill.inference.search.building import choose_effort
from vlmill.inference.search.index import SETTINGS, open_index
from vlmill.inference.search.indexing import append_rows
from vlmill.inference.search.items import Hit, ItemIndex, Lookup
from vlmill.inference.search.table import Vectors
from vlmill.runtime.console import threads
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores

COUNT = 300
WAYS = ("flat", "hnsw", "ivf", "pq")


def save(folder: Path, *more: str, count: int = COUNT, kind: str = "flat") -> Path:
    """Saves an index of pairs whose colours are in another table."""
    table = write_vectors(folder / "table", unit_vectors(count), kind="pair")
    rows = {
        "image_id": [f"i{at}" for at in range(count)],
        "colour": [("red", "blue", "green")[at % 3] for at in range(count)],
    }
    pq.write_table(pa.table(rows), folder / "colours.parquet")
    words = ["--columns", "colour", "--columns-from", str(folder / "colours.parquet")]
    words += ["--type", kind, "--save-index", str(folder / "index"), *more]
    assert main(["search", "--vectors", table, *words]) == 0
    return folder / "index"


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [row["item_id"] for row in found]


def ask(index: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["search", "--index", str(index), *words]) == 0
    (line,) = answers(capsys)
    found: list[dict[str, Any]] = line["answers"]
    return found


def ranked(at: int, vectors: np.ndarray[Any, Any]) -> list[str]:
    return [f"i{other}" for other in np.argsort(-(vectors @ vectors[at])) if other != at]


@pytest.mark.parametrize("stored", ["0", "7"])
def test_the_nearest_of_each_item_of_a_history_take_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: str
) -> None:
    index = save(tmp_path, "--neighbours", stored)
    vectors = unit_vectors(COUNT)
    found = ask(index, capsys, "--item", "i4", "--top", "5")
    assert ids(found) == ranked(4, vectors)[:5] and {row["near"] for row in found} == {"i4"}
    cosines = [vectors[4] @ vectors[int(name[1:])] for name in ids(found)]
    np.testing.assert_allclose([row["score"] for row in found], cosines, atol=1e-5)
    found = ask(index, capsys, "--item", "i4", "--item", "i9", "--item", "i4", "--top", "12")
    assert [row["near"] for row in found[:4]] == ["i4", "i9", "i4", "i9"]
    assert len(set(ids(found))) == 12 and not {"i4", "i9"} & set(ids(found))


@pytest.mark.parametrize("kind", WAYS)
def test_only_rows_with_the_value_are_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    index = save(tmp_path, kind=kind)
    vectors = unit_vectors(COUNT)
    for colours, rests in ((["red"], (0,)), (["red", "green"], (0, 2)), (["pink"], ())):
        where = [word for colour in colours for word in ("--where", f"colour={colour}")]
        found = ask(index, capsys, "--item", "i4", "--top", "6", *where)
        expected = [name for name in ranked(4, vectors) if int(name[1:]) % 3 in rests][:6]
        assert len(found) == len(expected) and {row["colour"] for row in found} <= set(colours)
        assert len(set(ids(found)) & set(expected)) >= (6 if kind == "flat" else 5) * bool(rests)
    assert main(["search", "--index", str(index), "--item", "i4", "--where", "size=1"]) == 2
    assert "'size' cannot be filtered by; there are colour" in capsys.readouterr().err


def test_rows_of_one_image_are_one_item(tmp_path: Path) -> None:
    index = open_index(save(tmp_path))
    names = pa.array([f"i{at // 5}" for at in range(COUNT)])
    about = index.about.set_column(1, "image_id", names)
    items = ItemIndex(
        type(index)(faiss_index=index.faiss_index, about=about, settings=index.settings)
    )
    lookup, missing = items.lookup(["i3", "none"], 20, excluded=["i5"], where=None)
    (hits,) = items.find([lookup])
    found = ids(items.rows(hits, lookup))
    assert missing == ["none"] and len(lookup.rows) == 5
    assert len(found) == len(set(found)) == 20 and not {"i3", "i5"} & set(found)


def test_an_unknown_item_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = save(tmp_path)
    assert main(["search", "--index", str(index), "--item", "none"]) == 1
    assert answers(capsys)[-1]["error"] == "no_such_item"


@pytest.mark.parametrize("kind", WAYS)
def test_rows_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    index = save(tmp_path, "--neighbours", "3", kind=kind)
    vectors = unit_vectors(COUNT + 40)
    more = write_vectors(tmp_path / "more", vectors, kind="pair")  # the first 300 replaced
    gone = tmp_path / "gone.txt"
    gone.write_text("i1\np2\n")
    colours = {"image_id": [f"i{at}" for at in range(COUNT, COUNT + 40)], "colour": ["new"] * 40}
    pq.write_table(pa.table(colours), tmp_path / "new.parquet")
    words = ["search", "--index", str(index), "--save-index"]
    changed = str(tmp_path / "changed")
    argv = [*words, changed, "--append", more, "--columns-from", str(tmp_path / "new.parquet")]
    if kind == "hnsw":
        assert main(argv) == 2
        assert "cannot lose or replace rows" in capsys.readouterr().err
        return
    assert main([*words, str(tmp_path / "less"), "--delete", str(gone)]) == 0
    less = open_index(tmp_path / "less")
    kept = [at for at in range(COUNT) if at not in (1, 2)]
    assert less.about.column("image_id").to_pylist() == [f"i{at}" for at in kept]
    np.testing.assert_allclose(less.vectors(np.arange(298)), unit_vectors(COUNT)[kept], atol=1e-6)
    assert less.neighbours is not None and less.neighbours["row"].max() < 298
    itself = less.nearest(unit_vectors(COUNT)[kept].astype(np.float32), 1).positions[:, 0]
    assert (itself == np.arange(298)).mean() > 0.99
    assert main(argv) == 0
    found = ask(Path(changed), capsys, "--item", "i1", "--where", "colour=new", "--top", "50")
    assert len(found) == 40
    settings = json.loads((Path(changed) / SETTINGS).read_text())
    assert settings["vectors"] == COUNT + 40 and settings["columns"] == ["colour"]
    assert ("recall_at_10" in settings) == (kind != "flat")
    others = write_vectors(tmp_path / "others", vectors, kind="pair", weights="x")
    assert main([*words, str(tmp_path / "no"), "--append", others, *argv[-2:]]) == 2
    assert "with other weights" in capsys.readouterr().err


def test_a_graph_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = save(tmp_path, kind="hnsw")
    rows = unit_vectors(40, seed=5).astype(np.float32)
    index = open_index(saved)
    names = [f"new{at}" for at in range(40)]
    about = index.about.slice(0, 40).set_column(1, "image_id", pa.array(names))
    about = about.set_column(2, "pair_id", pa.array(names))
    grown = append_rows(index, Vectors(matrix=rows, about=about, origin=index.settings), about)
    assert len(grown) == len(grown.about) == grown.settings["vectors"] == COUNT + 40
    assert (grown.nearest(rows, 1).positions[:, 0] == np.arange(COUNT, COUNT + 40)).mean() > 0.9
    table = write_vectors(tmp_path / "texts", rows, kind="text")
    words = ["--append", table, "--save-index", str(tmp_path / "new")]
    assert main(["search", "--index", str(saved), *words]) == 2
    assert "no vectors of pairs" in capsys.readouterr().err


def test_the_candidates_of_pq_are_the_fewest_that_suffice(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    near = random.normal(size=(60, 24))[random.integers(60, size=6_000)]
    vectors = near + 0.7 * random.normal(size=near.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = write_vectors(tmp_path / "table", vectors, kind="pair")
    saved = tmp_path / "index"
    assert main(["search", "--vectors", table, "--type", "pq", "--save-index", str(saved)]) == 0
    index, matrix = open_index(saved), vectors.astype(np.float32)
    effort = index.settings["parameters"]["effort"]
    assert 1 < effort == index.faiss_index.k_factor and index.settings["recall_at_10"] >= 0.985
    assert choose_effort(index, matrix, matrix[::3], same=True) >= 0.985
    exact = np.argsort(-(matrix[:200] @ matrix.T), axis=1)[:, :10]

    def recall() -> float:
        found = index.nearest(matrix[:200], 10).positions
        return float(
            np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)])
        )

    assert recall() >= 0.97
    index.faiss_index.k_factor = 1
    assert recall() < 0.9


def test_a_gpu_searches_where_faiss_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for faiss-gpu, which no machine without a GPU has."""
    import faiss

    index = save(tmp_path)
    table = str(tmp_path / "table")
    words = ["search", "--index", str(index), "--queries", table, "--search-device", "cuda:1"]
    assert main(words) == 2
    assert "has no support for GPUs" in capsys.readouterr().err
    moved = []

    def to_gpu(resources: object, number: int, whole: Any) -> Any:
        moved.append((resources, number))
        return faiss.clone_index(whole)

    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: "resources", raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_gpu, raising=False)
    assert main(words) == 0 and moved == [("resources", 1)]
    on_gpu = capsys.readouterr().out
    assert main(words[:-2]) == 0 and capsys.readouterr().out == on_gpu
    for device, said in (("cuda:2", "FAISS finds 2 GPUs"), ("tpu", "expected cpu, cuda")):
        assert main([*words[:-1], device]) == 2
        assert said in capsys.readouterr().err
    calls = []

    def knn_gpu(resources: object, queries: Any, vectors: Any, count: int, device: int) -> Any:
        calls.append(device)
        return faiss.knn(queries, vectors, count)

    monkeypatch.setattr(faiss, "knn_gpu", knn_gpu, raising=False)
    rows = unit_vectors(30).astype(np.float32)
    for gpu in (None, 1):
        found = threads.nearest_vectors(rows[:4], rows, 3, gpu)[1]
        assert (found[:, 0] == np.arange(4)).all()
    assert calls == [1]


def test_a_model_of_pairs_ranks_the_results_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fusion").mkdir()
    fusion, shop = Shop(tmp_path / "fusion", "interbert"), Shop(tmp_path)
    assert shop.embed() == 0
    words = ["search", "--vectors", str(shop.vectors), "--text", TEXTS[1], "--top", "2"]
    words += ["--rerank", "4", "--reranker", str(fusion.folder / "checkpoint")]
    assert main(words) == 2
    assert "--regions is missing" in capsys.readouterr().err
    assert main([*words, "--regions", str(fusion.folder / "regions")]) == 0
    (line,) = answers(capsys)
    case, cpu = RANKED["interbert"], torch.device("cpu")
    images = RegionImages(RegionReader(fusion.folder / "regions"), case.feeding)
    tokens = encode_texts(TOKENIZER, [TEXTS[1]], case.feeding.max_tokens or 8).tokens
    scorer = make_scorer(fusion.model, get_max_elements(case.feeding))
    logits = match_scores(scorer, tokens, NAMES, images, device=cpu, batch_size=4)[:, 0]
    best = np.argsort(-logits)[:2]
    assert [row["image_id"] for row in line["answers"]] == [NAMES[at] for at in best]
    np.testing.assert_allclose([row["match"] for row in line["answers"]], logits[best], atol=1e-4)
    assert main([*words[:-2], "--image", "a.jpg"]) == 2


def test_values_of_rows_are_those_of_the_table(tmp_path: Path) -> None:
    """Nulls, quotes, other scripts, and chunks of a slice: ``rows`` equals Arrow's values."""
    index = open_index(save(tmp_path, count=6))
    titles = ['a "kite"\n', None, "", "Ünïcode 😀 \\", "\u2028</script>", "plain"]
    pieces = pa.chunked_array([pa.array(titles).slice(1, 3), pa.array(titles).slice(4)])
    column = pa.chunked_array([pa.array(titles[:1]), *pieces.chunks])
    about = index.about.set_column(3, "text", column).append_column("none", pa.nulls(6))
    items = ItemIndex(
        type(index)(faiss_index=index.faiss_index, about=about, settings=index.settings)
    )
    lookup, _ = items.lookup(["i0"], 5, where=None)
    (hits,) = items.find([lookup])
    expected = [
        {"score": round(hit.score, 6), "item_id": f"i{hit.row}", "near": "i0"}
        | {name: value for name, value in about.to_pylist()[hit.row].items() if value is not None}
        for hit in hits
    ]
    assert items.rows(hits, lookup) == expected and len(hits) == 5
    (alone,) = items.rows([Hit(0, 1.0, 0)], Lookup(top=1))
    assert alone == {"score": 1.0, "text": titles[0]} | {
        name: about.column(name)[0].as_py() for name in ("kind", "image_id", "pair_id", "colour")
    }
