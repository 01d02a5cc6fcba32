"""Retrieval is fine-tuned with each model, goes on where it was stopped, and is evaluated."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tasks.captions import TINY, USUAL, retrieval_start, tiny, world, write_neighbours

from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.run import loop
from vlmill.train.run.step import train_step
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.registry import task_recipe_named

CLOCK = ("samples_per_second", "mfu", "data_wait", "process_memory_bytes")


def logged(output: Path) -> list[dict[str, Any]]:
    lines = read_log(output / "log.jsonl")
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]


def tables_of(inputs: TaskInputs) -> list[str]:
    assert inputs.regions is not None and inputs.images is not None
    return ["--regions", inputs.regions, "--images", inputs.images]


def words_of(inputs: TaskInputs, name: str, output: Path, *changes: str) -> list[str]:
    """The command that fine-tunes a small recipe made smaller."""
    assert inputs.init is not None and inputs.negatives is not None
    command = ["finetune", name, "--init", inputs.init, "--examples", inputs.examples]
    command += [*tables_of(inputs), "--negatives", inputs.negatives, "--output", str(output)]
    return [*command, *TINY[name], *USUAL, "steps=2", "save_every=1", *changes]


@pytest.mark.parametrize("name", TINY)
def test_each_model_is_fine_tuned_goes_on_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = dataclasses.replace(world(tmp_path), init=retrieval_start(tmp_path / "init", name))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    validated = ("validate_every=1", "validation_pairs=4")
    assert main(words_of(given, name, whole, *validated)) == 0

    def killed(step: int, *rest: Any) -> dict[str, float]:
        if step == 2:
            raise KeyboardInterrupt
        return train_step(step, *rest)

    monkeypatch.setattr(loop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny(name, "save_every=1", *validated), given, parts)
    monkeypatch.undo()
    assert main(words_of(given, name, parts, *validated)) == 0
    assert logged(parts) == logged(whole) and len(logged(whole)) == 2
    ours, theirs = (load_checkpoint(folder) for folder in (whole, parts))
    assert ours.task is not None and ours.task.name == "retrieval"
    for key, value in ours.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[key]), key

    evaluate = ["evaluate", "retrieval", "--checkpoint", str(whole), "--pairs", given.examples]
    evaluate += [*tables_of(given), "--split", "val", "--output", str(tmp_path / "figures")]
    assert main(evaluate) == 0
    metrics = json.loads((tmp_path / "figures" / "metrics.json").read_text())
    # What validation has measured of the checkpoint is what evaluation measures.
    best = next(line for line in logged(whole) if line["step"] == ours.training.step)
    for figure in ("image_retrieval/r1", "text_retrieval/r1", "mean_recall"):
        assert metrics[figure] == pytest.approx(best[f"validation/{figure}"]), figure
    page = (tmp_path / "figures" / "report.html").read_text()
    assert "flickr30k fine-tuned" in page and name in page


@pytest.mark.parametrize("name", TINY)
def test_each_model_starts_from_its_pretraining(tmp_path: Path, name: str) -> None:
    init = retrieval_start(tmp_path / "init", name)
    given = dataclasses.replace(world(tmp_path), init=init)
    finetune(tiny(name, "steps=0"), given, tmp_path / "start")
    start, before = load_checkpoint(tmp_path / "start"), load_checkpoint(Path(init))
    ours, theirs = start.model.state_dict(), before.model.state_dict()
    same = [
        key
        for key, value in ours.items()
        for other in (key, key.partition(".")[2])
        if other in theirs and theirs[other].shape == value.shape and theirs[other].equal(value)
    ]
    assert len(same) > 0.6 * len(ours), sorted(ours)


def test_the_alignment_head_of_pretraining_is_fine_tuned_by_the_papers_text(
    tmp_path: Path,
) -> None:
    like, small = task_recipe_named("retrieval-vilbert-paper"), tiny("retrieval-vilbert-small")
    recipe = dataclasses.replace(small, variant=like.variant, model=small.model.trunk)
    init = retrieval_start(tmp_path / "init", "retrieval-vilbert-small")
    given = dataclasses.replace(world(tmp_path), init=init)
    finetune(recipe, given, tmp_path / "run")
    trained, before = load_checkpoint(tmp_path / "run"), load_checkpoint(Path(init))
    assert trained.variant == "vilbert"
    ours, theirs = trained.model.state_dict(), before.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert not torch.equal(ours["match_head.weight"], theirs["match_head.weight"])


@pytest.mark.parametrize(
    ("losses", "head", "trained"),
    [
        ("[binary]", "match", ("trunk.match_head.weight",)),
        ("[triplet]", "score", ("score_head.weight",)),
        ("[binary,softmax,triplet]", "match", ("trunk.match_head.weight", "score_head.weight")),
    ],
)
def test_imageberts_losses_train_the_head_that_ranks(
    tmp_path: Path, losses: str, head: str, trained: tuple[str, ...]
) -> None:
    inputs, name = world(tmp_path), "retrieval-imagebert-small"
    fields = (f"settings.losses={losses}", f"model.rank_by={head}", "settings.num_candidates=3")
    before = tmp_path / "before"
    finetune(tiny(name, *fields, "steps=0"), inputs, before)
    given = dataclasses.replace(inputs, init=str(before))
    finetune(tiny(name, *fields, "optimizer.weight_decay=0"), given, tmp_path / "run")
    ours = load_checkpoint(tmp_path / "run").model.state_dict()
    theirs = load_checkpoint(before).model.state_dict()
    for key in ("trunk.match_head.weight", "score_head.weight"):
        # A head that no loss trains is new for each run that takes a trunk, or stays the trunk's.
        moved = not torch.equal(ours[key], theirs[key])
        assert moved == (key in trained), key


def test_what_would_be_wrong_in_silence_is_refused(tmp_path: Path) -> None:
    inputs, out = world(tmp_path), tmp_path / "out"
    vilbert, imagebert = "retrieval-vilbert-small", "retrieval-imagebert-small"
    without = dataclasses.replace(inputs, negatives=None)
    with pytest.raises(InputError, match=r"--negatives is missing: the captions of the nearest"):
        finetune(tiny(vilbert), without, out)
    with pytest.raises(InputError, match=r"rank_by=score: .* train only the other head"):
        finetune(tiny(imagebert, "model.rank_by=score"), inputs, out)
    with pytest.raises(InputError, match=r"negatives=both: a vlmo is fine-tuned with batch"):
        finetune(tiny("retrieval-vlmo-small", "settings.negatives=both"), inputs, out)
    with pytest.raises(InputError, match=r"a single pair has no negative"):
        finetune(tiny("retrieval-vlmo-small", "batch_size=1"), inputs, out)
    with pytest.raises(InputError, match=r"finds 9 of the 19 negatives"):
        many = ("settings.negatives=pictures", "settings.num_candidates=20")
        finetune(tiny(imagebert, *many), inputs, out)
    near = write_neighbours(tmp_path / "few", {0: [1], 1: [2]})
    few = dataclasses.replace(inputs, negatives=near)
    with pytest.raises(InputError, match=r"8 of the 10 images .* have no neighbour"):
        finetune(tiny(vilbert, "seed=1"), few, tmp_path / "few-out")


def test_images_without_neighbours_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = {n: [(n + 1) % 5] for n in range(9)}
    inputs = dataclasses.replace(
        world(tmp_path), negatives=write_neighbours(tmp_path / "some", near)
    )
    finetune(tiny("retrieval-vilbert-small"), inputs, tmp_path / "out")
    said = capsys.readouterr().err
    assert "warning: --negatives" in said and "2 of the 10 images" in said
    assert "their negatives are sampled from the captions of all images" in said


def test_a_checkpoint_of_another_task_and_a_blind_one_are_not_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = world(tmp_path), tmp_path / "run"
    finetune(tiny("retrieval-imagebert-small", "blind=true"), inputs, run)
    assert inputs.regions is not None
    command = ["evaluate", "retrieval", "--checkpoint", str(run), "--pairs", inputs.examples]
    command += ["--regions", inputs.regions, "--output", str(tmp_path / "figures")]
    assert main(command) == 2
    assert "was trained without images" in capsys.readouterr().err
    record = json.loads((run / "checkpoint.json").read_text())
    record["task"] |= {"name": "vqa", "blind": False}
    (run / "checkpoint.json").unlink()
    (run / "checkpoint.json").write_text(json.dumps(record))
    assert main(command) == 2
    assert "was fine-tuned for vqa" in capsys.readouterr().err
