"""Opens a checkpoint for raw images and texts, and predicts with the head of its task.

The functions of ``extract-rois run`` and ``train-vl evaluate`` detect the regions and predict; the
images stay in memory, so the numbers are the same.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from vlmill.extract.weights import resolve_weights
from vlmill.inference.load.detector import RegionDetector, open_recorded_detector
from vlmill.inference.load.faults import warn
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.readers.images import HeldImages
from vlmill.runtime.readers.regions import HeldRegions
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.named import DETECTOR, resolve_checkpoint
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.images.crop import DecodePixels, evaluation_image
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.vocabulary import SPECIALS, encode_texts
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.batches import TaskBatches, TaskModel, in_parts
from vlmill.train.tasks.classification.evaluation import Labelling
from vlmill.train.tasks.classification.task import Classification
from vlmill.train.tasks.evaluating.recipe import find_recipe, open_task
from vlmill.train.tasks.refcoco.metrics import Grounding
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text
from vlmill.train.tasks.task import Prediction
from vlmill.train.tasks.vqa.evaluation import Answer
from vlmill.train.tasks.vqa.task import Vqa

Floats = NDArray[np.float32]
Result = TypeVar("Result")
IMAGES_AT_ONCE = 256  # images with regions in memory: 0.4 MB each at 100 x 2048
VQA, REFCOCO, CLASSIFICATION, ENTAILMENT = "vqa", "refcoco", "classification", "entailment"
# By task: the labels of an example that has none. Prediction reads no box, but a row must have one.
NO_LABELS: dict[str, dict[str, Any]] = {
    VQA: {"label_ids": [], "label_scores": []},
    REFCOCO: {"box": [0.0, 0.0, 1.0, 1.0]},
    CLASSIFICATION: {"class_ids": [], "is_public": 0},
    ENTAILMENT: {"class_ids": [], "is_public": 0},
}


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """Holds the boxes of an image by how well an expression fits them, the best first.

    ``boxes`` are float32 [N, 4], x1, y1, x2, y2 in pixels of the upright image; ``scores`` float32
    [N] the head's logits, in descending order. N is 0 if the detector found nothing.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Holds the classes of an image: the predicted ``labels`` (one, unless the checkpoint gives
    several), and the probability of every class, the likeliest first.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @property
    def label(self) -> str:
        """Returns the likeliest class."""
        return next(iter(self.probabilities))


@dataclass(frozen=True, kw_only=True)
class TaskOutput:
    """Holds the prediction for one of some examples, with the model and the batches of all."""

    model: TaskModel
    batches: TaskBatches
    prediction: Prediction


@dataclass(frozen=True, kw_only=True)
class HeldInputs:
    """Holds images and, if a model reads them, their regions: the ``rows`` of the images in what
    the model reads, and the ``faults`` of those without one.
    """

    images: HeldImages
    regions: HeldRegions | None
    rows: dict[str, int]
    faults: dict[str, Reason]


