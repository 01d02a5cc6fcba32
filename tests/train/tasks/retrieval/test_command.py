"""``train-vl evaluate retrieval`` on a tiny random checkpoint, from arguments to files."""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.imagebert.model import ImageBert
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS, REJECTS
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainedOn,
    TrainingRecord,
    save_checkpoint,
)
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer
from vlmill.train.tasks.command import add_evaluate_arguments, run_evaluate
from vlmill.train.tasks.retrieval.checks import notes_on_ties

WORDS = ("a", "dog", "cat", "red", "runs", "sleeps", "tree", "house")
FEATURE_DIM = 12


class Workplace:
    """A folder with a checkpoint and tables: 4 images with regions, one without, one empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint: str | None = "f" * 64
        self.weights = "detector.pth"
        self.trained_on: TrainedOn | None = None
        generator = np.random.default_rng(0)
        self.pairs: list[dict[str, str | None]] = [
            {"pair_id": f"p{i}", "image_id": f"image{i % 4}", "text": text, "split": "test"}
            for i, text in enumerate(["a dog runs", "a red cat", "tree", "a house sleeps a", "dog"])
        ]
        self.rows = [
            RegionRow(
                image_id=f"image{i}",
                width=100,
                height=80,
                boxes=np.array([[0, 0, 50, 40], [10, 10, 100, 80]], np.float32)[: i % 2 + 1],
                features=generator.random((i % 2 + 1, FEATURE_DIM)).astype(np.float32),
            )
            for i in range(4)
        ]

    def write(self, *, step: int = 3, trained_fingerprint: str | None = "f" * 64) -> None:
        write_shard(self.folder / "pairs", PAIRS, self._rows())
        producer = {"detector_fingerprint": self.fingerprint, "weights": self.weights}
        write_shard(
            self.folder / "regions",
            REGIONS,
            encode_regions(self.rows, dtype="float16"),
            producer=producer,
            arrays=region_arrays(dtype="float16", feature_dim=FEATURE_DIM),
        )
        self._write_checkpoint(step, trained_fingerprint)

    def _rows(self) -> list[dict[str, Any]]:
        return [{**dict.fromkeys(PAIRS.schema.names), **row} for row in self.pairs]

    def _write_checkpoint(self, step: int, fingerprint: str | None) -> None:
        torch.manual_seed(0)
        tokenizer = bert_tokenizer({word: i for i, word in enumerate((*SPECIAL, *WORDS))})
        config = ImageBertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            width=16,
            num_layers=1,
            num_heads=2,
            intermediate_width=32,
            num_positions=8,
            max_text_tokens=6,
            visual_position_id=6,
            region_width=FEATURE_DIM,
            num_region_classes=3,
        )
        model = ImageBert(config)
        torch.nn.init.normal_(model.match_head.weight, std=5.0)
        training = TrainingRecord(recipe="tiny", stage="pairs", step=step, num_pairs=0)
        save_checkpoint(
            self.folder / "checkpoint",
            model,
            CheckpointRecord(
                variant="imagebert",
                tokenizer=tokenizer,
                training=training,
                detector_fingerprint=fingerprint,
                trained_on=self.trained_on,
            ),
        )

    def run(self, *more: str, output: str = "out") -> Path:
        parser = argparse.ArgumentParser()
        add_evaluate_arguments(parser)
        tables = [
            part
            for name in ("checkpoint", "pairs", "regions")
            for part in (f"--{name}", str(self.folder / name))
        ]
        folder = self.folder / output
        arguments = ["retrieval", *tables, "--output", str(folder), *more]
        assert run_evaluate(parser.parse_args(arguments)) == 0
        return folder

    def metrics(self, *more: str) -> dict[str, float]:
        found: dict[str, float] = json.loads((self.run(*more) / "metrics.json").read_text())
        return found


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_metrics_count_what_was_ranked(place: Workplace) -> None:
    place.write()
    metrics = place.metrics()
    assert metrics["pairs"] == metrics["image_retrieval/n"] == 5
    assert metrics["images"] == metrics["text_retrieval/n"] == 4
    assert metrics["rejected_pairs"] == 0
    assert metrics["image_retrieval/r5"] == 1.0  # four images in all
    assert metrics["image_retrieval/r1_chance"] == 0.25
    assert all(0 <= v <= 1 for k, v in metrics.items() if k.split("/")[-1] in ("r1", "r5", "r10"))
    assert verify_folder(place.folder / "out") == []


def test_the_metrics_are_those_of_the_neighbours(place: Workplace) -> None:
    place.write()
    folder = place.run()
    metrics = json.loads((folder / "metrics.json").read_text())
    neighbours = json.loads((folder / "neighbours.json").read_text())
    for direction, n in (("image_retrieval", 5), ("text_retrieval", 4)):
        queries = neighbours[direction]
        assert len(queries) == n
        first = [query["neighbours"][0]["right"] for query in queries]
        assert metrics[f"{direction}/r1"] == pytest.approx(np.mean(first))
        for query in queries:
            scores = [near["score"] for near in query["neighbours"]]
            assert scores == sorted(scores, reverse=True)
            places = [i for i, near in enumerate(query["neighbours"]) if near["right"]]
            assert places[0] == query["rank"]
            assert query["best_right"] == query["neighbours"][places[0]]


def test_the_same_inputs_give_the_same_bytes(place: Workplace) -> None:
    place.write()
    first = {path.name: path.read_bytes() for path in place.run().iterdir()}
    second = {path.name: path.read_bytes() for path in place.run("--fresh").iterdir()}
    assert first == second
    assert sorted(first) == [
        "_manifest.json",
        "_plan.json",
        "metrics.json",
        "neighbours.json",
        "rejects-00000-of-00001.parquet",
        "report.html",
    ]


def test_a_finished_output_is_left_and_another_runs_is_refused(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write()
    metrics = place.metrics()
    assert place.metrics() == metrics
    assert "--fresh" in capsys.readouterr().out
    place.pairs.pop()
    place.write()
    with pytest.raises(InputError, match="other settings"):
        place.run()
    assert place.metrics("--fresh")["pairs"] == 4


def test_pairs_that_cannot_be_scored_are_rejected_with_a_reason(place: Workplace) -> None:
    empty = np.zeros((0, 4), np.float32)
    place.rows.append(
        RegionRow(
            image_id="nothing",
            width=9,
            height=9,
            boxes=empty,
            features=np.zeros((0, FEATURE_DIM), np.float32),
        )
    )
    place.pairs += [
        {"pair_id": "lost", "image_id": "elsewhere", "text": "a dog", "split": "test"},
        {"pair_id": "bare", "image_id": "nothing", "text": "a dog", "split": "test"},
        {"pair_id": "blank", "image_id": "image0", "text": " \n", "split": "test"},
    ]
    place.write()
    metrics = place.metrics()
    assert metrics["pairs"] + metrics["rejected_pairs"] == len(place.pairs) == 8
    rejects = read_table(place.folder / "out", REJECTS).to_pylist()
    assert {row["key"]: row["reason"] for row in rejects} == {
        "lost": "no_regions",
        "bare": "no_boxes",
        "blank": "no_text",
    }
    assert "no_boxes" in (place.folder / "out" / "report.html").read_text()


def test_one_split_is_ranked_where_asked(place: Workplace) -> None:
    for pair in place.pairs[:2]:
        pair["split"] = "train"
    place.write()
    assert place.metrics("--split", "test")["pairs"] == 3
    with pytest.raises(InputError, match="its splits are test, train"):
        place.run("--split", "dev", output="other")


def test_folds_are_reported_beside_the_whole(place: Workplace) -> None:
    place.pairs = place.pairs[:4]
    place.write()
    metrics = place.metrics("--fold-images", "2")
    assert metrics["folds/image_retrieval/r1_chance"] == 0.5
    assert metrics["image_retrieval/r1_chance"] == 0.25
    with pytest.raises(InputError, match="--fold-images 3 does not divide the 4 images"):
        place.run("--fold-images", "3", output="other")


def test_another_detectors_regions_are_refused_and_unknown_ones_noted(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(trained_fingerprint="e" * 64)
    with pytest.raises(InputError, match="--regions come from detector ffff"):
        place.run()
    place.fingerprint = None
    place.write()
    page = (place.run() / "report.html").read_text()
    assert "which detector was used" in page
    assert "which detector was used" in capsys.readouterr().err


def test_what_makes_figures_worthless_is_said(place: Workplace) -> None:
    place.weights = "random weights, seed 0"
    place.write(step=0)
    page = (place.run() / "report.html").read_text()
    assert "random weights, so the regions are meaningless" in page
    assert "untrained" in page


def hashes(*ids: str) -> NDArray[np.uint64]:
    return np.array([key64(one) for one in ids], np.uint64)


def test_pairs_and_images_known_from_training_are_counted(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their ids, whichever table they stood in; what evaluation rejects does not count."""
    place.pairs.append({"pair_id": "lost", "image_id": "nowhere", "text": "a dog"})
    learnt = hashes("p0", "p1", "p4", "lost", "of another table")
    place.trained_on = TrainedOn().and_also(learnt, hashes("image0", "image1", "nowhere"))
    place.write()
    metrics = place.metrics()
    assert (metrics["pairs_trained_on"], metrics["images_trained_on"]) == (3, 2)
    page = (place.folder / "out" / "report.html").read_text()
    assert "trained on 3 ranked pairs" in page and "58.20" not in page
    said = "was trained on 3 of these 5 pairs and 2 of these 4 images"
    assert said in page.split("Recall")[0] and said in capsys.readouterr().err
    assert "do not record" not in page and "does not record" not in page


