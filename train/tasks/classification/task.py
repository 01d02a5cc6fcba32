"""Classification: the classes of an image, of an image with a text, or of a statement about one.

Input: the text, which may be empty, with its image (VL-BERT: the text is followed by a [MASK]).
Head: that of the variant's row, with one output for each class of the rows to train on. Loss: the
cross-entropy of a softmax if each example has one class, else the mean over the classes of their
binary cross-entropies. Metrics: ``metrics``.

B examples, C classes, N labels of a batch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vlmill.runtime.console.command import print_status
from vlmill.runtime.settings.plain_fields import from_plain, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import read_labels
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.store.pairs import Examples, no_fault
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.objectives.losses import IGNORED
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.classification.evaluation import Labelling, evaluate_rows, row_figures
from vlmill.train.tasks.classification.examples import (
    PREPARED,
    ClassCounts,
    ExampleTable,
    count_classes,
    pairs_of_batch,
)
from vlmill.train.tasks.classification.settings import ClassificationSettings
from vlmill.train.tasks.heads import HeadTask, ragged_tensors
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import EvaluationResult, Prediction, require_variant


@dataclass(kw_only=True)
class Classification(HeadTask):
    """Fine-tunes a variant to predict the classes ``names`` of a table's examples.

    ``settings.kind`` is "single" or "multi". ``weights`` are the classes', empty: all 1. Of several
    classes an example they weight its positive labels.
    """

    name: str
    table: ExampleTable
    settings: ClassificationSettings
    weights: tuple[float, ...] = ()

    losses = ("labels",)

    def __post_init__(self) -> None:
        self.criterion = Criterion(name=self.settings.selected_figure, highest=True)

    @property
    def is_multi(self) -> bool:
        """Returns whether an example may have several classes, or none."""
        return self.settings.kind == "multi"

    # Input

    def examples(self, path: str) -> Examples:
        """Reads the table's examples; only labels that are classes of the head count."""
        return Examples(
            path=path,
            table=self.table.table,
            as_pairs=partial(pairs_of_batch, self.table, self.numbers),
            labels=PREPARED,
            takes_wordless=not self.table.needs_text,
            find_fault=no_fault if self.is_multi else reject_reason,
        )

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Returns the number of each class."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the classes' names in the order of the head's outputs."""
        settings = to_plain(self.settings)
        return TaskRecord(name=self.name, labels=self.names, settings=settings)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns each label's row in the batch and its class, and which rows teach: those with
        public labels, and of a single class only those whose class the head has.
        """
        ids = [table.value("class_ids", sample.row) for sample in samples]
        public = [bool(table.value("is_public", sample.row)) for sample in samples]
        teaches = [p and (self.is_multi or bool(i)) for p, i in zip(public, ids, strict=True)]
        return {
            **ragged_tensors(ids),
            f"{LABEL}teaches": torch.tensor(teaches),
            **self.mask_tensors(samples),
        }

    # Loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of examples that teach something."""
        return {"labels": int(batch.tensors[f"{LABEL}teaches"].sum())}

    def compute(self, outputs: Float[Tensor, "B C"], batch: Batch) -> dict[str, Tensor]:
        """Returns the loss as a mean over the examples that teach something."""
        logits, labels = outputs.float(), batch.labels
        weights = logits.new_tensor(self.weights or [1.0] * len(self.names))
        targets = torch.zeros_like(logits).index_put(
            (labels["rows"], labels["ids"]), logits.new_ones(())
        )
        smoothing = self.settings.label_smoothing
        if self.settings.uses_softmax:
            classes = torch.where(labels["teaches"], targets.argmax(-1), IGNORED)
            losses = F.cross_entropy(
                logits, classes, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing
            )
            losses = losses * weights[classes.clamp(min=0)]
        else:
            smooth = targets * (1 - smoothing) + smoothing / 2
            losses = F.binary_cross_entropy_with_logits(
                logits, smooth, reduction="none", pos_weight=weights
            ).mean(-1)
        teaches = labels["teaches"].to(losses.dtype)
        return {"labels": (losses * teaches).sum() / teaches.sum().clamp(min=1)}

    # Metrics

    def predict(self, outputs: Float[Tensor, "B C"], batch: Batch) -> list[Any]:
        """Returns the probability of each class, float32 [C]: they sum to 1 unless an example may
        have several.
        """
        logits = outputs.float().cpu()
        require_finite(dict(zip(batch.pair_ids, logits.numpy(), strict=True)), "--checkpoint")
        values = logits.softmax(-1) if self.settings.uses_softmax else logits.sigmoid()
        return list(values.numpy())

    def compute_score(self, outputs: Float[Tensor, "B C"], value: Any) -> float:
        """Returns the logit of the likeliest class."""
        return float(outputs[0, int(np.argmax(value))])

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the metrics of the examples with public labels; an undefined one is omitted, and
        counts as 0 where it selects the checkpoint.
        """
        figures = row_figures(table, predicted, self.names, self.settings)
        defined_figures = {
            name: value
            for name, value in figures.items()
            if value is not None and "/" not in name and not name.endswith(("_stderr", "_n"))
        }
        return {self.criterion.name: 0.0} | defined_figures

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the metrics of each split, and files with the predictions."""
        values = {table.pair_id(prediction.row): prediction.value for prediction in predicted}
        labelling = Labelling(task=self.name, names=self.names, settings=self.settings)
        return evaluate_rows(labelling, self.table, examples, values)


