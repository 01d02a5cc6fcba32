"""Runs the commands of docs/own-data.md with 60 images and a hub on this machine.

Only two things differ from the page: fine-tuning takes two steps, and the service a free port.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save
from tests.hub_server import Hub, hub_server
from tests.serving import served

from vlmill.client import Client
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.train.cli import main as train_vl

PAGE = (Path(__file__).parents[1] / "docs" / "own-data.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "python -m vlmill.pipelines.manifest": manifest.main,
    "train-vl": train_vl,
}
COUNT = 60
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220)}
SHAPES = ("circle", "square", "bar")
MOST_COMMANDS = 8


def commands_of(heading: str) -> list[str]:
    """The commands of the first block behind a heading."""
    block: str = re.findall(r"^```sh\n(.*?)^```", PAGE.split(f"# {heading}\n")[1], re.M | re.S)[0]
    return block.replace("\\\n", " ").splitlines()


def draw(number: int) -> tuple[Image.Image, str, str]:
    """A drawing on noise, its colour and its shape."""
    noise = np.random.default_rng(number).integers(160, 255, (90, 120, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    colour, shape = list(COLOURS)[number % 3], SHAPES[number // 3 % 3]
    box = {"circle": (30, 15, 90, 75), "square": (30, 15, 90, 75), "bar": (5, 40, 115, 50)}[shape]
    pen = ImageDraw.Draw(image)
    (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=COLOURS[colour])
    return image, colour, shape


def tiny_deit() -> dict[str, torch.Tensor]:
    """A DeiT-tiny's tensors as Hugging Face has them, of its width and with random values."""
    torch.manual_seed(0)
    width, wide, layers = 192, 768, 12
    state = {
        "vit.embeddings.cls_token": (1, 1, width),
        "vit.embeddings.position_embeddings": (1, 197, width),
        "vit.embeddings.patch_embeddings.projection.weight": (width, 3, 16, 16),
        "vit.embeddings.patch_embeddings.projection.bias": (width,),
        "vit.layernorm.weight": (width,),
        "vit.layernorm.bias": (width,),
        "classifier.weight": (1000, width),
        "classifier.bias": (1000,),
    }
    for number in range(layers):
        layer = f"vit.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            state[f"{layer}.attention.attention.{part}.weight"] = (width, width)
            state[f"{layer}.attention.attention.{part}.bias"] = (width,)
        for part, shape in (
            ("attention.output.dense", (width, width)),
            ("intermediate.dense", (wide, width)),
            ("output.dense", (width, wide)),
        ):
            state[f"{layer}.{part}.weight"] = shape
            state[f"{layer}.{part}.bias"] = shape[:1]
        for part in ("layernorm_before", "layernorm_after"):
            state[f"{layer}.{part}.weight"] = (width,)
            state[f"{layer}.{part}.bias"] = (width,)
    return {name: torch.randn(shape) * 0.02 for name, shape in state.items()}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """The repositories that the page names."""
    with hub_server() as server:
        config = {"model_type": "vit", "hidden_size": 192, "num_attention_heads": 3}
        server.commit(
            "facebook/deit-tiny-patch16-224",
            {"config.json": json.dumps(config).encode(), "model.safetensors": save(tiny_deit())},
        )
        special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        letters = "abcdefghijklmnopqrstuvwxyz?"
        words = [*special, *COLOURS, *SHAPES, *letters, *(f"##{letter}" for letter in letters)]
        server.commit(
            "google-bert/bert-base-uncased", {"vocab.txt": "\n".join([*words, ""]).encode()}
        )
        yield server


@pytest.fixture(scope="module")
def world(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with 60 images and a table of captions, in which commands run."""
    folder = tmp_path_factory.mktemp("road")
    (folder / "photos").mkdir()
    tables = {"captions": ["file,caption,split"], "questions": ["file,question,answer,split"]}
    tables["labels"] = ["file,label,split"]
    for number in range(COUNT):
        image, colour, shape = draw(number)
        image.save(folder / "photos" / f"{number}.png")
        split = "test" if number % 5 == 0 else "train"
        name = f"{number}.png"
        tables["captions"].append(f"{name},a {colour} {shape} with the number {number},{split}")
        tables["questions"].append(f"{name},which colour has the {shape}?,{colour},{split}")
        tables["labels"].append(f"{name},{shape},{split}")
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield folder


def type_line(line: str) -> None:
    """Runs a command as it stands, a training for two steps."""
    name = next(name for name in COMMANDS if line.startswith(f"{name} "))
    words = shlex.split(line.removeprefix(name))
    assert COMMANDS[name]([*words, *(["steps=2"] if words[0] == "finetune" else [])]) == 0, line


def type_all(heading: str) -> list[str]:
    """Runs a section's commands but for the service; returns all of them."""
    lines = commands_of(heading)
    assert len(lines) <= MOST_COMMANDS and lines[-1].startswith("train-vl serve ")
    for line in lines[:-1]:
        if not (line.startswith("train-vl convert") and Path("start").is_dir()):
            type_line(line)
    return lines


@contextmanager
def service(line: str) -> Iterator[Client]:
    """Runs the service of a command, at a free port."""
    words = shlex.split(line.removeprefix("train-vl "))
    words[words.index("--port") + 1] = "0"
    with served(["-m", "vlmill.train.cli", *words]) as running:
        yield Client(running.url)
        assert running.stop() == 0


@pytest.mark.slow
def test_the_road_of_captions(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = type_all("From a published checkpoint")
    told = capsys.readouterr()
    assert "recipe retrieval-vlmo-small: the one for a vlmo of this size, with" in told.err
    assert "held out by the hash of their ids" in told.err
    metrics = json.loads((world / "results" / "metrics.json").read_text())
    assert metrics["pairs"] == COUNT / 5 and 0 <= metrics["image_retrieval/r1"] <= 1
    assert metrics["pairs_trained_on"] == 0
    with service(lines[-1]) as client:
        images = [(world / "photos" / f"{number}.png").read_bytes() for number in range(2)]
        scores = np.array(client.score(images, ["a red circle", "a green bar"]))
        assert np.isfinite(scores).all() and scores.shape == (2, 2)


@pytest.mark.nightly
def test_the_road_of_questions(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = type_all("Questions")
    assert "recipe vqa-vlmo-small: the one for a vlmo of this size" in capsys.readouterr().err
    metrics = json.loads((world / "results-questions" / "metrics.json").read_text())
    assert 0 <= metrics["vqa/test/accuracy"] <= 1 and metrics["vqa/test/accuracy_n"] == COUNT / 5
    with service(lines[-1]) as client:
        image = (world / "photos" / "0.png").read_bytes()
        assert client.answer(image, "which colour has the circle?") in COLOURS


@pytest.mark.nightly
def test_the_road_of_labels(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = type_all("Labels")
    assert "recipe classification-vlmo-small: the one" in capsys.readouterr().err
    metrics = json.loads((world / "results-labels" / "metrics.json").read_text())
    assert 0 <= metrics["classification/test/accuracy"] <= 1
    with service(lines[-1]) as client:
        classes = client.classify((world / "photos" / "0.png").read_bytes())
        assert set(classes["probabilities"]) == set(SHAPES)
        assert sum(classes["probabilities"].values()) == pytest.approx(1, abs=1e-3)
