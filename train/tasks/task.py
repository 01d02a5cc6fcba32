"""Defines a task's interface for training and evaluation: inputs, losses, reports."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import MODELS, get_variant
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import TaskRecord
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.order import Visit
from vlmill.train.loading.pairing import StagePairs
from vlmill.train.loading.random import Uniforms, permutation
from vlmill.train.loading.sample import Sample, SampledRegions
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.prepare import AS_IT_IS, TextForm
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.cached_contrast import StepContrast
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import Figures


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Holds the prediction for an example: ``value`` is the task's, ``row`` is in the table."""

    row: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Holds the results of an evaluation.

    ``figures`` are metrics by name, and ``headline`` names the ones that the papers print.
    ``files`` write the files that servers take into a folder; InputError of one is a note.
    ``cases`` are examples with their scores. ``published`` are the papers' metrics, in the rows of
    the task ``papers`` (empty: the evaluated one). ``lacking`` is the reason why a headline metric
    is None, unless public labels are missing.
    """

    figures: Figures
    headline: Sequence[str]
    lacking: Mapping[str, str] = field(default_factory=dict)
    published: Sequence[str] = ()
    papers: str = ""
    files: Sequence[Callable[[Path], object]] = ()
    cases: Sequence[Case] = ()
    notes: Sequence[str] = ()


class SampleSource(Protocol):
    """Provides a task's samples: `vlmill.train.tasks.batches.TaskBatches`."""

    @property
    def table(self) -> SampleTable:
        """Returns the prepared examples."""
        ...

    @property
    def pairs(self) -> StagePairs:
        """Returns the stage's examples, to sample others from."""
        ...

    @property
    def training(self) -> bool:
        """Returns whether a step learns from the samples, or they are measured."""
        ...

    def text(self, row: int) -> MaskedTokens:
        """Returns the unmasked text of a row."""
        ...

    def example(
        self,
        row: int,
        draws: Uniforms,
        text: MaskedTokens | None = None,
        *,
        second: bool = False,
    ) -> Sample | Undecodable:
        """Returns a row's text, or the given one, with the row's image, or its ``second`` image."""
        ...


def without_features(regions: SampledRegions) -> SampledRegions:
    """Returns an image whose boxes are shown, without the content of the boxes."""
    count = len(regions.boxes)
    masks = MaskedRegions(
        masked=np.zeros(count, dtype=np.bool_), zeroed=np.ones(count, dtype=np.bool_)
    )
    return dataclasses.replace(regions, masks=masks)


def require_kind(recipe: TaskRecipe, *, from_pixels: bool) -> None:
    """Raises InputError for stored features if the model computes its features from pixels, and for
    images if it does not.
    """
    (stage,) = recipe.stages
    kind = "picture-regions" if from_pixels else "regions"
    if stage.feeding.kind != kind:
        raise InputError(
            f"feeding.kind={stage.feeding.kind}: {with_article(recipe.variant)} reads "
            f"{kind}; use the recipe "
            f"{'on stored features' if from_pixels else 'from pixels (end-to-end)'} instead"
        )


def require_variant(recipe: TaskRecipe) -> None:
    """Raises InputError for a custom recipe's model that has no head for the task, or that reads a
    task token, which only NLVR2 feeds.
    """
    variants = [name for name, variant in MODELS.items() if recipe.task in variant.heads]
    if recipe.variant not in variants:
        raise InputError(
            f"variant={recipe.variant}: it has no head for {recipe.task}; expected one of "
            f"{', '.join(variants)}"
        )
    num_tasks = getattr(get_variant(recipe.variant).get_body(recipe.model), "num_tasks", 0)
    if num_tasks and recipe.task != "nlvr2":
        raise InputError(
            f"model: num_tasks={num_tasks}, but {recipe.task} feeds no task token; use a model "
            "with num_tasks=0"
        )