def reject_reason(row: Mapping[str, Any]) -> Reason | None:
    """Returns a reject reason for an example without exactly one label, where each has one."""
    count = len(row["class_ids"]) + row["num_unknown"]
    return Reason.LABEL_UNKNOWN if row["is_public"] and count != 1 else None


def find_weights(settings: ClassificationSettings, classes: ClassCounts) -> tuple[float, ...]:
    """Returns the weights of the classes; empty if all are 1.

    Balanced: N / (C n) for a class of n among N examples, so that the mean over the examples is 1;
    of several classes an example (N - n) / n, the ratio of negative to positive ones. A class
    without an example has the weight 1. Raises InputError for weights of other classes.
    """
    class_weights = settings.class_weights
    if unknown := [name for name in class_weights if name not in classes.counts]:
        known = ", ".join(classes.counts)
        raise InputError(f"settings.class_weights: {unknown[0]!r} is not a class; expected {known}")
    if class_weights:
        return tuple(float(class_weights.get(name, 1.0)) for name in classes.counts)
    if not settings.balanced:
        return ()
    total, num_classes = classes.num_rows, len(classes.counts)
    if settings.kind == "multi":
        return tuple((total - n) / n if 0 < n < total else 1.0 for n in classes.counts.values())
    return tuple(total / (num_classes * n) if n else 1.0 for n in classes.counts.values())


def classification(
    name: str,
    table: ExampleTable,
    recipe: TaskRecipe,
    examples: str | None,
    labels: Path | None,
    init: LoadedCheckpoint | None,
) -> Classification:
    """Returns the task of a recipe on a table, with the classes of its rows to train on.

    A checkpoint of the task has its own classes, and needs no table. Raises InputError for a table
    without labels, for a single class, and for settings that do not fit the labels.
    """
    require_variant(recipe)
    if getattr(recipe.model, "num_pictures", 1) != 1:
        raise InputError(f"model.num_pictures={recipe.model.num_pictures}: {name} has 1 image")
    settings: ClassificationSettings = recipe.settings
    if init is not None and init.task is not None and init.task.name == name:
        if labels is not None and read_labels(labels) != list(init.task.labels):
            raise InputError(
                f"--labels {labels}: the checkpoint {init.path} has a list of its own, "
                f"{format_count(len(init.task.labels), 'class', 'classes')}; leave --labels out"
            )
        settings = from_plain(ClassificationSettings, init.task.settings)
        return Classification(
            name=name,
            table=table,
            settings=settings,
            variant=recipe.variant,
            names=init.task.labels,
        )
    assert examples is not None
    stage = recipe.stages[0]
    classes = count_classes(table, examples, stage.train_splits, labels)
    kind = settings.kind
    if kind == "auto":
        kind = "multi" if classes.multi else "single"
    try:
        settings = dataclasses.replace(settings, kind=kind)
    except ValueError as error:
        raise InputError(f"settings: {error} (the table has kind={kind})") from None
    if kind == "single" and len(classes.counts) < 2:
        only = next(iter(classes.counts))
        raise InputError(
            f"--examples {examples}: all rows to train on have the label {only!r}; "
            f"{name} needs two classes"
        )
    more = " (an example may have several)" if kind == "multi" else ""
    print_status(f"classes: {format_count(len(classes.counts), 'class', 'classes')}{more}")
    return Classification(
        name=name,
        table=table,
        settings=settings,
        variant=recipe.variant,
        names=tuple(classes.counts),
        weights=find_weights(settings, classes),
    )
