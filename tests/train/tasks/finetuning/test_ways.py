"""Fine-tuning from BERT alone, in bfloat16, and on images larger than in pretraining."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
import torch
from accelerate.state import AcceleratorState
from tests.train.tasks.finetuning.starts import logged, vqa_start
from tests.train.tasks.questions import TINY, tiny, world

from vlmill.models import MODELS
from vlmill.models.registry import get_variant
from vlmill.models.vlmo.stages import resize_table
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.recipes import recipe_named
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.registry import task_recipe_named, task_recipes

if TYPE_CHECKING:
    from pathlib import Path

FROM_BERT = [name for name in TINY if "from-bert" in name]


def answered(checkpoint: Path, inputs: TaskInputs, output: Path) -> float:
    """Evaluates a checkpoint on the held-out questions; their soft score."""
    evaluate_task(
        EvaluationOptions(
            task="vqa",
            checkpoint=checkpoint,
            examples=inputs.examples,
            regions=inputs.regions,
            images=inputs.images,
            split="val2014",
            output=output,
        )
    )
    metrics = json.loads((output / "metrics.json").read_text())
    score: float = metrics["vqa/val2014/soft_score"]
    return score


@pytest.mark.parametrize("name", FROM_BERT)
def test_the_papers_baselines_start_from_bert_alone(tmp_path: Path, name: str) -> None:
    init = vqa_start(tmp_path / "bert", name)
    inputs = dataclasses.replace(world(tmp_path), init=str(init))
    finetune(tiny(name, "steps=0"), inputs, tmp_path / "start")
    start, bert = load_checkpoint(tmp_path / "start").model, load_checkpoint(init).model
    # All of BERT's layers are there, whatever they are called.
    ours = [value for value in start.state_dict().values() if value.ndim == 2]
    layers = [v for k, v in bert.state_dict().items() if v.ndim == 2 and "head" not in k]
    missing = [v.shape for v in layers if not any(v.shape == o.shape and v.equal(o) for o in ours)]
    assert len(missing) <= 2, missing  # segments and the pooler, where a model has none
    finetune(tiny(name, "steps=3", "validate_every=3"), inputs, tmp_path / "out")
    lines = logged(tmp_path / "out")
    assert [line["step"] for line in lines] == [1, 2, 3] and lines[0]["loss"] > 0
    assert lines[-1]["validation/soft_score"] == answered(
        tmp_path / "out", inputs, tmp_path / "answered"
    )


@pytest.mark.parametrize("name", ["vqa-vilbert-small", "vqa-vl-bert-small", "vqa-vlmo-small"])
def test_bfloat16_gives_the_losses_of_float32_but_for_rounding(tmp_path: Path, name: str) -> None:
    init = vqa_start(tmp_path / "init", name)
    inputs = dataclasses.replace(world(tmp_path), init=str(init))
    runs = {}
    for precision in ("no", "bf16"):
        recipe = tiny(name, "steps=3", "validate_every=3", f"precision={precision}")
        finetune(recipe, inputs, tmp_path / precision)
        AcceleratorState._reset_state(reset_partial_state=True)  # which keeps the precision
        runs[precision] = logged(tmp_path / precision)
    for line, other in zip(*runs.values(), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=0.02)
    assert runs["no"] != runs["bf16"]
    assert runs["no"][-1]["validation/loss"] == pytest.approx(
        runs["bf16"][-1]["validation/loss"], rel=0.02
    )
    weights = load_checkpoint(tmp_path / "bf16").model.state_dict().values()
    assert {value.dtype for value in weights if value.is_floating_point()} == {torch.float32}


def test_vlmo_reads_images_of_480_pixels_with_its_positions_resized(tmp_path: Path) -> None:
    name = "vqa-vlmo-base"
    init = vqa_start(tmp_path / "init", name, pixels=224)
    inputs = dataclasses.replace(world(tmp_path), init=str(init))
    finetune(tiny(name, "steps=0"), inputs, tmp_path / "start")
    start, before = load_checkpoint(tmp_path / "start"), load_checkpoint(init)
    assert start.feeding is not None
    assert start.config.encoder.image_size == start.feeding.image_size == 480
    position = "encoder.relative.table"
    ours, theirs = start.model.state_dict()[position], before.model.state_dict()[position]
    # Every offset within 30 by 30 and 14 by 14 patches, and as many rows of texts and classes.
    assert len(ours) - len(theirs) == 59**2 - 27**2
    assert torch.equal(ours, resize_table(theirs, start.config.encoder))
    finetune(tiny(name, "steps=2", "validate_every=2"), inputs, tmp_path / "out")
    lines = logged(tmp_path / "out")
    assert lines[-1]["validation/soft_score"] == answered(
        tmp_path / "out", inputs, tmp_path / "answered"
    )


@pytest.mark.parametrize("name", [n for n in task_recipes() if n.endswith("vlmo-small")])
def test_a_small_vlmo_starts_from_its_small_pretraining(name: str) -> None:
    before, recipe = recipe_named("vlmo-small").model, task_recipe_named(name)
    encoder = get_variant(recipe.variant).get_body(recipe.model)
    encoder = getattr(encoder, "encoder", encoder)
    table = MODELS["vlmo"].model(before).state_dict()["encoder.relative.table"]
    rows = (2 * encoder.side - 1) ** 2 - (2 * before.side - 1) ** 2
    assert len(resize_table(table, encoder)) == len(table) + rows


@pytest.mark.parametrize("name", FROM_BERT)
def test_new_regions_start_as_if_their_features_were_standardised(
    tmp_path: Path, name: str
) -> None:
    init = vqa_start(tmp_path / "bert", name)
    inputs = dataclasses.replace(world(tmp_path), init=str(init))
    models = {}
    for standardised in ("false", "true"):
        recipe = tiny(name, "steps=0", f"standardise_features={standardised}")
        finetune(recipe, inputs, tmp_path / standardised)
        models[standardised] = load_checkpoint(tmp_path / standardised).model.state_dict()
    plain, other = models.values()
    changed = {key for key, value in plain.items() if not value.equal(other[key])}
    assert changed and all("region" in key for key in changed)
