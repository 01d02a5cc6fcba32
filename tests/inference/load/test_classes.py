"""``classify``, ``entail`` and ``explain`` on raw images, and what the loaded object shows."""

from __future__ import annotations

import dataclasses
import io
import pydoc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.factories import write_photographs
from tests.train.tasks.labels import CLASSES, labelled, statement, tiny, world, write_rows

import vlmill
from vlmill.extract.cli import command as extract_rois
from vlmill.inference.load.explaining import GRID, draw_weights
from vlmill.inference.load.public import read_image_bytes
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.errors import InputError
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune

EXTRACT = ("--arch", "tiny", "--short-side", "48", "--long-side", "80", "--max-boxes", "7")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TaskInputs]:
    """A VLMo that classifies."""
    folder = tmp_path_factory.mktemp("pixels")
    inputs = world(folder, [labelled(number) for number in range(12)])
    finetune(tiny("classification", "vlmo"), inputs, folder / "run")
    return folder / "run", inputs


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A ViLBERT that checks statements, on a random detector's regions of photographs."""
    folder = tmp_path_factory.mktemp("regions")
    write_photographs(folder / "images", 4)
    words = ["run", str(folder / "images"), "--output", str(folder / "regions")]
    assert extract_rois([*words, *EXTRACT, "--seed", "3"]) == 0
    rows = [statement(n, image_ids=[f"image-{n % 4}"]) for n in range(12)]
    inputs = TaskInputs(examples=write_rows(folder, rows), regions=str(folder / "regions"))
    finetune(tiny("entailment", "vilbert"), inputs, folder / "run")
    return folder / "run", ImageReader(folder / "images")["image-0"] or b""


def picture(inputs: TaskInputs) -> Image.Image:
    assert inputs.images is not None
    return Image.open(io.BytesIO(ImageReader(inputs.images)["image-3"] or b""))


def test_classes_are_those_of_the_evaluation(
    pixels: tuple[Path, TaskInputs], tmp_path: Path
) -> None:
    import json

    run, inputs = pixels
    model = vlmill.load(run)
    found = model.classify(picture(inputs), "number 1")
    alone = model.classify(picture(inputs))
    rows = [labelled(0, image_ids=["image-3"], text="number 1"), labelled(1, text=None)]
    rows[1] |= {"image_ids": ["image-3"]}
    options = EvaluationOptions(
        task="classification",
        checkpoint=run,
        examples=write_rows(tmp_path, rows),
        images=inputs.images,
        output=tmp_path / "out",
    )
    evaluate_task(options)
    lines = (tmp_path / "out" / "classification_train.jsonl").read_text().splitlines()
    for one, line in zip((found, alone), map(json.loads, lines), strict=True):
        assert one.probabilities == pytest.approx(line["probabilities"], abs=1e-5)
        assert list(one.labels) == line["predicted"] == [one.label]
    assert model.task == "classification" and model.labels == CLASSES
    with pytest.raises(InputError, match="was fine-tuned for classification"):
        model.entail(picture(inputs), "a dog")
    with pytest.raises(InputError, match="the image has no result"):
        model.classify(b"no picture")


def test_a_statement_is_checked(regions: tuple[Path, bytes]) -> None:
    run, image = regions
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the detector of checkpoint")
        model = vlmill.load(run)
        found = model.entail(image, "it has number 1")
        assert set(found.probabilities) == {"entailment", "neutral", "contradiction"}
        assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-5)
        with pytest.raises(InputError, match="has no word"):
            model.entail(image, " ")


def test_an_image_in_every_form(pixels: tuple[Path, TaskInputs], tmp_path: Path) -> None:
    run, inputs = pixels
    image = picture(inputs)
    array = np.asarray(image)
    content = io.BytesIO()
    image.save(content, "PNG")
    (tmp_path / "a.png").write_bytes(content.getvalue())
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    content.seek(0)
    model = vlmill.load(run)
    expected = model.classify(array).probabilities
    with (tmp_path / "a.png").open("rb") as file:
        forms: list[Any] = [file, content, content.getvalue(), tensor, tensor.float() / 255]
        for form in [*forms, tmp_path / "a.png", memoryview(content.getvalue())]:
            assert model.classify(form).probabilities == pytest.approx(expected, abs=1e-6)
    with pytest.warns(UserWarning, match="no bytes left"), pytest.raises(InputError):
        model.classify(content)  # read to its end above
    grey = read_image_bytes(tensor[:1])
    assert Image.open(io.BytesIO(grey)).size == image.size


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(3, 4, 4) - 1, "floats from -1 to -1; expected 0 to 1"),
        (torch.full((3, 4, 4), float("nan")), "floats from nan"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), r"tensor uint8 \[4, 4, 3\]; expected"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "tensor int64"),
        (io.StringIO("text"), "mode 'rb'"),
    ],
)
def test_tensors_and_files_that_are_no_images(image: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_image_bytes(image)


def test_a_closed_file_is_an_error_of_its_image_alone() -> None:
    closed = io.BytesIO(b"1234")
    closed.close()
    with pytest.warns(UserWarning, match="closed file"):
        assert read_image_bytes(closed) == b""


def test_squares_explain_a_model_of_pixels(pixels: tuple[Path, TaskInputs]) -> None:
    run, inputs = pixels
    model, image = vlmill.load(run), picture(inputs)
    found = model.explain(image, "number 1")
    assert found.label == model.classify(image, "number 1").label
    assert found.boxes.shape == (GRID**2, 4) and (np.diff(np.abs(found.weights)) <= 0).all()
    assert found.image.width / found.image.height == pytest.approx(image.width / image.height, 0.01)
    area = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1).sum()
    assert area == pytest.approx(image.width * image.height, rel=1e-4)


def test_regions_explain_a_class(regions: tuple[Path, bytes]) -> None:
    run, image = regions
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the detector of checkpoint")
        model = vlmill.load(run)
        found = model.explain(image, "it has number 1")
        assert found.label == model.entail(image, "it has number 1").label
        assert len(found.boxes) == len(found.weights) > 1 and np.isfinite(found.weights).all()
        with pytest.raises(InputError, match="cannot be read"):
            model.explain(b"no picture", "it has number 1")
        with pytest.raises(InputError, match="has no word"):
            model.explain(image, "")


def test_the_strongest_parts_are_seen() -> None:
    image = Image.new("RGB", (480, 480), "white")
    boxes = np.array([[0, 0, 240, 480], [240, 0, 480, 480]], dtype=np.float32)
    drawn = draw_weights(image, boxes, np.array([2.0, -0.1], dtype=np.float32))
    left, right = (np.asarray(drawn)[240, x].astype(int) for x in (120, 360))
    assert left[0] > left[2] + 50  # orange
    assert right.min() > 245  # a weak part leaves the image as it is
    assert drawn.mode == "RGB" and drawn.size == image.size


def test_the_object_shows_what_users_call(pixels: tuple[Path, TaskInputs]) -> None:
    model = vlmill.load(pixels[0])
    assert dir(model) == [
        *("answer", "classify", "device", "encode_images", "encode_texts", "entail", "explain"),
        *("ground", "labels", "score", "task", "variant"),
    ]
    text = pydoc.plain(pydoc.render_doc(model))
    assert "classify(self, image: 'ImageLike', text: 'str' = '') -> 'Classes'" in text
    assert "LoadedModel" not in text.replace("engine: 'LoadedModel'", "") and "_engine" not in text
    assert all(getattr(type(model), name).__doc__ for name in dir(model))
    assert dataclasses.is_dataclass(model.classify(picture(pixels[1])))