def test_images_known_with_other_captions_are_said(place: Workplace) -> None:
    place.trained_on = TrainedOn(complete=False).and_also(hashes("another"), hashes("image3"))
    place.write()
    page = (place.run() / "report.html").read_text()
    assert "0 of these 5 pairs and 1 of these 4 images" in page
    assert "in part: other captions" in page
    assert "weights that its training started from do not record" in page


def test_a_checkpoint_of_other_data_is_not_suspected(place: Workplace) -> None:
    place.trained_on = TrainedOn().and_also(hashes("another"), hashes("elsewhere"))
    place.write()
    metrics = place.metrics()
    assert metrics["pairs_trained_on"] == metrics["images_trained_on"] == 0
    assert "trained on" not in (place.folder / "out" / "report.html").read_text()


def test_that_a_checkpoint_does_not_say_what_it_was_trained_on_is_noted(place: Workplace) -> None:
    place.write()
    assert "pairs_trained_on" not in place.metrics()
    page = (place.folder / "out" / "report.html").read_text()
    assert "does not record which pairs it was trained on" in page


def test_features_of_another_width_are_refused(place: Workplace) -> None:
    place.rows = [
        RegionRow(
            image_id=row.image_id,
            width=row.width,
            height=row.height,
            boxes=row.boxes,
            features=np.zeros((len(row.boxes), FEATURE_DIM), np.float32),
        )
        for row in place.rows
    ]
    place.write()
    write_shard(
        place.folder / "regions",
        REGIONS,
        encode_regions([], dtype="float16"),
        producer={"detector_fingerprint": "f" * 64},
        arrays=region_arrays(dtype="float16", feature_dim=FEATURE_DIM + 1),
    )
    with pytest.raises(InputError, match="features 13 wide, the checkpoint takes 12"):
        place.run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "toaster"), "--device toaster: expected cpu"),
        (("--device", "cuda:99"), "--device cuda:99"),
        (("--batch-size", "0"), "--batch-size 0: expected at least 1"),
        (("--images", "no/such/folder"), "--images no/such/folder: no table of images"),
    ],
)
def test_wrong_arguments_are_named(
    place: Workplace, arguments: tuple[str, ...], message: str
) -> None:
    place.write()
    with pytest.raises(InputError, match=message):
        place.run(*arguments)
    assert not (place.folder / "out").exists()


