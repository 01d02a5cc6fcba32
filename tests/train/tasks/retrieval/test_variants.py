"""``train-vl evaluate retrieval`` with every variant, and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

from vlmill.models import VARIANTS
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import PAIRS, REJECTS
from vlmill.train.checkpoints.files import CheckpointRecord, TrainingRecord, save_checkpoint
from vlmill.train.cli import main
from vlmill.train.recipes import Feeding


class Workplace:
    """A folder with pairs, regions and images of four images, and checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs: list[dict[str, str | None]] = [
            {"pair_id": f"p{i}", "image_id": NAMES[i % len(NAMES)], "text": text, "split": "test"}
            for i, text in enumerate(TEXTS)
        ]

    def write(self, model: Any, variant: str, feeding: Feeding | None, *, step: int = 1) -> None:
        rows = [{**dict.fromkeys(PAIRS.schema.names), **row} for row in self.pairs]
        write_shard(self.folder / "pairs", PAIRS, rows)
        training = TrainingRecord(recipe="tiny", stage="", step=step, num_pairs=0)
        save_checkpoint(
            self.folder / "checkpoint",
            model,
            CheckpointRecord(
                variant=variant,
                tokenizer=TOKENIZER,
                training=training,
                feeding=feeding,
            ),
        )

    def run(self, *more: str, tables: tuple[str, ...] = ("regions", "images")) -> int:
        own = [x for name in tables for x in (f"--{name}", str(self.folder / name))]
        pairs = ["--pairs", str(self.folder / "pairs")]
        where = ["--checkpoint", str(self.folder / "checkpoint"), "--output", str(self.out)]
        return main(["evaluate", "retrieval", *pairs, *own, *where, *more])

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = json.loads((self.out / "metrics.json").read_text())
        return found

    def settings(self) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads((self.out / "_plan.json").read_text())["settings"]
        return plan


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    write_regions(str(tmp_path / "regions"))
    write_images(tmp_path / "images")
    return Workplace(tmp_path)


@pytest.mark.parametrize("name", stand_for(RANKED, "vlmo", "vilbert-tasks", "imagebert"))
def test_every_variant_is_evaluated(name: str, place: Workplace) -> None:
    variant, _, feeding, *_ = RANKED[name]
    place.write(tiny_model(name, VOCABULARY), variant, feeding)
    tables = ("images",) if variant == "vlmo" else ("regions",)
    assert place.run(tables=tables) == 0
    metrics = place.metrics()
    assert metrics["pairs"] == metrics["image_retrieval/n"] == len(TEXTS)
    assert metrics["images"] == len(NAMES) and metrics["rejected_pairs"] == 0
    assert {f"{d}_retrieval/r{k}" for d in ("image", "text") for k in (1, 5, 10)} <= metrics.keys()
    assert verify_folder(place.out) == []
    assert place.settings()["ranking"] == ("contrast" if variant == "vlmo" else "matching")
    assert place.run("--batch-size", "3", tables=tables) == 0  # decides no figure: it is finished
    assert place.run("--batch-size", "3", "--fresh", tables=tables) == 0
    assert place.metrics() == metrics


def test_vlmo_ranks_its_best_again(place: Workplace) -> None:
    case = RANKED["vlmo"]
    place.write(tiny_model("vlmo", VOCABULARY), "vlmo", case.feeding)
    assert place.run("--rerank", "2") == 0
    again = json.loads((place.out / "neighbours.json").read_text())
    listed = [near.get("listed", True) for near in again["image_retrieval"][0]["neighbours"]]
    assert listed == [True, True, False, False]
    assert "not listed" in (place.out / "report.html").read_text()
    assert place.run("--rerank", "100", "--fresh") == 0
    by_both = place.metrics()
    shares = [by_both.pop(f"{way}_retrieval/listed") for way in ("image", "text")]
    assert shares == [1.0, 1.0]  # a list as long as the pool has all
    # A model without the contrastive head ranks all by the matching one, with the same weights.
    alone = tiny_model("vlmo", VOCABULARY, contrast=False)
    weights = tiny_model("vlmo", VOCABULARY).state_dict()
    alone.load_state_dict({key: weights[key] for key in alone.state_dict()})
    place.write(alone, "vlmo", case.feeding)
    assert place.run("--fresh") == 0
    assert place.metrics() == by_both
    assert place.settings()["ranking"] == "matching"