class LearntTask(ABC):
    """Defines a task with its model's head, and how it is trained and validated.

    It is sent to the processes that load batches.
    """

    name: str
    losses: tuple[str, ...]  # the names of its losses, in their order in counts
    criterion: Criterion  # the metric that selects the best checkpoint
    # Of a task whose outputs are vectors [B, 2, H] and whose only loss is their contrast.
    contrast: StepContrast | None = None
    weighs_regions: bool = True  # whether a report can show the regions that an answer rests on

    # Inputs

    @property
    def form(self) -> TextForm:
        """Returns how the tokens of its texts are prepared."""
        return AS_IT_IS

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns the task of a model that reads this vocabulary."""
        return self

    @property
    def negatives(self) -> str:
        """Describes the negatives sampled from the table of ``--negatives``, and how to do without
        it; empty: none.
        """
        return ""

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the fields of the model's configuration that the data decide."""
        return {}

    def label_pieces(self, words: Tokenizer) -> list[list[int]]:
        """Returns the word-piece ids of the head's classes, for a head that starts from words."""
        return []

    @abstractmethod
    def examples(self, path: str) -> Examples:
        """Returns how the examples at ``path`` are read, and which labels come with a row."""

    @property
    @abstractmethod
    def record(self) -> TaskRecord:
        """Returns the task's record in its checkpoints."""

    def in_turns(self, table: SampleTable, rows: Ids) -> Sequence[Ids]:
        """Returns the stage's rows in groups among which optimiser steps alternate; by default
        one.
        """
        return (rows,)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the samples of an example; by default its text with its image."""
        sample = batches.example(visit.row, draws)
        return sample if isinstance(sample, Undecodable) else (sample,)

    def hide_regions(self, regions: SampledRegions) -> SampledRegions:
        """Returns the regions that a blind model is shown, without their content and number."""
        return dataclasses.replace(without_features(regions), num_shown=0)

    def read_boxes(self, table: SampleTable, row: int) -> Array:
        """Returns the boxes [R, 4] that an example itself names, in pixels
        (``feeding.boxes=examples``).

        Raises InputError where the task's examples name none.
        """
        raise InputError(
            f"feeding.boxes=examples: an example of {self.name} names no boxes to be fed; set it "
            "to detected, annotated or joined"
        )

    @abstractmethod
    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns the tensors that a batch has in addition to its texts and images, on the host.

        Tensors whose names begin with `batch.LABEL` are in `Batch.labels` under the rest of the
        name.
        """

    # Losses

    @abstractmethod
    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns how many labels the batch has of each of ``losses``."""

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Returns the outputs of the model's heads for the batch, a tensor or a named tuple of
        tensors. Losses and predictions use only these.
        """

    @abstractmethod
    def compute(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Returns each of ``losses`` as a mean over its labels in the batch."""

    # Validation

    def held_out(self, table: SampleTable, rows: Ids, max_rows: int) -> list[int]:
        """Returns the rows that are measured, at most ``max_rows``: the same every time."""
        chosen: list[int] = np.sort(rows[permutation(0, len(rows))[:max_rows]]).tolist()
        return chosen

    def validation_batch_size(self, table: SampleTable, rows: Sequence[int], size: int) -> int:
        """Returns how many of the ``rows`` a batch measures, where a step learns from ``size``."""
        return size

    @abstractmethod
    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """Returns the model's predictions for the examples of the batch, as plain values.

        Raises InputError for scores that are not finite.
        """

    @abstractmethod
    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the metrics that are reported during training, ``criterion`` among them."""


class Task(LearntTask):
    """Defines a task whose examples are predicted one by one; ``train-vl evaluate`` scores them."""

    @abstractmethod
    def compute_score(self, outputs: Any, value: Any) -> float:
        """Returns the head's score of a prediction for the only example of a batch."""

    @abstractmethod
    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the official metrics of each split of ``examples``; None without public
        labels.
        """