def test_nothing_to_rank_is_an_error_that_counts_the_reasons(place: Workplace) -> None:
    place.rows = []
    place.write()
    with pytest.raises(InputError, match=r"\(5 no_regions; --pairs has .* has no ids\)"):
        place.run()


def test_of_a_pair_given_twice_the_first_counts(place: Workplace) -> None:
    place.write()
    once = place.metrics()
    place.pairs.append(place.pairs[0])
    place.write()
    assert place.metrics("--fresh") == once | {"rejected_pairs": 1}


def test_images_that_the_tables_call_by_different_ids(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write()
    once = place.metrics()
    out = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(out, "PNG")
    image = {"image_id": "photos/image0.png", "bytes": out.getvalue()}
    write_shard(place.folder / "images", IMAGES, [image])
    for pair in place.pairs:
        pair["image_id"] = f"own/{pair['image_id']}.jpg"
    place.pairs[0]["image_id"] = place.pairs[4]["image_id"] = "image0"
    place.write()
    images = str(place.folder / "images")
    assert place.metrics("--fresh", "--images", images) == once
    said = capsys.readouterr().err
    assert "3 but for folders (own/image1.jpg is image1)." in said
    assert "data:image/jpeg;base64," in (place.folder / "out" / "report.html").read_text()


def test_the_report_shows_images_and_escapes_texts(place: Workplace) -> None:
    place.pairs[0]["text"] = "<script>alert(1)</script> dog"
    place.write()
    out = io.BytesIO()
    Image.new("RGB", (60, 40), "red").save(out, "PNG")
    rows = [
        {**dict.fromkeys(IMAGES.schema.names), "image_id": "image0", "bytes": out.getvalue()},
        {**dict.fromkeys(IMAGES.schema.names), "image_id": "image1", "bytes": b"no picture"},
    ]
    write_shard(place.folder / "images", IMAGES, rows)
    page = (place.run("--images", str(place.folder / "images")) / "report.html").read_text()
    assert "data:image/jpeg;base64," in page
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "Comparison with the papers" in page and "58.20" in page
    drawn = page.split("Regions that the answer depends on")[-1]
    assert "<rect" in drawn and "nan" not in drawn.split("</section>")[0]


def test_ties_that_matter_are_noted() -> None:
    metrics = {
        "image_retrieval/r1": 0.0,
        "image_retrieval/r1_optimistic": 1.0,
        "image_retrieval/ties": 7,
        "text_retrieval/r1": 0.5,
        "text_retrieval/r1_optimistic": 0.5,
        "text_retrieval/ties": 0,
    }
    (note,) = notes_on_ties(metrics)
    assert note.startswith("image_retrieval: 7 queries have ties")
    assert "100.0 %" in note and "0.0 %" in note
