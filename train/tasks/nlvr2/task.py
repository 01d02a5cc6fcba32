"""NLVR2: whether a statement is true of two images.

Input: the statement with either image, two pairs that share the text. Head: a classifier on the
concatenated pooled vectors of both. Loss: cross-entropy over false and true. Metric: the share of
right examples; consistency, over all images of a statement, is evaluation's.

S statements, B = 2 S pairs, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.registry import MODELS
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import COLUMNS, SECOND, Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.losses import IGNORED, mean_cross_entropy
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.nlvr2.evaluation import evaluate_predictions
from vlmill.train.tasks.nlvr2.settings import NUM_IMAGES, Nlvr2Settings
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import (
    EvaluationResult,
    Prediction,
    SampleSource,
    Task,
    require_variant,
)

LABELS = pa.schema([STATEMENTS.schema.field("label_id"), *SECOND])

Logits = Callable[[Any, Batch, Nlvr2Settings], Float[Tensor, "S 2"]]


def pooled_logits(model: Any, batch: Batch, settings: Nlvr2Settings) -> Float[Tensor, "S 2"]:
    """Returns the logits of ViLBERT and InterBERT: the pooled vectors of both images are
    concatenated [choice].
    """
    logits: Tensor = model.label_logits(model(batch.inputs).pooled)
    return logits


def task_token_logits(model: Any, batch: Batch, settings: Nlvr2Settings) -> Float[Tensor, "S 2"]:
    """Returns the logits of 12-in-1: the same with the task's token (arXiv:1912.02315, sec. 3)."""
    tokens = batch.inputs.tokens
    task = torch.full_like(tokens[:, 0], settings.task_token)
    logits: Tensor = model.two_image_logits(model(batch.inputs, task=task).pooled)
    return logits


def pixel_logits(model: Any, batch: Batch, settings: Nlvr2Settings) -> Float[Tensor, "S 2"]:
    """Returns the logits of VLMo: both pairs by the fusion encoder (arXiv:2111.02358, sec. 4.2)."""
    assert batch.pixels is not None
    inputs = batch.inputs
    pixels = batch.pixels.reshape(-1, NUM_IMAGES, *batch.pixels.shape[1:])
    tokens, mask = inputs.tokens[::NUM_IMAGES], inputs.token_mask[::NUM_IMAGES]
    logits: Tensor = model(tokens, mask, pixels, real=batch.labels.get("real"))
    return logits


# By the input that a variant's row declares for its head.
HEADS: dict[str, Logits] = {
    "pooled": pooled_logits,
    "task token": task_token_logits,
    "pixels": pixel_logits,
}


@dataclass(kw_only=True)
class Nlvr2(Task):
    """Learns NLVR2 with a variant's head."""

    settings: Nlvr2Settings
    variant: str

    name = "nlvr2"
    losses = ("labels",)
    criterion = Criterion(name="accuracy", highest=True)
    weighs_regions = False  # the report draws one image

    # Input

    def examples(self, path: str) -> Examples:
        """Reads the statements with both of their images."""
        return Examples(
            path=path,
            table=STATEMENTS,
            as_pairs=as_pairs,
            labels=LABELS,
            two_images=True,
            find_fault=reject_reason,
        )

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the head's outputs are the same for all data."""
        return TaskRecord(name=self.name)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns samples of the statement with the left image, then with the right one."""
        new_samples = list[Sample]()
        for second in (False, True):
            sample = batches.example(visit.row, draws, second=second)
            if isinstance(sample, Undecodable):
                return sample
            new_samples.append(sample)
        return tuple(new_samples)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns each statement's class (-100: not public), and the positions of its tokens in a
        batch of statements, for a model that reads them once.
        """
        firsts = samples[::NUM_IMAGES]
        ids = [table.value("label_id", sample.row) for sample in firsts]
        lengths = np.array([len(sample.text.tokens) for sample in firsts])
        real = np.flatnonzero(np.arange(lengths.max()) < lengths[:, None])
        return {
            f"{LABEL}classes": torch.tensor([number if number >= 0 else IGNORED for number in ids]),
            f"{LABEL}real": torch.from_numpy(real),
        }

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of statements whose label is public."""
        return {"labels": int((batch.tensors[f"{LABEL}classes"] != IGNORED).sum())}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "S 2"]:
        """Returns the logits of the variant's head."""
        return HEADS[MODELS[self.variant].heads[self.name]](model, batch, self.settings)

    def compute(self, outputs: Float[Tensor, "S 2"], batch: Batch) -> dict[str, Tensor]:
        """Returns cross-entropy as a mean over the statements with a label."""
        return {"labels": mean_cross_entropy(outputs, batch.labels["classes"])}

    # Metric

    def predict(self, outputs: Float[Tensor, "S 2"], batch: Batch) -> list[list[float]]:
        """Returns the logits of false and true."""
        logits = outputs.float().cpu()
        logits_by_id = dict(zip(batch.pair_ids[::NUM_IMAGES], logits.numpy(), strict=True))
        require_finite(logits_by_id, "--checkpoint")
        values: list[list[float]] = logits.tolist()
        return values

    def compute_score(self, outputs: Float[Tensor, "S 2"], value: list[float]) -> float:
        """Returns the higher logit."""
        return max(value)

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the share of right examples."""
        labels = [table.value("label_id", prediction.row) for prediction in predicted]
        hits = [
            int(np.argmax(prediction.value)) == label
            for prediction, label in zip(predicted, labels, strict=True)
            if label >= 0
        ]
        return {"accuracy": float(np.mean(hits)) if hits else 0.0}

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns accuracy and consistency of each split, and its file of predictions."""
        return evaluate_predictions(
            examples, {table.pair_id(prediction.row): prediction.value for prediction in predicted}
        )


def as_pairs(statements: pa.RecordBatch) -> pa.RecordBatch:
    """Reads statements as pairs with their first image and the second one's id; without both ids if
    one is missing.
    """
    rows = [
        ids if len(ids) == NUM_IMAGES else [None] * NUM_IMAGES for ids in _image_ids(statements)
    ]
    columns = {name: statements.column(name) for name in statements.schema.names}
    columns |= {
        "pair_id": columns["example_id"],
        "text": columns["text_a"],
        "image_id": pa.array([first for first, _ in rows], pa.string()),
        "second_image_id": pa.array([second for _, second in rows], pa.string()),
        "second_row": pa.nulls(len(rows), pa.int64()),
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in (*COLUMNS, *LABELS.names)})


def _image_ids(statements: pa.RecordBatch) -> list[list[str | None]]:
    ids: list[list[str | None]] = statements.column("image_ids").to_pylist()
    return ids


def reject_reason(row: Mapping[str, Any]) -> Reason | None:
    """Returns a reject reason for a label that is neither false nor true."""
    return None if -1 <= row["label_id"] <= 1 else Reason.LABEL_UNKNOWN


def nlvr2(
    recipe: TaskRecipe, examples: str, labels: Path | None, init: LoadedCheckpoint | None
) -> Nlvr2:
    """Returns the task of a recipe. Raises InputError for a list of labels."""
    if labels is not None:
        raise InputError(
            f"--labels {labels}: nlvr2 has the fixed labels false and true; remove --labels"
        )
    require_variant(recipe)
    return Nlvr2(settings=recipe.settings, variant=recipe.variant)
