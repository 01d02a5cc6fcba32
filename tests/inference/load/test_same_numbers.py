"""``vlmill.load`` and ``train-vl evaluate`` give a question about an image the same numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.factories import write_photographs
from tests.train.tasks import expressions, from_pixels, labels, questions

import vlmill
from vlmill.extract.cli import command as extract_rois
from vlmill.inference.load.model import TaskOutput, read_answer, read_boxes, read_classes
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.tables import REJECTS
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.batches import TaskBatches, TaskModel
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions, open_evaluation
from vlmill.train.tasks.evaluating.job import prepare_batches
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune

EXTRACT = ("--arch", "tiny", "--short-side", "48", "--long-side", "80", "--max-boxes", "7")
TEXTS = ("what is left of it?", "the dog", "a very long text about number 1 and number 2", "a cat?")
READERS: dict[str, tuple[str, Callable[[TaskOutput], Any]]] = {
    "vqa": ("answer", read_answer),
    "refcoco": ("ground", read_boxes),
    "classification": ("classify", read_classes),
    "entailment": ("entail", read_classes),
}


def write_examples(folder: Path, task: str) -> str:
    """A text about each of four images, and more to train on."""
    of_image = [f"image-{number % 4}" for number in range(12)]
    texts = [TEXTS[number % 4] for number in range(12)]
    if task == "vqa":
        rows = [
            questions.question(n, image_id=image, question=text)
            for n, (image, text) in enumerate(zip(of_image, texts, strict=True))
        ]
        return questions.write_questions(folder, rows)
    if task == "refcoco":
        rows = [
            expressions.expression(n, image_id=image, text=text, box=[2.0, 3.0, 30.0, 40.0])
            for n, (image, text) in enumerate(zip(of_image, texts, strict=True))
        ]
        return expressions.write_expressions(folder, rows)
    make, name = (
        (labels.labelled, "text") if task == "classification" else (labels.statement, "text_a")
    )
    rows = [
        make(n, image_ids=[image], **{name: text})
        for n, (image, text) in enumerate(zip(of_image, texts, strict=True))
    ]
    return labels.write_rows(folder, rows)


CASES: dict[str, Callable[[], TaskRecipe]] = {
    "vqa-vilbert": lambda: questions.tiny("vqa-vilbert-small", "steps=2"),
    "vqa-vl-bert": lambda: questions.tiny("vqa-vl-bert-small", "steps=2"),
    "vqa-vlmo": lambda: questions.tiny("vqa-vlmo-small", "steps=2"),
    "refcoco-vilbert": lambda: expressions.tiny("refcoco-vilbert-small", "steps=2"),
    "refcoco-vl-bert": lambda: expressions.tiny("refcoco-vl-bert-small", "steps=2"),
    "refcoco-vl-bert-end-to-end": lambda: from_pixels.tiny("refcoco", "steps=2"),
    "classification-vlmo": lambda: labels.tiny("classification", "vlmo"),
    "classification-interbert": lambda: labels.tiny("classification", "interbert"),
    "entailment-imagebert": lambda: labels.tiny("entailment", "imagebert"),
    "entailment-vl-bert": lambda: labels.tiny("entailment", "vl-bert"),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> TaskInputs:
    """Four images, and their regions by a random detector."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder / "images", 4)
    words = ["run", str(folder / "images"), "--output", str(folder / "regions")]
    assert extract_rois([*words, *EXTRACT, "--seed", "3"]) == 0
    regions = str(folder / "regions")
    return TaskInputs(
        examples="", images=str(folder / "images"), regions=regions, annotated_regions=regions
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the detector of checkpoint|texts are cut")
        yield


def outputs(model: TaskModel, batches: TaskBatches, rows: list[int]) -> torch.Tensor:
    """The outputs of the head for some rows."""
    host, _ = batches.make_batch(rows)
    assert host is not None
    batch = host.to(model.device)
    with torch.no_grad():
        values: torch.Tensor = model.task.outputs(model.loaded.model, batch)
    return values


def plain(value: Any) -> Any:
    """A result whose arrays can be compared."""
    return value if isinstance(value, str) else vars(value)


@pytest.mark.parametrize("case", CASES)
def test_every_task_gives_the_bits_of_its_evaluation(
    case: str, photographs: TaskInputs, tmp_path: Path
) -> None:
    recipe = CASES[case]()
    method, read = READERS[recipe.task]
    examples = write_examples(tmp_path, recipe.task)
    tables: dict[str, Any] = {"images": photographs.images, "regions": photographs.regions}
    annotated = photographs.annotated_regions if recipe.task == "refcoco" else None
    run = tmp_path / "run"
    finetune(recipe, TaskInputs(examples=examples, annotated_regions=annotated, **tables), run)
    options = EvaluationOptions(
        task=recipe.task, checkpoint=run, examples=examples, output=tmp_path / "out", **tables
    )
    setup = open_evaluation(options)
    with ShardWriter(tmp_path / "out", REJECTS, 0, 1) as rejects:
        evaluated = prepare_batches(setup, tmp_path / "work", rejects)
    rows = list(range(len(TEXTS)))

    model, reader = vlmill.load(run), ImageReader(str(photographs.images))
    contents = [reader[f"image-{row}"] or b"" for row in rows]
    requests: Any = list(zip(contents, TEXTS, strict=True))
    held: Any = model._engine.run_task(recipe.task, lambda output: output, requests)
    answered = outputs(held[0].model, held[0].batches, rows)
    assert torch.equal(answered, outputs(setup, evaluated, rows)) and answered.isfinite().any()

    for row, (content, text) in enumerate(requests):  # a batch of one, as the public methods have
        (prediction,), _ = setup.predict(evaluated, [row])
        expected = read(TaskOutput(model=setup, batches=evaluated, prediction=prediction))
        image: Any = Image.open(io.BytesIO(content)) if row % 2 else content
        np.testing.assert_equal(plain(getattr(model, method)(image, text)), plain(expected))
