"""``train-vl convert --backbone``: what goes in, what is told of it, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.behaviour.test_end_to_end import TINY, convert, write_resnet
from tests.factories import Call

from vlmill.inference.convert import command
from vlmill.models.vlbert.backbone import CONVENTIONS
from vlmill.models.vlbert.config import RegionCnnConfig

CNN = RegionCnnConfig(blocks=(1, 1, 1, 1), widths=(1, 2, 3, 4), stem_channels=4, pool_size=2)
FIELDS = [field.removeprefix("model.") for field in TINY if field.startswith("model.")]


def test_every_convention_can_be_asked_for() -> None:
    assert list(command.CONVENTIONS) == list(CONVENTIONS)


def test_origins_name_the_resnets_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resnet = write_resnet(tmp_path / "resnet.pth", CNN)
    assert convert(tmp_path, "--backbone", str(resnet), "--explain", *FIELDS) == 0
    origins = {
        line.split()[0]: line.split("]")[-1].strip()
        for line in capsys.readouterr().out.splitlines()
    }
    assert origins["cnn.res5.0.conv2.weight"] == "layer4.0.conv2.weight"
    assert origins["model.text_embedding.word.weight"] == "bert.embeddings.word_embeddings.weight"
    assert origins["model.end_token.weight"].startswith("new: N(0")


def lacking(path: Path) -> None:
    state = torch.load(write_resnet(path, CNN))
    torch.save({n: t for n, t in state.items() if not n.startswith("layer3.0.bn2")}, path)


def hostile(path: Path) -> None:
    path.write_bytes(pickle.dumps({"model": Call(print, "no")}))


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        (None, FIELDS, "no such file; give a ResNet's or a detector's"),
        (lambda path: path.write_bytes(b"weights"), FIELDS, "cannot be read"),
        (hostile, FIELDS, "cannot be read"),
        (
            lambda path: torch.save({"fc.weight": torch.ones(1)}, path),
            FIELDS,
            "have no known layout",
        ),
        (
            lacking,
            FIELDS,
            "it lacks layer3.0.bn2.weight and 3 tensors more; give a complete ResNet",
        ),
        (
            lambda path: write_resnet(path, RegionCnnConfig(**vars(CNN) | {"stem_channels": 5})),
            FIELDS,
            "a ResNet other than the network's (cnn.stem_channels=4); add cnn.stem_channels=5",
        ),
        (
            lambda path: write_resnet(path, CNN),
            [*FIELDS, "--backbone-conventions", "torchvision"],
            "add cnn.stride_in_1x1=false",
        ),
    ],
)
def test_a_file_that_does_not_fit_costs_one_line(
    make: Callable[[Path], object] | None,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, output = tmp_path / "resnet.pth", tmp_path / "start"
    if make is not None:
        make(path)
    assert convert(tmp_path, "--backbone", str(path), "--output", str(output), *words) == 2
    told = capsys.readouterr().err
    assert f"--backbone {path}" in told and message in told and told.count("\n") == 1, told
    assert not output.exists()


def test_only_a_new_model_with_a_region_network_takes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--backbone", "resnet.pth", "--explain"]
    assert convert(tmp_path, *flags, "--as", "imagebert-base") == 2  # the last --as counts
    assert "imagebert-base has no region network" in capsys.readouterr().err
    assert convert(tmp_path, "--explain", "--backbone-conventions", "released", *FIELDS) == 2
    assert "the first 2 stages of its region network" in capsys.readouterr().err
    free = [*FIELDS, "cnn.frozen_stages=0", "--backbone-conventions", "released", "--explain"]
    assert convert(tmp_path, *free) == 2
    assert "--backbone-conventions: needs --backbone" in capsys.readouterr().err
