"""A task is this to the code that fine-tunes and evaluates: what it reads, learns and reports."""

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
from vlmill.train.loading.random import Uniforms, permutation
from vlmill.train.loading.sample import Sample, SampledRegions
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.prepare import AS_IT_IS, TextForm
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.loading.visited_pairs import StagePairs
from vlmill.train.objectives.cached_contrast import StepContrast
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import Figures


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model says of an example: ``value`` is the task's, of the table's row ``row``."""

    row: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What an evaluation has to tell.

    ``figures`` are metrics by name, and ``headline`` those that the papers print. ``files`` write
    what servers take into a folder; InputError of one is a note. ``cases`` are examples with their
    scores. ``published`` are the papers' metrics, in the rows of the task ``papers`` (none: the
    one that is evaluated). ``lacking`` says why a headline figure is None, where that is not for
    want of public labels.
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
    """Where a task's samples come from: `vlmill.train.tasks.batches.TaskBatches`."""

    @property
    def table(self) -> SampleTable:
        """The prepared examples."""
        ...

    @property
    def pairs(self) -> StagePairs:
        """The stage's examples, to draw others from."""
        ...

    @property
    def training(self) -> bool:
        """Whether a step learns from them, or they are measured."""
        ...

    def text(self, row: int) -> MaskedTokens:
        """The text of a row, nothing masked."""
        ...

    def example(
        self,
        row: int,
        draws: Uniforms,
        text: MaskedTokens | None = None,
        *,
        second: bool = False,
    ) -> Sample | Undecodable:
        """A row's text, or another one, with its image, or its ``second`` one."""
        ...


def without_features(regions: SampledRegions) -> SampledRegions:
    """An image whose boxes are shown, and nothing of what is in them."""
    count = len(regions.boxes)
    masks = MaskedRegions(
        masked=np.zeros(count, dtype=np.bool_), zeroed=np.ones(count, dtype=np.bool_)
    )
    return dataclasses.replace(regions, masks=masks)


def require_kind(recipe: TaskRecipe, *, from_pixels: bool) -> None:
    """Raises InputError for stored features beside a model that makes its own of pixels, and for
    images beside one that does not.
    """
    (stage,) = recipe.stages
    kind = "picture-regions" if from_pixels else "regions"
    if stage.feeding.kind != kind:
        raise InputError(
            f"feeding.kind={stage.feeding.kind}: {with_article(recipe.variant)} reads {kind}; "
            "take the recipe "
            f"{'on stored features' if from_pixels else 'from pixels (end-to-end)'} instead"
        )


def require_variant(recipe: TaskRecipe) -> None:
    """Raises InputError for a custom recipe's model that has no head for the task, or that reads a
    token of its task, which only NLVR2 feeds.
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
    """A task with its model's head, as it is learnt, and followed while it is.

    It is sent to the processes that load batches.
    """

    name: str
    losses: tuple[str, ...]  # the names of its losses, in the order in which they are counted
    criterion: Criterion  # what the best checkpoint is best at
    # Of a task whose outputs are vectors [B, 2, H] and whose one loss is their contrast.
    contrast: StepContrast | None = None
    weighs_regions: bool = True  # whether a report can say which regions an answer rests on

    # What it reads.

    @property
    def form(self) -> TextForm:
        """What becomes of its texts' tokens."""
        return AS_IT_IS

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """The task of a model that reads this vocabulary."""
        return self

    @property
    def negatives(self) -> str:
        """What is drawn from the table that ``--negatives`` names, and what to do without it;
        empty: nothing.
        """
        return ""

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of the model's configuration that the data decide."""
        return {}

    def label_pieces(self, words: Tokenizer) -> list[list[int]]:
        """The word pieces of what the head tells apart, for a head that starts from words."""
        return []

    @abstractmethod
    def examples(self, path: str) -> Examples:
        """How the table of examples at ``path`` is read, and which labels come with a row."""

    @property
    @abstractmethod
    def record(self) -> TaskRecord:
        """What its checkpoints say of it."""

    def in_turns(self, table: SampleTable, rows: Ids) -> Sequence[Ids]:
        """Returns the stage's rows in the groups that optimiser steps take turns at; one, unless a
        task says otherwise.
        """
        return (rows,)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """The samples of an example; its text with its image, unless a task says otherwise."""
        sample = batches.example(visit.row, draws)
        return sample if isinstance(sample, Undecodable) else (sample,)

    def hide_regions(self, regions: SampledRegions) -> SampledRegions:
        """What a blind model is shown of an image: that there is one, not even how many regions
        it has.
        """
        return dataclasses.replace(without_features(regions), num_shown=0)

    def read_boxes(self, table: SampleTable, row: int) -> Array:
        """The boxes [R, 4] that an example itself names, in pixels (``feeding.boxes=examples``).

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
        """The tensors that a batch of samples gets beside their texts and images, on the host.

        Those whose names begin with `batch.LABEL` are in `Batch.labels` under the rest of it.
        """

    # What it learns.

    @abstractmethod
    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """How many labels the batch has of each of ``losses``."""

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """What the model's heads give for the batch, a tensor or a tuple with names of them: that
        alone is learnt from, and read.
        """

    @abstractmethod
    def compute(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Each of ``losses`` as a mean over its labels in the batch."""

    # How it is followed.

    def held_out(self, table: SampleTable, rows: Ids, max_rows: int) -> list[int]:
        """The rows that are measured, at most so many: the same every time."""
        chosen: list[int] = np.sort(rows[permutation(0, len(rows))[:max_rows]]).tolist()
        return chosen

    def validation_batch_size(self, table: SampleTable, rows: Sequence[int], size: int) -> int:
        """How many of the ``rows`` are measured at once, where a step learns from ``size``."""
        return size

    @abstractmethod
    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the model says of each example of the batch, as plain values.

        Raises InputError for scores that are not finite.
        """

    @abstractmethod
    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """The metrics by which training is followed, ``criterion`` among them."""


class Task(LearntTask):
    """A task whose examples are predicted one by one, which ``train-vl evaluate`` then scores."""

    @abstractmethod
    def compute_score(self, outputs: Any, value: Any) -> float:
        """How much the head says for a prediction of the only example of a batch."""

    @abstractmethod
    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """The official metrics of each split of ``examples``; where labels are not public, None."""
