"""``train-vl embed`` with every variant: rows, rejects, resuming and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.nightly import stand_for
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import (
    NAMES,
    TEXTS,
    TOKENIZER,
    VOCABULARY,
    write_images,
    write_regions,
)
from tests.train.tasks.retrieval.test_variants import Workplace

from vlmill.models.bert.config import bert_small
from vlmill.models.bert.model import Bert
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_array_formats, read_producer, read_table
from vlmill.schemas.tables import REJECTS, VECTORS
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval.inputs import RegionImages, text_batches
from vlmill.train.tasks.retrieval.job import (
    RetrievalOptions,
    get_max_elements,
    open_inputs,
    prepare_images,
    rank,
    select,
)
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores

PAIRED = [name for name in RANKED if name != "vlmo"]


class Shop(Workplace):
    """A workplace whose checkpoint embeds."""

    def __init__(self, folder: Path, name: str = "vlmo") -> None:
        super().__init__(folder)
        self.name, self.model = name, tiny_model(name, VOCABULARY)
        write_regions(str(folder / "regions"))
        write_images(folder / "images")
        self.save()

    def save(self) -> None:
        case = RANKED[self.name]
        self.write(self.model, case.variant, case.feeding)

    def embed(self, *more: str, tables: tuple[str, ...] | None = None) -> int:
        pixels = RANKED[self.name].feeding.kind == "pixels"
        names = ("pairs", "images" if pixels else "regions") if tables is None else tables
        words = [x for name in names for x in (f"--{name}", str(self.folder / name))]
        where = ["--checkpoint", str(self.folder / "checkpoint"), "--output", str(self.vectors)]
        return main(["embed", *words, *where, *more])

    @property
    def vectors(self) -> Path:
        return self.folder / "vectors"

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(self.vectors, VECTORS).to_pylist()
        return rows

    def matrix(self, kind: str) -> NDArray[np.float32]:
        return np.stack(
            [np.frombuffer(r["vector"], "<f4") for r in self.rows() if r["kind"] == kind]
        )


@pytest.mark.parametrize("name", stand_for(PAIRED, "imagebert", "interbert", "vilbert-tasks"))
def test_a_pairs_vector_is_what_its_head_reads(name: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, name)
    assert shop.embed() == 0 and not verify_folder(shop.vectors)
    rows = shop.rows()
    assert [row["pair_id"] for row in rows] == [f"p{i}" for i in range(len(TEXTS))]
    assert [row["image_id"] for row in rows] == [NAMES[i % len(NAMES)] for i in range(len(TEXTS))]
    assert [row["text"] for row in rows] == TEXTS and {row["kind"] for row in rows} == {"pair"}
    matrix = shop.matrix("pair")
    (path,) = shop.vectors.glob("vectors-*.parquet")
    assert read_array_formats(path)["vector"] == {"dtype": "float32", "dim": matrix.shape[1]}
    pooled = pooled_by_hand(shop)
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    expected = pooled / np.where(lengths > 0, lengths, 1)  # InterBERT's may be all zeros
    np.testing.assert_allclose(matrix, expected, atol=2e-5)


@torch.inference_mode()
def pooled_by_hand(shop: Shop) -> NDArray[np.float32]:
    """What the head is given when every text is scored with its image alone."""
    case = RANKED[shop.name]
    reader = write_regions(str(shop.folder / "again"))
    images = RegionImages(reader, case.feeding)
    scorer = make_scorer(shop.model, get_max_elements(case.feeding))
    tokens = encode_texts(TOKENIZER, TEXTS, case.feeding.max_tokens or 8).tokens
    pooled, cpu = [], torch.device("cpu")
    for at, text in enumerate(tokens):
        batch = images.batch([NAMES[at % len(NAMES)]]).to(cpu)
        (texts,) = text_batches([text], 1, cpu)
        vector = scorer.pool(scorer.read_texts(texts), scorer.read_image(batch))
        pooled.append(vector[0].numpy())
        logit = match_scores(
            scorer, [text], [NAMES[at % len(NAMES)]], images, device=cpu, batch_size=1
        )
        head = case.logit(shop.model, vector)
        assert float(head[0]) == pytest.approx(float(logit[0, 0]), abs=1e-4)
    return np.stack(pooled)


def test_a_dual_encoder_embeds_images_and_texts_by_themselves(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.embed() == 0 and not verify_folder(shop.vectors)
    kinds = [row["kind"] for row in shop.rows()]
    assert kinds == ["image"] * kinds.count("image") + ["text"] * len(TEXTS)
    images, texts = shop.matrix("image"), shop.matrix("text")
    assert images.shape == (len(NAMES), 16) and texts.shape == (len(TEXTS), 16)
    for vectors in (images, texts):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    options = RetrievalOptions(
        checkpoint=tmp_path / "checkpoint",
        pairs=str(tmp_path / "pairs"),
        images=str(tmp_path / "images"),
        output=tmp_path / "results",
    )
    opened = open_inputs(options)
    candidates, _ = select(opened, {})
    ranked = rank(opened, candidates, prepare_images(opened, candidates, {}))
    order = [NAMES.index(name) for name in candidates.image_ids]
    np.testing.assert_allclose(images[order] @ texts.T, ranked.by_text, atol=1e-5)


def test_a_dual_encoder_embeds_either_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.embed(tables=("pairs",)) == 0
    assert {row["kind"] for row in shop.rows()} == {"text"}
    assert shop.embed("--fresh", tables=("images",)) == 0
    assert {row["kind"] for row in shop.rows()} == {"image"}


def test_what_has_no_vector_is_a_reject(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "imagebert")
    shop.pairs[1] |= {"text": " "}
    shop.pairs[2] |= {"image_id": "nowhere"}
    shop.pairs[3] |= {"image_id": None}
    shop.pairs[4] |= {"pair_id": "p0"}
    shop.save()
    assert shop.embed() == 0
    rejects = read_table(shop.vectors, REJECTS).to_pylist()
    reasons = {row["key"]: row["reason"] for row in rejects}
    expected = {"p1": "no_text", "p2": "no_regions", "p3": "no_picture", "p0": "duplicate"}
    assert reasons == expected
    assert len(shop.rows()) + len(rejects) == len(TEXTS)


def test_weights_that_are_not_finite_leave_no_vector(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "imagebert")
    for parameter in shop.model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    shop.save()
    assert shop.embed() == 1 and not shop.rows()
    reasons = {row["reason"] for row in read_table(shop.vectors, REJECTS).to_pylist()}
    assert reasons == {"not_finite"}


def test_a_killed_run_is_continued_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)
    assert shop.embed("--vectors-per-shard", "2") == 0
    whole = {p.name: p.read_bytes() for p in shop.vectors.glob("*.parquet")}
    names = sorted(name for name in whole if name.startswith("vectors"))
    assert len(names) > 3
    for name in (names[1], names[-1], "_manifest.json"):
        (shop.vectors / name).unlink()
    assert shop.embed("--vectors-per-shard", "2") == 0
    assert {p.name: p.read_bytes() for p in shop.vectors.glob("*.parquet")} == whole
    capsys.readouterr()
    assert shop.embed("--vectors-per-shard", "2") == 0
    assert capsys.readouterr().out.startswith("finished before: ")
    assert shop.embed("--vectors-per-shard", "3") == 2
    assert "vectors_per_shard was 2 and is 3" in capsys.readouterr().err


def test_shards_say_which_checkpoint_made_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.embed() == 0
    (path,) = [p for p in shop.vectors.glob("vectors-*-of-*.parquet") if "00000-of" in p.name]
    producer = read_producer(path)
    assert producer["way"] == "dual" and producer["variant"] == "vlmo"
    assert len(producer["weights_sha256"]) == 64


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    assert shop.embed("--dry-run") == 0
    assert "dry run: nothing was written" in capsys.readouterr().out
    assert not shop.vectors.exists()


@pytest.mark.parametrize(
    ("name", "tables", "said"),
    [
        ("vlmo", (), "--pairs and --images are missing"),
        ("imagebert", ("regions",), "--pairs is missing"),
        ("imagebert", ("pairs", "images"), "--regions is missing"),
    ],
)
def test_a_table_that_is_missing_is_named(
    name: str,
    tables: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(tmp_path, name)
    assert shop.embed(tables=tables) == 2
    assert said in capsys.readouterr().err
    assert not shop.vectors.exists()


def test_bert_embeds_texts_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    sizes: dict[str, Any] = {"width": 16, "num_heads": 2, "num_layers": 1, "intermediate_width": 32}
    torch.manual_seed(0)
    bert = Bert(bert_small(**sizes, vocab_size=VOCABULARY))
    shop.write(bert, "bert", None)
    assert shop.embed(tables=("pairs",)) == 0
    rows = shop.rows()
    assert [row["pair_id"] for row in rows] == [f"p{i}" for i in range(len(TEXTS))]
    assert {row["kind"] for row in rows} == {"text"} and rows[0]["image_id"] == NAMES[0]
    np.testing.assert_allclose(np.linalg.norm(shop.matrix("text"), axis=1), 1, atol=1e-5)
    capsys.readouterr()
    asked = ["search", "--vectors", str(shop.vectors), "--text", TEXTS[0], "--top", "1"]
    assert main(asked) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])["answers"][0]
    assert answer["score"] == pytest.approx(1, abs=1e-4)
    assert main([*asked, "--image", "nowhere.jpg"]) == 2
    assert "reads only texts" in capsys.readouterr().err