def test_a_converted_checkpoint_is_fed_what_its_publication_says(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(tiny_model("vl-bert", VOCABULARY), "vl-bert", None, step=0)
    assert place.run() == 0
    settings = place.settings()
    assert (settings["feeding.max_elements"], settings["feeding.whole_image"]) == (64, "rest")
    assert "was converted" in capsys.readouterr().err
    assert place.run("--fresh", "--max-regions", "2") == 0
    assert place.settings()["feeding.max_regions"] == 2


def test_heads_of_several_tasks_are_fed_what_retrieval_was_and_doubted(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = {"num_positions": 40, "max_text_tokens": 36}
    model = tiny_model("vilbert-tasks", VOCABULARY, **longer)
    place.write(model, "vilbert-tasks", None, step=0)
    assert place.run() == 0
    settings = place.settings()
    assert (settings["feeding.max_tokens"], settings["feeding.max_regions"]) == (30, 99)
    said = (
        "This vilbert-tasks has heads of several tasks; the figures are only "
        "meaningful if it was fine-"
    )
    assert said in capsys.readouterr().err


def test_pairs_that_cannot_be_scored_are_counted(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    write_regions(str(place.folder / "regions"), spoil="image-2")
    write_images(place.folder / "images", spoil="image-3")
    empty: Any = {"split": "test", "text": "a dog"}
    place.pairs += [
        {**empty, "pair_id": "alone", "image_id": None},
        {**empty, "pair_id": "lost", "image_id": "elsewhere"},
        {**empty, "pair_id": "blank", "image_id": "image-0", "text": " \n"},
    ]
    place.write(tiny_model("vilbert", VOCABULARY), "vilbert", RANKED["vilbert"].feeding)
    assert place.run() == 0
    reasons = {"alone": "no_picture", "lost": "no_regions", "blank": "no_text", "p2": "not_finite"}
    rejects = read_table(place.out, REJECTS).to_pylist()
    assert {row["key"]: row["reason"] for row in rejects} == reasons
    metrics = place.metrics()
    assert metrics["pairs"] + metrics["rejected_pairs"] == len(place.pairs)
    assert metrics["cut_texts"] == 1  # of nine words
    said = "4 rejects (1 no_text, 1 no_picture, 1 no_regions, 1 not_finite)"
    assert said in capsys.readouterr().out.splitlines()[-1]
    place.write(tiny_model("vlmo", VOCABULARY), "vlmo", RANKED["vlmo"].feeding)
    assert place.run("--fresh") == 0
    rejects = read_table(place.out, REJECTS).to_pylist()
    assert {row["key"]: row["reason"] for row in rejects} == {
        "alone": "no_picture",
        "lost": "no_picture",
        "blank": "no_text",
        "p3": "unreadable_image",
    }


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vl-bert", {"matching": False}),
        ("vlmo", {"contrast": False, "match": False}),
    ],
)
def test_a_model_without_a_head_to_rank_by_is_refused(
    name: str, changes: dict[str, Any], place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(tiny_model(name, VOCABULARY, **changes), name, RANKED[name].feeding)
    assert place.run() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"is a {name} without a matching or contrastive head" in line
    assert not place.out.exists()


def test_bert_itself_is_refused(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"width": 8, "num_layers": 1, "num_heads": 2, "intermediate_width": 8}
    config = VARIANTS["bert"].config(vocab_size=VOCABULARY, **sizes)
    place.write(VARIANTS["bert"].model(config), "bert", None)
    assert place.run() == 2
    assert "is a bert without a matching" in capsys.readouterr().err


REFUSED = {
    "vilbert": [
        (("images",), (), "--regions is missing: a vilbert reads regions"),
        (
            ("regions",),
            ("--rerank", "3"),
            "--rerank 3: .* which does not have both a contrastive and",
        ),
        (("regions",), ("--max-regions", "0"), "--max-regions 0: expected at least 1"),
        (("regions",), ("--device", "meta:x"), "--device meta:x: expected cpu"),
    ],
    "vlmo": [
        (("regions",), (), "--images is missing: a vlmo reads images"),
        (("images",), ("--rerank", "0"), "--rerank 0: expected at least 1"),
        (("images",), ("--rerank", "3", "--fold-images", "2"), "--rerank and --fold-images"),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_named_in_one_line(
    name: str, place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(tiny_model(name, VOCABULARY), name, RANKED[name].feeding)
    for tables, more, message in REFUSED[name]:
        assert place.run(*more, tables=tables) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(message, line)
        assert not place.out.exists()


def test_models_of_texts_alone_and_of_more_than_regions_are_refused(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(tiny_model("vlmo", VOCABULARY), "vlmo", Feeding(kind="text"))
    assert place.run() == 2
    assert "last trained on text only" in capsys.readouterr().err
    for name in ("vilbert", "vilbert-tasks"):
        place.write(tiny_model(name, VOCABULARY, num_tasks=2), RANKED[name].variant, None)
        assert place.run() == 2
        assert "needs a task token" in capsys.readouterr().err


def test_weights_that_give_no_numbers_are_told(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model("interbert", VOCABULARY)
    torch.nn.init.constant_(model.match_head.bias, np.nan)
    place.write(model, "interbert", RANKED["interbert"].feeding)
    assert place.run() == 2
    assert "24 NaN or infinite values of 24" in capsys.readouterr().err
    assert not (place.out / "metrics.json").exists()