@dataclass(kw_only=True)
class LoadedModel:
    """Holds a checkpoint on a device; ``detector`` and ``labels`` are files."""

    loaded: LoadedCheckpoint
    device: torch.device
    detector: Path | None = None
    batch_size: int = 64
    labels: Path | None = None
    decode: DecodePixels = evaluation_image
    workers: int = 0  # processes that decode images for the detector
    _warned: set[str] = field(default_factory=set)
    # By task: its head and how its examples are read, opened by the first request.
    _heads: dict[str, tuple[TaskModel, Examples]] = field(default_factory=dict)

    def open_detector(self) -> None:
        """Opens the detector of a model that reads regions, which otherwise the first image does.

        Raises InputError if its file is missing, and for a detector other than the model's.
        """
        if self.feeding.has_regions:
            _ = self._regions
        elif self.detector is not None:
            raise InputError(
                f"detector {self.detector}: {self.loaded.path} is "
                f"{with_article(self.loaded.variant)}, which reads no regions; remove detector"
            )

    def run_task(
        self,
        task: str,
        read: Callable[[TaskOutput], Result],
        requests: Sequence[tuple[bytes, str]],
    ) -> list[Result | InputError]:
        """Returns what ``read`` makes of the predictions of the head of ``task`` for texts, each
        about its image; an error replaces a failed one.

        Raises InputError for a checkpoint without the head.
        """
        if task not in self._heads:
            head = open_head(self.loaded, task, self.labels, self.device)
            self._heads[task] = head, head.task.examples("")
        (model, examples), texts = self._heads[task], [text for _, text in requests]
        tokens, worded = self.tokens(texts, model.max_tokens - model.task.form.adds)
        results = dict[int, Result | InputError]()
        faults = dict[str, Reason]()
        rows = list(range(len(texts))) if examples.takes_wordless else worded
        for block in in_parts(rows, IMAGES_AT_ONCE):
            contents = {str(row): requests[row][0] for row in block}
            held = self.hold(contents, model.stage.feeding, takes_empty=examples.takes_empty)
            faults |= held.faults
            chosen = {name: tokens[int(name)] for name in held.rows}
            samples = hold_examples(model, examples.labels, chosen, held.rows)
            batches = model.make_batches(samples, held.regions, held.images, self.decode)
            for part in in_parts(list(range(len(chosen))), self.batch_size):
                predictions, undecodable = model.predict(batches, part)
                faults |= {fault.pair_id: fault.reason for fault in undecodable}
                for prediction in predictions:
                    output = TaskOutput(model=model, batches=batches, prediction=prediction)
                    results[int(samples.pair_id(prediction.row))] = read(output)
        for row, text in enumerate(texts):
            if row not in rows:
                results[row] = InputError(f"{text!r} has no word; give a text with one")
            elif row not in results:
                why = faults[str(row)]
                results[row] = InputError(f"the image has no result: {why}; give another image")
        return [results[row] for row in range(len(texts))]

    def run_one(
        self, task: str, read: Callable[[TaskOutput], Result], image: bytes, text: str
    ) -> Result:
        """Returns the only result of :meth:`run_task`. Raises the error that replaces it."""
        (result,) = self.run_task(task, read, [(image, text)])
        if isinstance(result, InputError):
            raise result
        return result

    @cached_property
    def feeding(self) -> Feeding:
        """Returns the type of the model's inputs."""
        return find_feeding(self.loaded)

    @cached_property
    def _regions(self) -> RegionDetector:
        return open_recorded_detector(
            self.loaded, self.detector, str(self.device), workers=self.workers
        )

    def tokens(
        self, texts: Sequence[str], longest: int | None = None
    ) -> tuple[Sequence[Any], list[int]]:
        """Returns the texts' tokens, and the indices of texts with a word.

        Texts are truncated to the length of the training, or to ``longest``. Raises InputError for
        a value that is not a string.
        """
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"a text is a {type(text).__name__}; give a string")
        longest = longest_text(self.loaded, self.feeding) if longest is None else longest
        encoded_texts = encode_texts(self.loaded.tokenizer, texts, longest)
        if encoded_texts.cut and "cut" not in self._warned:
            self._warned.add("cut")
            warn(f"texts are cut at {longest} tokens, as in training")
        tokens = encoded_texts.tokens
        return tokens, [index for index, text in enumerate(tokens) if len(text) > SPECIALS]

    def hold(
        self, contents: Mapping[str, bytes], feeding: Feeding, *, takes_empty: bool = False
    ) -> HeldInputs:
        """Returns encoded images and, unless ``feeding`` reads pixels alone, the detector's
        regions. Images without a region are faults unless the model ``takes_empty``.
        """
        images = HeldImages(contents)
        if feeding.kind == "pixels":
            rows = {name: row for row, name in enumerate(contents)}
            return HeldInputs(images=images, regions=None, rows=rows, faults={})
        regions, faults = self._regions.find_regions(contents)
        rows = {name: row for row, name in enumerate(regions.index.ids())}
        if not takes_empty:
            counts = regions.box_counts()
            faults |= {name: Reason.NO_BOXES for name, row in rows.items() if not counts[row]}
        rows = {name: row for name, row in rows.items() if name not in faults}
        return HeldInputs(images=images, regions=regions, rows=rows, faults=faults)


