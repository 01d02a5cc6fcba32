"""Full images' features (ImageBERT, sec. 5.3), from the table of regions to retrieval."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.factories import write_images

from vlmill.extract.cli import command as extract
from vlmill.models.imagebert.model import ImageBert
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import Recipe, Stage, change_recipe
from vlmill.train.run.job import pretrain
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores

if TYPE_CHECKING:
    from tests.factories import Tables

NAMES = tuple(f"image-{i}" for i in range(12))


def extracted(folder: Path, *flags: str) -> tuple[str, list[str]]:
    """Regions of photographs' stand-ins by ``extract-rois run``, and the images' ids."""
    write_images(folder / "images", 6)
    detector = ["--arch", "tiny", "--short-side", "64", "--long-side", "112", "--max-boxes", "5"]
    command = ["run", str(folder / "images"), "--output", str(folder / "extracted"), *detector]
    assert extract([*command, *flags]) == 0
    assert extract(["verify", str(folder / "extracted")]) == 0
    return str(folder / "extracted"), RegionReader(folder / "extracted").image_ids


def with_globals(recipe: Recipe, *more: str) -> Recipe:
    return change_recipe(recipe, ["model.global_widths=[16]", "stages.0.steps=2", *more])


def make(tables: Tables, stage: Stage) -> PretrainBatches:
    tokenizer, reader = (
        train_vocabulary(["a dog runs in the street"], 60),
        RegionReader(tables.regions),
    )
    with ShardWriter(tables.folder, REJECTS, 0, 1) as rejects:
        prepare_samples(
            tables.folder / "prepared",
            PreparationInputs(
                pairs=tables.pairs,
                images=reader,
                tokenizer=tokenizer,
                max_tokens=44,
            ),
            rejects,
        )
    return PretrainBatches(
        samples=tables.folder / "prepared",
        regions=reader,
        stage=stage,
        stage_number=0,
        seed=0,
        lexicon=Lexicon.from_tokenizer(tokenizer),
        global_features=True,
    )


def test_batches_hold_those_of_the_shown_images(tables: Tables, stage: Stage) -> None:
    tables.write()
    tables.write_regions(list(NAMES), whole=NAMES)
    batches = make(tables, stage)
    assert isinstance(batches.regions, RegionReader)
    matching = []
    for index in range(3):
        stored = batches.assembled(index)
        found = stored.to("cpu").inputs.validate().global_features
        assert found is not None and found.dtype == torch.float32
        matching += stored.tensors["matching"].tolist()
        for own, image_id in zip(found.numpy(), stored.image_ids, strict=True):
            np.testing.assert_array_equal(own, batches.regions[image_id].global_feature)
    assert 0 in matching  # images of other pairs among them
    without = dataclasses.replace(batches, global_features=False)
    assert without.assembled(0).to("cpu").inputs.global_features is None


def test_a_image_without_is_named(tables: Tables, stage: Stage) -> None:
    tables.write()
    tables.write_regions(list(NAMES), whole=NAMES[:-1])
    batches = make(tables, stage)
    with pytest.raises(InputError, match=r"image-11 has no global_feature.*--global-feature"):
        for index in range(3):
            batches[index]


@pytest.mark.parametrize(
    ("whole", "widths", "said"),
    [((), "[16]", "image-0 has no global_feature"), (NAMES, "[9,9]", "16 wide, .* takes 18")],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    tables: Tables, recipe: Recipe, tmp_path: Path, whole: tuple[str, ...], widths: str, said: str
) -> None:
    inputs = tables.write()
    tables.write_regions(list(NAMES), whole=whole)
    changed = with_globals(recipe, f"model.global_widths={widths}")
    with pytest.raises(InputError, match=said):
        pretrain(changed, inputs, tmp_path / "run")


def test_a_model_with_global_features_is_trained_and_ranks_by_them(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tables.write()
    tables.write_regions(list(NAMES), whole=NAMES)
    pretrain(with_globals(recipe), inputs, tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run")
    model = loaded.model.eval()
    assert isinstance(model, ImageBert) and len(model.global_features) == 1

    reader = RegionReader(tables.regions)
    assert loaded.feeding is not None
    images = RegionImages(reader, loaded.feeding, global_features=True)
    texts = [np.array(loaded.tokenizer.encode(text).ids) for text in ("a dog", "a cat runs")]
    with torch.no_grad():
        scores = match_scores(
            make_scorer(model), texts, NAMES[:3], images, device=torch.device("cpu"), batch_size=2
        )
        shown = images.batch(NAMES[:3]).to("cpu").inputs
        tokens = torch.from_numpy(texts[0]).expand(3, -1)
        inputs_of_text = dataclasses.replace(
            shown,
            tokens=tokens,
            token_mask=torch.ones_like(tokens, dtype=torch.bool),
            real_tokens=None,
            read_tokens=None,
            read_regions=None,
        )
        expected = model.match_logit(model(inputs_of_text).pooled).numpy()
        np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-4, atol=1e-5)
        assert shown.global_features is not None
        other = dataclasses.replace(inputs_of_text, global_features=shown.global_features + 1)
        assert not np.allclose(model.match_logit(model(other).pooled).numpy(), expected)

    evaluate = ["evaluate", "retrieval", "--checkpoint", str(tmp_path / "run")]
    evaluate += ["--pairs", tables.pairs, "--regions", tables.regions]
    assert main([*evaluate, "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["images"] == len(NAMES)
    tables.write_regions(list(NAMES))
    capsys.readouterr()
    assert main([*evaluate, "--output", str(tmp_path / "other")]) == 2
    assert "image-0 has no global_feature" in capsys.readouterr().err


@pytest.mark.nightly
def test_from_images_by_three_networks_to_metrics(tables: Tables, tmp_path: Path) -> None:
    """All of ImageBERT's networks, and the recipe of its table 4 made small."""
    networks = ["--global-cnn", "densenet121,resnet152,googlenet"]
    regions, images = extracted(tmp_path, *networks)
    assert len(images) == 6
    rows = [(name, f"{number} cats in a row") for number, name in enumerate(images)]
    tables.write_pairs(rows, {"source": ["cc", "sbu"] * 3})
    inputs = ["--pairs", tables.pairs, "--regions", regions]
    sizes = ("width=16", "num_heads=2", "intermediate_width=16", "num_layers=1")
    run = ["steps=2", "batch_size=4", "workers=0", "vocabulary_size=60", "log_every=1"]
    small = [*run, *(f"model.{size}" for size in sizes)]
    for recipe, widths in (
        ("imagebert-cc-sbu-global", []),
        ("imagebert-small", ["model.global_widths=[1024,2048,1024]"]),
    ):
        out = tmp_path / recipe
        command = ["pretrain", recipe, *inputs, "--output", str(out), *small, *widths]
        assert main(command) == 0
        loaded = load_checkpoint(out)
        assert loaded.config.global_widths == (1024, 2048, 1024)
        assert [linear.in_features for linear in loaded.model.global_features] == [1024, 2048, 1024]
        evaluate = ["evaluate", "retrieval", "--checkpoint", str(out), *inputs]
        assert main([*evaluate, "--output", str(out / "retrieval")]) == 0
        metrics = json.loads((out / "retrieval" / "metrics.json").read_text())
        assert metrics["images"] == 6 and 0 <= metrics["image_retrieval/r1"] <= 1
