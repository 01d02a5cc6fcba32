"""Checkpoints come from stores and go there: ``convert``, ``--init``, ``--vocab``, ``evaluate``,
``finetune`` and ``show``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import Tables
from tests.inference.convert.test_command import FIELDS, VOCABULARY, published
from tests.object_stores import download_folder, names_below, upload_folder
from tests.train.tasks.questions import ANSWERS, TINY, USUAL, world

from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.train.cli import main
from vlmill.train.run import loop
from vlmill.train.run.step import train_step
from vlmill.train.tasks.finetuning.job import SEEDS

__all__ = ["published"]  # the fixture of that module


def test_from_a_published_checkpoint_to_measures(
    published: Path, tables: Tables, bucket: str, tmp_path: Path, capsys: Any
) -> None:
    tables.write()
    upload_folder(tmp_path, f"{bucket}/in")
    measures = {}
    for place, inputs in ((str(tmp_path / "here"), str(tmp_path)), (bucket, f"{bucket}/in")):
        start, run, result = (f"{place}/{name}" for name in ("start", "run", "result"))
        pairs = ["--pairs", f"{inputs}/pairs", "--regions", f"{inputs}/regions"]
        convert = ["convert", "--family", "bert", "--checkpoint", f"{inputs}/published"]
        assert main([*convert, "--as", "imagebert-base", *FIELDS, "--output", start]) == 0
        pretrain = ["pretrain", "imagebert-small", *pairs, "--init", start, "--output", run]
        assert main([*pretrain, "steps=2", "batch_size=4"]) == 0
        evaluate = ["evaluate", "retrieval", "--checkpoint", run, *pairs]
        assert main([*evaluate, "--output", result]) == 0
        measures[place] = json.loads((to_path(result) / "metrics.json").read_text())
        assert main([*evaluate, "--output", result]) == 0
        assert "is finished" in capsys.readouterr().out
    here, there = measures.values()
    assert here == there
    assert names_below(f"{bucket}/start") == [
        *("_whole", "checkpoint.json", "model.safetensors", "vocab.txt")
    ]


def test_a_vocabulary_of_a_store(tables: Tables, bucket: str, tmp_path: Path) -> None:
    tables.write()
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    place = to_path(f"{bucket}/vocab.txt")
    assert isinstance(place, RemotePath)
    place.upload(tmp_path / "vocab.txt")
    fields = ["model.width=16", "model.num_layers=1", "model.num_heads=2", "steps=0"]
    command = ["pretrain", "imagebert-small", "--pairs", tables.pairs, "--regions", tables.regions]
    output = tmp_path / "run"
    assert main([*command, "--vocab", str(place), *fields, "--output", str(output)]) == 0
    assert (output / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()


def test_a_conversion_that_was_killed_is_no_checkpoint(
    published: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    command = ["convert", "--family", "bert", "--checkpoint", str(published)]
    upload, left = RemotePath.upload, ["model.safetensors", "checkpoint.json"]

    def until(self: RemotePath, file: Path) -> Any:
        if self.name == left[0]:
            raise OSError("killed")
        return upload(self, file)

    while left:
        with monkeypatch.context() as patch:
            patch.setattr(RemotePath, "upload", until)
            assert main([*command, "--output", f"{bucket}/ours"]) == 1
        evaluate = ["evaluate", "retrieval", "--pairs", "none", "--output", f"{bucket}/result"]
        assert main([*evaluate, "--checkpoint", f"{bucket}/ours"]) == 2
        assert "holds no checkpoint" in capsys.readouterr().err
        left.pop(0)
    assert main([*command, "--output", f"{bucket}/ours"]) == 0


class Killed(BaseException):
    """Ends a run as a kill does: nothing more is written."""


@pytest.mark.nightly
def test_seeds_of_a_task_go_on_in_a_store(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The second seed is killed after its first checkpoint; the first one is not trained again."""
    world(tmp_path / "in")
    (tmp_path / "in" / "labels.txt").write_text("".join(f"{answer}\n" for answer in ANSWERS))
    upload_folder(tmp_path / "in", f"{bucket}/in")
    fields = [*TINY["vqa-vilbert-small"], *USUAL, "steps=4", "seeds=[0,1]", "validate_every=2"]

    def finetune(inputs: str, output: str) -> int:
        tables = ["--examples", f"{inputs}/questions", "--regions", f"{inputs}/regions"]
        labels = ["--labels", f"{inputs}/labels.txt"]
        return main(
            ["finetune", "vqa-vilbert-small", *fields, *tables, *labels, "--output", output]
        )

    assert finetune(str(tmp_path / "in"), str(tmp_path / "run")) == 0
    output, steps = f"{bucket}/run", list[int]()

    def counted(step: int, *rest: Any) -> Any:
        steps.append(step)
        if len(steps) == 7:
            raise Killed
        return train_step(step, *rest)

    monkeypatch.setattr(loop, "train_step", counted)
    with pytest.raises(Killed):
        finetune(f"{bucket}/in", output)
    assert main(["show", output]) == 2  # no seed has been chosen
    capsys.readouterr()
    assert finetune(f"{bucket}/in", output) == 0
    said = capsys.readouterr()
    assert (
        f"{output}/seed-0 holds this run, finished" in said.err and f"{output}: 2 seeds" in said.out
    )
    assert steps == [1, 2, 3, 4, 1, 2, 3, 3, 4]

    there = download_folder(output, tmp_path / "there")
    assert (there / SEEDS).read_text() == (tmp_path / "run" / SEEDS).read_text()
    for seed in ("seed-0", "seed-1"):
        losses = [
            [line["loss"] for line in read_log(folder / seed / "log.jsonl")]
            for folder in (there, tmp_path / "run")
        ]
        assert losses[0] == losses[1] and len(losses[0]) == 4
    assert not [name for name in names_below(output) if "prepared" in name]
    assert main(["show", output, "--lineage"]) == 0
    said = capsys.readouterr().out
    assert f"--examples {bucket}/in/questions" in said and "every input still matches" in said