def open_head(
    loaded: LoadedCheckpoint, task: str, labels: Path | None, device: torch.device
) -> TaskModel:
    """Opens the head of a task; ``labels`` is the file of its answers, if the checkpoint does not
    record them.

    Raises InputError for a checkpoint without the head, for one without recorded answers or
    classes, and for a model that reads annotated boxes.
    """
    recipe, labels = find_recipe(loaded, task), labels if task == VQA else None
    if loaded.task is None and labels is None and task != REFCOCO:
        raise InputError(
            f"checkpoint {loaded.path} does not record its answers, like every converted one; give "
            "labels=FILE, its answer list in its own order, one per line"
        )
    (stage,) = recipe.stages
    if stage.feeding.boxes in ("annotated", "joined"):
        raise InputError(
            f"checkpoint {loaded.path} reads annotated boxes, which raw images do not have; use "
            "`train-vl evaluate`"
        )
    feeding = dataclasses.replace(stage.feeding, boxes="detected")
    recipe = dataclasses.replace(recipe, stages=(dataclasses.replace(stage, feeding=feeding),))
    head = open_task(recipe, loaded, None, labels)
    return TaskModel(device=device, loaded=loaded, recipe=recipe, task=head)


def hold_examples(
    model: TaskModel,
    labels: pa.Schema,
    tokens: Mapping[str, Ids],
    image_rows: Mapping[str, int],
) -> SampleTable:
    """Returns texts, given by their tokens, as prepared examples without ``labels``, each about the
    image of its name, which is in row ``image_rows`` of what the model reads.
    """
    form, no_labels = model.task.form, NO_LABELS[model.recipe.task]
    pairs = [
        (
            {"pair_id": name, "image_id": name, **no_labels},
            form.apply(ids.tolist()),
            image_rows[name],
            0,
        )
        for name, ids in tokens.items()
    ]
    return SampleTable.from_pairs(pairs, labels)


def read_answer(output: TaskOutput) -> str:
    """Returns the most likely answer to a question."""
    assert isinstance(output.model.task, Vqa)
    answer: Answer = output.prediction.value
    return output.model.task.names[answer.index]


def read_boxes(output: TaskOutput) -> Grounded:
    """Returns the boxes of an image, ranked by how well an expression fits them."""
    value: Grounding = output.prediction.value
    order = np.argsort(-value.scores, kind="stable")
    return Grounded(
        boxes=value.candidates[order].astype(np.float32),
        scores=value.scores[order].astype(np.float32),
    )


def read_classes(output: TaskOutput) -> Classes:
    """Returns the classes of an image with a text."""
    task, scores = output.model.task, output.prediction.value
    assert isinstance(task, Classification)
    labelling = Labelling(task=task.name, names=task.names, settings=task.settings)
    order = np.argsort(-scores, kind="stable")
    return Classes(
        labels=tuple(labelling.predict(scores)),
        probabilities={task.names[number]: float(scores[number]) for number in order},
    )


def load_pretrained(
    checkpoint: str | Path,
    detector: str | Path | None,
    labels: str | Path | None,
    device: str,
    batch_size: int,
    *,
    trust: bool | None = None,
    decode: DecodePixels = evaluation_image,
    workers: int = 0,
) -> LoadedModel:
    """Loads a checkpoint from a folder or the hub onto a device.

    A detector in its folder is used. ``trust`` is that of :func:`load_checkpoint`. ``decode`` and
    ``workers`` set the processes that decode images: services use separate ones. Raises InputError
    for an unusable checkpoint.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    loaded = load_checkpoint(resolve_checkpoint(checkpoint, warn=warn), "checkpoint", trust=trust)
    if detector is None and (loaded.path / DETECTOR).is_file():
        detector = loaded.path / DETECTOR
    on_device = device_named(device)
    loaded.model.to(on_device)
    model = LoadedModel(
        loaded=loaded,
        device=on_device,
        detector=None if detector is None else resolve_weights(detector, flag="detector").weights,
        batch_size=batch_size,
        labels=None if labels is None else to_path(labels),
        decode=decode,
        workers=workers,
    )
    if detector is not None:
        model.open_detector()
    return model
