"""``ground``: one expression about one raw image gets what the evaluation says of it."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.factories import write_photographs
from tests.train.tasks.expressions import tiny, write_expressions

import vlmill
from vlmill.extract.cli import command as extract_rois
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import EXPRESSIONS, REJECTS
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions, open_evaluation
from vlmill.train.tasks.evaluating.job import predict_all, prepare_batches
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune

EXTRACT = ("--arch", "tiny", "--short-side", "48", "--long-side", "80", "--max-boxes", "7")
EXPRESSION = "the dog on the left"


def rows_of(text: str) -> list[dict[str, Any]]:
    """An expression for each of four images."""
    return [
        dict.fromkeys(EXPRESSIONS.schema.names)
        | {"expression_id": str(at), "image_id": f"image-{at}", "text": text, "split": "train"}
        | {"box": [2.0, 3.0, 30.0, 40.0], "source": "refcoco+"}
        for at in range(4)
    ]


@pytest.fixture(scope="module", params=["vilbert", "vl-bert"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TaskInputs]:
    """A run on a random detector's regions of four photographs, and what it has read."""
    folder = tmp_path_factory.mktemp(request.param)
    write_photographs(folder / "images", 4)
    words = ["run", str(folder / "images"), "--output", str(folder / "regions")]
    assert extract_rois([*words, *EXTRACT, "--seed", "3"]) == 0
    inputs = TaskInputs(
        examples=write_expressions(folder, rows_of(EXPRESSION)),
        regions=str(folder / "regions"),
        annotated_regions=str(folder / "regions"),
        images=str(folder / "images"),
    )
    finetune(tiny(f"refcoco-{request.param}-small", "steps=2"), inputs, folder / "run")
    return folder / "run", inputs


def evaluated(run: Path, inputs: TaskInputs, folder: Path) -> Any:
    """What ``train-vl evaluate refcoco`` makes of the expressions, in their order."""
    options = EvaluationOptions(
        task="refcoco",
        checkpoint=run,
        examples=inputs.examples,
        regions=inputs.regions,
        output=folder,
    )
    opened = open_evaluation(options)
    with ShardWriter(folder, REJECTS, 0, 1) as rejects:
        batches = prepare_batches(opened, folder / "work", rejects)
    return [one.value for one in predict_all(opened, batches)[0]]


def test_boxes_are_those_of_the_evaluation(
    trained: tuple[Path, TaskInputs], tmp_path: Path
) -> None:
    run, inputs = trained
    assert inputs.images is not None
    model, reader = vlmill.load(run), ImageReader(inputs.images)
    for at, expected in enumerate(evaluated(run, inputs, tmp_path)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the detector of checkpoint")
            found = model.ground(reader[f"image-{at}"], EXPRESSION)
        order = np.argsort(-expected.scores, kind="stable")
        assert len(found.boxes) == len(order) > 1 and found.boxes.dtype == np.float32
        assert (np.diff(found.scores) <= 0).all()
        np.testing.assert_allclose(found.scores, expected.scores[order], atol=1e-4)
        np.testing.assert_allclose(found.boxes[0], expected.candidates[order[0]], atol=1e-3)
        assert (found.boxes[:, 2:] <= [64, 48]).all()


def test_what_cannot_be_grounded_is_refused(trained: tuple[Path, TaskInputs]) -> None:
    model = vlmill.load(trained[0])
    image: Any = Image.new("RGB", (64, 48))
    with pytest.raises(InputError, match="has no word"):
        model.ground(image, " ")
    with (
        pytest.warns(UserWarning, match="random weights"),
        pytest.raises(InputError, match="the image has no result: unsupported_format"),
    ):
        model.ground(b"no picture", EXPRESSION)
    with pytest.raises(InputError, match="fine-tuned for refcoco"):
        model.answer(image, "what is it?")
    with pytest.raises(InputError, match="a text is a list; give a string"):
        model.ground(image, [EXPRESSION])  # type: ignore[arg-type]


def test_a_long_expression_is_cut_and_said_once(trained: tuple[Path, TaskInputs]) -> None:
    model = vlmill.load(trained[0])
    engine = model._engine
    assert engine.loaded.feeding is not None
    feeding = dataclasses.replace(engine.loaded.feeding, max_tokens=6)
    engine.loaded = dataclasses.replace(engine.loaded, feeding=feeding)
    long, image = "the dog on the left of the dog " * 4, Image.new("RGB", (64, 48), "red")
    with pytest.warns(UserWarning, match="texts are cut at 6 tokens"):
        first = model.ground(image, long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = model.ground(image, f"{long} on the right")
    np.testing.assert_array_equal(first.scores, second.scores)
