"""Models that none of a task's recipes has, trained by a recipe of the user's own."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.train.tasks import choices, expressions, questions
from tests.train.tasks.finetuning.starts import save_random

from vlmill.models.beit.config import beit_base
from vlmill.models.imagebert.config import ImageBertRetrievalConfig, imagebert_small
from vlmill.models.interbert.config import InterBertTasksConfig, interbert_small
from vlmill.models.vilbert.config import Vilbert12in1Config, vilbert_small
from vlmill.runtime.console.log import read_log
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.tasks.registry import TASKS

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {"width": 16, "num_heads": 2, "intermediate_width": 32}
INTERBERT = InterBertTasksConfig(trunk=interbert_small(visual_num_heads=2, **SIZES))
IMAGEBERT = ImageBertRetrievalConfig(trunk=imagebert_small(**SIZES))


def of_12_in_1(num_tasks: int = 0) -> Vilbert12in1Config:
    sizes = SIZES | {"visual_width": 16, "co_width": 16, "num_tasks": num_tasks}
    return Vilbert12in1Config(trunk=vilbert_small(**sizes))


def finetune_own(folder: Path, task: str, variant: str, model: Any) -> tuple[int, list[str]]:
    """Fine-tunes another model with a small recipe's settings; the status, and the tables."""
    home = {"vcr": choices, "refcoco": expressions}[task]
    inputs = home.world(folder, 16)
    recipe = dataclasses.replace(
        home.tiny(f"{task}-vilbert-small", "steps=2", "validate_every=2"),
        name=f"my-{task}",
        variant=variant,
        model=model,
        starts_from=(),
    )
    (folder / "my.yaml").write_text(to_yaml(recipe))
    tables = ["--examples", inputs.examples, "--regions", str(inputs.regions)]
    tables += ["--annotated-regions", str(inputs.annotated_regions)]
    words = ["--config", str(folder / "my.yaml"), *tables, "--output", str(folder / "run")]
    return main(["finetune", *words]), tables


@pytest.mark.parametrize(
    ("task", "variant", "model", "figure"),
    [
        ("vcr", "vilbert-12in1-tasks", of_12_in_1(), "vcr/val/q_a"),
        ("refcoco", "interbert-tasks", INTERBERT, "refcoco+/val/accuracy"),
    ],
)
def test_a_model_of_ones_own_recipe_is_evaluated(
    tmp_path: Path, task: str, variant: str, model: Any, figure: str
) -> None:
    assert variant not in {recipe.variant for recipe in TASKS[task].make_recipes()}
    status, tables = finetune_own(tmp_path, task, variant, model)
    assert status == 0
    checkpoint = ["--checkpoint", str(tmp_path / "run"), "--split", "val"]
    output = tmp_path / "evaluated"
    assert main(["evaluate", task, *checkpoint, *tables, "--output", str(output)]) == 0
    (measured,) = [line for line in read_log(tmp_path / "run" / "log.jsonl") if is_measured(line)]
    metrics = json.loads((output / "metrics.json").read_text())
    name = "accuracy/q2a" if task == "vcr" else "accuracy"
    assert metrics[figure] == measured[f"validation/{name}"]


def is_measured(line: dict[str, Any]) -> bool:
    return "validation/accuracy" in line


@pytest.mark.parametrize(
    ("task", "variant", "model", "said"),
    [
        (
            "vcr",
            "imagebert-retrieval",
            IMAGEBERT,
            "it has no head for vcr; expected one of inter",
        ),
        ("refcoco", "imagebert-retrieval", IMAGEBERT, "it has no head for refcoco; expected one"),
        ("vcr", "vilbert-12in1-tasks", of_12_in_1(3), "num_tasks=3, but vcr feeds no task token"),
    ],
)
def test_a_model_without_the_tasks_head_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    variant: str,
    model: Any,
    said: str,
) -> None:
    status, _ = finetune_own(tmp_path, task, variant, model)
    assert status == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_recipe_of_vlmo_starts_from_beit(tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        questions.tiny("vqa-vlmo-small", "steps=2"), name="my-vqa", starts_from=("beit",)
    )
    encoder = recipe.model.encoder
    shared = ("width", "num_layers", "num_heads", "intermediate_width", "patch_size")
    beit = beit_base(
        image_size=32,
        layer_scale=encoder.layer_scale,
        **{name: getattr(encoder, name) for name in shared},
    )
    words = train_vocabulary([questions.question(n)["question"] for n in range(3)], 60)
    init = save_random(tmp_path / "beit", "beit", beit, words)
    (tmp_path / "my.yaml").write_text(to_yaml(recipe))
    tables = [
        "--examples",
        questions.world(tmp_path).examples,
        "--images",
        str(tmp_path / "images"),
    ]
    run = ["finetune", "--config", str(tmp_path / "my.yaml"), "--init", str(init), *tables]
    assert main([*run, "--output", str(tmp_path / "run"), "steps=0"]) == 0
    started = load_checkpoint(tmp_path / "run").model.state_dict()
    expected = load_checkpoint(init).model.state_dict()
    name = "patch_embedding.projection.weight"
    assert torch.equal(started[f"encoder.{name}"], expected[name])
    assert main([*run, "--output", str(tmp_path / "trained")]) == 0
    assert [line["step"] for line in read_log(tmp_path / "trained" / "log.jsonl")] == [1, 2]
