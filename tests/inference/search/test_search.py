"""``train-vl search``: answers, saved indexes, recall, the page, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.inference.search.test_embed import Shop
from tests.train.tasks.retrieval.test_matching import NAMES, TEXTS

import vlmill
from vlmill.extract.verify import verify
from vlmill.inference.search.index import INDEX, ROWS, SETTINGS, open_index
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.tables import VECTORS
from vlmill.train.cli import main


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = Shop(tmp_path)
    assert shop.embed() == 0
    capsys.readouterr()
    return shop


def answers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def write_vectors(
    folder: Path, matrix: np.ndarray[Any, Any], *, kind: str = "image", weights: str = "w"
) -> str:
    """A table of vectors under numbers as ids."""
    rows = [
        {"kind": kind, "image_id": f"i{at}", "pair_id": f"p{at}", "vector": row.tobytes()}
        for at, row in enumerate(matrix.astype("<f4"))
    ]
    producer = {"weights_sha256": weights, "checkpoint": "c", "variant": "vlmo", "way": "dual"}
    arrays = {"vector": {"dtype": "float32", "dim": matrix.shape[1]}}
    write_shard(folder, VECTORS, rows, producer=producer, arrays=arrays)
    return str(folder)


def unit_vectors(count: int, width: int = 24, seed: int = 0) -> np.ndarray[Any, Any]:
    drawn = np.random.default_rng(seed).normal(size=(count, width))
    vectors: np.ndarray[Any, Any] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors


def test_a_text_finds_the_images_of_the_highest_cosine(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "--vectors", str(shop.vectors), "--text", TEXTS[1], "--text", TEXTS[3]]
    assert main([*words, "--top", "3"]) == 0
    lines = answers(capsys)
    cosines = shop.matrix("text")[[1, 3]] @ shop.matrix("image").T
    ids = [row["image_id"] for row in shop.rows() if row["kind"] == "image"]
    for line, scores, text in zip(lines, cosines, (TEXTS[1], TEXTS[3]), strict=True):
        best = np.argsort(-scores)[:3]
        assert line["query"] == {"kind": "text", "name": text}
        assert [row["image_id"] for row in line["answers"]] == [ids[at] for at in best]
        given = [row["score"] for row in line["answers"]]
        np.testing.assert_allclose(given, scores[best], atol=1e-5)


def test_a_image_that_cannot_be_decoded_leaves_the_others(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = ImageReader(shop.folder / "images")
    good, bad = shop.folder / "good.jpg", shop.folder / "bad.jpg"
    good.write_bytes(reader[NAMES[2]] or b"")
    bad.write_bytes(b"no picture")
    words = ["search", "--vectors", str(shop.vectors), "--image", str(bad), "--image"]
    assert main([*words, str(good)]) == 0
    first, second = answers(capsys)
    assert first == {"query": {"kind": "image", "name": str(bad)}, "error": "unreadable_image"}
    assert second["answers"][0]["image_id"] == NAMES[2]
    assert second["answers"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert main([*words[:-1]]) == 1  # none could be answered


def test_a_tables_texts_look_for_its_images(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(shop.vectors)
    assert main(["search", "--vectors", folder, "--queries", folder, "--top", "2"]) == 0
    lines = answers(capsys)
    assert [line["query"]["name"] for line in lines] == [f"p{i}" for i in range(len(TEXTS))]
    assert all(len(line["answers"]) == 2 for line in lines)
    assert {row["kind"] for line in lines for row in line["answers"]} == {"image"}


def test_a_row_is_no_answer_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = unit_vectors(30)
    table = write_vectors(tmp_path / "items", vectors, kind="pair")
    assert main(["search", "--vectors", table, "--queries", table, "--top", "5"]) == 0
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    for at, line in enumerate(answers(capsys)):
        expected = [f"p{other}" for other in np.argsort(-cosines[at])[:5]]
        assert [row["pair_id"] for row in line["answers"]] == expected


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf", "pq"])
def test_an_index_comes_back_from_its_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_vectors(tmp_path / "table", unit_vectors(400))
    queries = write_vectors(tmp_path / "queries", unit_vectors(7, seed=1), kind="text")
    saved = str(tmp_path / "index")
    words = ["search", "--vectors", table, "--type", kind, "--save-index", saved]
    assert main([*words, "--queries", queries]) == 0
    said = capsys.readouterr()
    settings = json.loads((tmp_path / "index" / SETTINGS).read_text())
    assert settings["software"] == f"vlmill {vlmill.__version__}"
    assert settings["weights_sha256"] == "w" and settings["width"] == 24
    assert ("recall@10" in said.err) == (kind != "flat") == ("recall_at_10" in settings)
    assert main(["search", "--index", saved, "--queries", queries]) == 0
    assert capsys.readouterr().out == said.out


def test_recall_is_that_of_brute_force(tmp_path: Path) -> None:
    table = write_vectors(tmp_path / "table", unit_vectors(2_000))
    shares = []
    for effort in (1, 4, 16, 51):
        saved = tmp_path / f"index-{effort}"
        words = ["--type", "ivf", "--effort", str(effort), "--save-index", str(saved)]
        assert main(["search", "--vectors", table, *words]) == 0
        shares.append(open_index(saved).settings["recall_at_10"])
    assert shares == sorted(shares) and shares[0] < 0.6 and shares[-1] == 1


def test_the_page_shows_queries_and_images(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    out = shop.folder / "answers"
    words = ["search", "--vectors", str(shop.vectors), "--text", "a <b> dog"]
    images = shop.folder / "images"
    asked = shop.folder / "asked.png"
    reader = ImageReader(images)
    asked.write_bytes(reader[reader.image_ids[0]] or b"")
    words += ["--image", str(asked), "--image", str(shop.folder / "none.png")]
    assert main([*words, "--images", str(images), "--output", str(out), "--top", "2"]) == 0
    page = (out / "report.html").read_text()
    # Two answers each of the text and of the image, which stands before them.
    assert page.count("<img src='data:image/jpeg") == 5 and "a &lt;b&gt; dog" in page
    line, *_ = (out / "answers.jsonl").read_text().splitlines()
    assert len(json.loads(line)["answers"]) == 2
    assert not capsys.readouterr().out


def test_a_long_text_is_cut_and_said_once(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "--vectors", str(shop.vectors)]
    long = "a dog " * 40
    assert main([*words, "--text", long, "--text", long + "cat"]) == 0
    said = capsys.readouterr().err
    assert said.count("cut 2 texts") == 1


REFUSED = {
    "no word": (["--text", " "], "has no word"),
    "nothing asked": ([], "nothing to do"),
    "no page": (["--text", "dog", "--images", "x"], "--images needs --output"),
    "no such kind": (["--text", "dog", "--of", "pair"], "no vectors for --of pair; it has 4 image"),
    "effort of flat": (["--text", "dog", "--effort", "3"], "--effort 3"),
    "no checkpoint": (["--text", "dog", "--checkpoint", "none"], "holds no checkpoint"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused(
    name: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    words, said = REFUSED[name]
    assert main(["search", "--vectors", str(shop.vectors), *words]) == 2
    assert said in capsys.readouterr().err


def test_what_does_not_belong_to_an_index_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_vectors(tmp_path / "table", unit_vectors(9))
    other = write_vectors(tmp_path / "other", unit_vectors(9), weights="x")
    narrow = write_vectors(tmp_path / "narrow", unit_vectors(9, width=8))
    saved = str(tmp_path / "index")
    assert main(["search", "--vectors", table, "--save-index", saved]) == 0
    for queries, said in ((other, "with other weights"), (narrow, "8 wide, the index 24")):
        assert main(["search", "--index", saved, "--queries", queries]) == 2
        assert said in capsys.readouterr().err
    assert main(["search", "--vectors", table, "--save-index", saved]) == 2
    assert "exists already" in capsys.readouterr().err


def test_another_checkpoint_cannot_ask(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(shop.folder / "index")
    assert main(["search", "--vectors", str(shop.vectors), "--save-index", saved]) == 0
    shop.model.log_scale.data += 1
    shop.save()
    assert main(["search", "--index", saved, "--text", "dog"]) == 2
    assert "is not the checkpoint that computed the vectors" in capsys.readouterr().err


def test_a_checkpoint_that_is_gone_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_vectors(tmp_path / "table", unit_vectors(9))
    assert main(["search", "--vectors", table, "--text", "dog"]) == 2
    assert "give --checkpoint DIR, the checkpoint that computed them" in capsys.readouterr().err


def test_vectors_of_pairs_take_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path, "imagebert")
    assert shop.embed() == 0
    assert main(["search", "--vectors", str(shop.vectors), "--text", "dog"]) == 2
    assert "reads text and image together" in capsys.readouterr().err


def test_vectors_that_are_not_finite_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = unit_vectors(9)
    matrix[4, 3] = np.nan
    table = write_vectors(tmp_path / "table", matrix)
    assert main(["search", "--vectors", table, "--queries", table]) == 2
    assert "1 vectors are not finite, the first of image i4" in capsys.readouterr().err


def test_a_damaged_index_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_vectors(tmp_path / "table", unit_vectors(9))
    saved = tmp_path / "index"
    assert main(["search", "--vectors", table, "--save-index", str(saved)]) == 0
    content = bytearray((saved / INDEX).read_bytes())
    content[40] ^= 255
    (saved / INDEX).write_bytes(content)
    assert main(["search", "--index", str(saved), "--queries", table]) == 2
    assert "index.faiss has changed" in capsys.readouterr().err
    (saved / SETTINGS).write_text("{")
    assert main(["search", "--index", str(saved), "--queries", table]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert main(["search", "--index", str(tmp_path / "none"), "--queries", table]) == 2
    assert "has no index" in capsys.readouterr().err
    (saved / SETTINGS).unlink()
    assert main(["search", "--vectors", table, "--save-index", str(tmp_path / "other")]) == 0
    assert verify(tmp_path / "other") == []
    flip_byte(tmp_path / "other" / ROWS)
    assert [ROWS in problem for problem in verify(tmp_path / "other")] == [True]


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_vectors_that_have_changed_are_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit of one number, unless the command trusts them."""
    shard = min(shop.vectors.glob("vectors-*"))
    content = bytearray(shard.read_bytes())
    content[content.index(shop.rows()[0]["vector"])] ^= 1
    shard.write_bytes(content)
    argv = ["search", "--vectors", str(shop.vectors), "--queries", str(shop.vectors)]
    assert main(argv) == 2
    assert f"{shard} has changed since it was written" in capsys.readouterr().err
    main([*argv, "--trust"])
    assert "has changed" not in capsys.readouterr().err
