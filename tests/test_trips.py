"""Counts what a reader has to follow: the files and functions of vlmill on six trips of data.

``python -m tests.test_trips`` prints the counts. Functions are those with a name (no lambdas, no
comprehensions) that are called after everything has been imported and once been run. A return is a
step, in the order of the first calls, to a file that the trip had left before.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from accelerate import Accelerator
from tests.factories import Tables, write_photographs
from tests.train.tasks.questions import tiny, world
from worlds.web import Web, write_archives

import vlmill
from vlmill.extract.cli import command as extract_rois
from vlmill.inference.load.public import Pretrained
from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.pipelines.hard_negatives.__main__ import main as hard_negatives
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.archives import find_archives
from vlmill.pipelines.web_pairs.job import with_mined
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.pipelines.web_pairs.units import Job, prepare_work
from vlmill.runtime.readers.images import ImageReader
from vlmill.train.recipes import Recipe, Stage
from vlmill.train.run import loop
from vlmill.train.run.job import pretrain
from vlmill.train.settings.parts import Optimizer
from vlmill.train.tasks.finetuning.job import finetune

ROOT = Path(__file__).parents[1]
FOLDERS = ("schemas", "runtime", "models", "extract", "train", "inference", "pipelines")
SOURCES = tuple(f"{folder}/{name}/" for folder in (ROOT, ROOT / "src/vlmill") for name in FOLDERS)


class Trip:
    """Records the functions of this thread in the order of their first calls."""

    def __init__(self) -> None:
        self.files = dict[CodeType, str]()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Records while the block runs."""
        sys.setprofile(self.record)
        try:
            yield
        finally:
            sys.setprofile(None)

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call; a profile function."""
        code = frame.f_code
        is_named = not code.co_name.startswith("<")
        if event == "call" and is_named and code.co_filename.startswith(SOURCES):
            self.files.setdefault(code, code.co_filename)

    def counts(self) -> tuple[int, int, int]:
        """Returns the numbers of files, functions and returns."""
        left, last, returns = set[str](), "", 0
        for file in self.files.values():
            returns += file != last and file in left
            left.add(file)
            last = file
        return len(left), len(self.files), returns


def second_of(run: Callable[[Path], object], folder: Path) -> Trip:
    """The trip of the second of two runs, in which nothing is imported or measured any more."""
    trip = Trip()
    run(folder / "first")
    with trip.recorded():
        run(folder / "second")
    return trip


def page_to_pair(folder: Path) -> Trip:
    """The steps of ``web_pairs`` over an archive of one page with images."""
    (archive,) = write_archives(folder / "web", Web(pages=1, images=True), 1)
    archives = tuple(with_mined(find_archives(str(archive)), ()))

    def run(output: Path) -> None:
        job = Job(output=str(output), archives=archives, shards=1, rules=WebPairRules())
        prepare_work(job)
        for step in STEPS:
            for unit in step.units(job):
                step.run(job, unit)

    return second_of(run, folder)


def caption_to_hard_negatives(folder: Path) -> Trip:
    flags = ["--pairs", str(Tables(folder).write().pairs), "--workers", "1"]
    return second_of(lambda output: hard_negatives([*flags, "--output", str(output)]), folder)


def image_to_region_row(folder: Path) -> Trip:
    flags = ["run", write_photographs(folder / "images", 1), "--arch", "tiny", "--workers", "0"]
    return second_of(lambda output: extract_rois([*flags, "--output", str(output)]), folder)


def region_row_to_loss(folder: Path) -> Trip:
    """From the request for the second batch to the backward pass."""
    trip, next_parts, backward = Trip(), loop.next_parts, Accelerator.backward

    def started(step: int, *rest: Any) -> Any:
        sys.setprofile(trip.record if step == 2 else None)
        return next_parts(step, *rest)

    def ended(self: Accelerator, *rest: Any) -> None:
        sys.setprofile(None)
        backward(self, *rest)

    sizes: dict[str, Any] = {"width": 16, "num_layers": 2, "num_heads": 2, "intermediate_width": 32}
    recipe = Recipe(
        name="tiny",
        variant="imagebert",
        model=ImageBertConfig(**sizes, num_region_classes=7),
        stages=(Stage(name="pairs", steps=2, batch_size=4, optimizer=Optimizer(lr=1e-3)),),
        vocabulary_size=90,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "next_parts", started)
        patch.setattr(Accelerator, "backward", ended)
        pretrain(recipe, Tables(folder).write(), folder / "run")
    return trip


QUESTION = "what is left of number 1?"


def fine_tuned_vlmo(folder: Path) -> tuple[Callable[[], Pretrained], bytes | None]:
    """Returns what loads a checkpoint of VLMo for VQA, and an image."""
    inputs = world(folder)
    finetune(tiny("vqa-vlmo-small"), inputs, folder / "run")
    return partial(vlmill.load, folder / "run"), ImageReader(str(inputs.images))["image-3"]


def checkpoint_to_answer(folder: Path) -> Trip:
    """From the folder of a checkpoint of VLMo, an image and a question."""
    load, image = fine_tuned_vlmo(folder)
    return second_of(lambda _: load().answer(image, QUESTION), folder)


def question_to_answer(folder: Path) -> Trip:
    """From an image and a question to a model that has been loaded."""
    load, image = fine_tuned_vlmo(folder)
    model = load()
    return second_of(lambda _: model.answer(image, QUESTION), folder)


# The most files, functions and returns, a few more than there are; who needs more says why.
MOST: dict[Callable[[Path], Trip], tuple[int, int, int]] = {
    page_to_pair: (76, 470, 180),
    caption_to_hard_negatives: (50, 250, 100),
    image_to_region_row: (77, 405, 144),
    region_row_to_loss: (32, 158, 48),
    checkpoint_to_answer: (63, 262, 90),
    question_to_answer: (35, 146, 45),
}


@pytest.mark.nightly
@pytest.mark.parametrize("trip", MOST, ids=lambda trip: trip.__name__)
def test_trips_do_not_grow(trip: Callable[[Path], Trip], tmp_path: Path) -> None:
    counts = trip(tmp_path).counts()
    assert all(count <= most for count, most in zip(counts, MOST[trip], strict=True)), counts


def main() -> None:
    """Prints the counts of each trip."""
    for trip in MOST:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            files, functions, returns = trip(Path(folder)).counts()
        print(f"{trip.__name__}: {files} files, {functions} functions, {returns} returns")


if __name__ == "__main__":
    main()
