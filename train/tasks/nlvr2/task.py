"""NLVR2: whether a statement is true of two images.

Input: the statement with either image, two pairs that share the text. Head: a classifier on the
concatenated pooled vectors of both. Loss: cross-entropy over false and true. Metric: the share of
right examples, and consistency over all images of a statement.

Evaluation computes both from predictions in the format of the files that NLVR2's scripts read.
Identifiers are SPLIT-SET-PAIR-SENTENCE. A prediction is the text True or False in any case; another
text is never right.

S statements, B = 2 S pairs, T tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.registry import MODELS
from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.reading import iter_batches
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
from vlmill.train.tasks.nlvr2.settings import NUM_IMAGES, Nlvr2Settings
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import NO_SPLIT, Figures, require_finite, require_same_ids, share
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
    """Fine-tunes a variant with its head for NLVR2."""

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


Verdicts = Mapping[str, bool | None]

LOWER_WORDS = ("true", "false")


def verdicts(predictions: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, bool | None]:
    """Returns whether each example was predicted right; None for neither true nor false.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), labels.keys(), "predictions")
    words = {key: predictions[key].lower() for key in labels}
    return {
        key: words[key] == label.lower() if words[key] in LOWER_WORDS else None
        for key, label in labels.items()
    }


def consistency_groups(results: Verdicts) -> dict[str, bool]:
    """Returns for each use of a sentence (split, set, sentence) whether all its examples are right.

    Raises InputError for an identifier of another form.
    """
    groups: dict[str, bool] = {}
    for identifier, verdict in results.items():
        parts = identifier.split("-")
        if len(parts) != 4:
            raise InputError(f"identifier {identifier!r}: expected SPLIT-SET-PAIR-SENTENCE")
        name = "-".join((parts[0], parts[1], parts[3]))
        groups[name] = groups.get(name, True) and verdict is True
    return groups


def select_results(results: Verdicts, identifiers: Iterable[str]) -> list[bool]:
    """Returns the results of some examples; those with neither true nor false are omitted.

    The official code does so for subsets and categories, whose denominators are therefore smaller.
    Raises InputError for an example that was not predicted.
    """
    identifiers = list(identifiers)
    require_same_ids(results.keys() & set(identifiers), set(identifiers), "predictions")
    return [verdict for key in identifiers if (verdict := results[key]) is not None]


def nlvr2_metrics(results: Verdicts, split: str, subsets: Mapping[str, Set[str]]) -> Figures:
    """Returns ``nlvr2/SPLIT/accuracy`` and ``consistency`` with their errors and counts.

    For each of ``subsets`` (``balanced``, ``unbalanced``) there is ``NAME_accuracy``.
    """
    name = f"nlvr2/{split}"
    figures = share(f"{name}/accuracy", [verdict is True for verdict in results.values()])
    figures |= share(f"{name}/consistency", list(consistency_groups(results).values()))
    for subset, identifiers in subsets.items():
        figures |= share(f"{name}/{subset}_accuracy", select_results(results, sorted(identifiers)))
    return figures


def write_predictions(
    path: Path, predictions: Mapping[str, bool], identifiers: Sequence[str]
) -> None:
    """Writes lines ``identifier,True|False`` without a header, in the order of the examples.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), set(identifiers), path.name)
    write_text(path, "".join(f"{key},{bool(predictions[key])}\n" for key in identifiers))


PUBLISHED = ("nlvr2/dev/accuracy", "nlvr2/test-P/accuracy")
EVALUATED = ("example_id", "image_ids", "text_a", "label_id", "split", "subset")  # columns
SPLITS = {"test1": "test-P", "test2": "test-U"}  # public, and not public
WORDS = ("False", "True")
SUBSETS = ("balanced", "unbalanced")


@dataclass(kw_only=True)
class Split:
    """Holds the statements of a split that were predicted, and their public labels."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def get_identifier(example_id: str) -> str:
    """Returns the data set's own identifier: ``dev-12-3-1`` of ``nlvr2/dev-12-3-1``."""
    return example_id.rpartition("/")[2]


def evaluate_predictions(examples: str, values: Mapping[str, Sequence[float]]) -> EvaluationResult:
    """Scores the logits ``values`` of false and true, by example_id.

    Raises InputError for identifiers of another form than SPLIT-SET-PAIR-SENTENCE.
    """
    figures, headline, notes = Figures(), list[str](), list[str]()
    files, cases = [], list[Case]()
    for name, split in read_splits(examples, values).items():
        files.append(partial(write_split, name=name, split=split))
        figure_names = [f"nlvr2/{name}/{figure}" for figure in ("accuracy", "consistency")]
        headline += figure_names
        if not split.labels:
            figures |= dict.fromkeys(figure_names)
            continue
        if unscored := len(split.rows) - len(split.labels):
            notes.append(f"{unscored} statements of {name} have no label and are not scored.")
        right = verdicts({key: split.predictions[key] for key in split.labels}, split.labels)
        subsets = {
            subset: {
                key
                for row in split.rows
                if row["subset"] == subset and (key := get_identifier(row["example_id"])) in right
            }
            for subset in SUBSETS
        }
        nonempty_subsets = {subset: keys for subset, keys in subsets.items() if keys}
        figures |= nlvr2_metrics(right, name, nonempty_subsets)
        cases += [
            make_case(row, values[row["example_id"]]) for row in split.rows if row["label_id"] >= 0
        ]
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        files=files,
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, values: Mapping[str, Sequence[float]]) -> dict[str, Split]:
    """Returns the statements that have been predicted, by their splits."""
    splits: dict[str, Split] = {}
    for batch in iter_batches(examples, STATEMENTS, columns=EVALUATED, flag="--examples"):
        for row in batch.to_pylist():
            if row["example_id"] not in values:
                continue
            name = row["split"] or NO_SPLIT
            split = splits.setdefault(SPLITS.get(name, name), Split())
            key = get_identifier(row["example_id"])
            split.rows.append(row)
            split.predictions[key] = WORDS[int(np.argmax(values[row["example_id"]]))]
            if row["label_id"] >= 0:
                split.labels[key] = WORDS[row["label_id"]]
    return splits


def write_split(folder: Path, *, name: str, split: Split) -> None:
    """Writes ``nlvr2_SPLIT.csv``, which the data set's scripts read."""
    predictions = {key: word == WORDS[1] for key, word in split.predictions.items()}
    write_predictions(folder / f"nlvr2_{name}.csv", predictions, list(split.predictions))


def make_case(row: Mapping[str, Any], value: Sequence[float]) -> Case:
    """Returns a statement as a report shows it; its score is the right class's probability."""
    logits = np.array(value, dtype=np.float64)
    odds = np.exp(logits - logits.max())
    first, second = row["image_ids"]
    return Case(
        example_id=row["example_id"],
        image_id=first,
        score=float(odds[row["label_id"]] / odds.sum()),
        second_id=second,
        text=row["text_a"],
        prediction=WORDS[int(np.argmax(value))],
        right=WORDS[row["label_id"]],
    )
