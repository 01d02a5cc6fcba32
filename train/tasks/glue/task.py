"""GLUE: one of eight tasks on a text, or on two.

Input: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] in two segments, and no image. Head: a linear layer
on the model's pooled vector of the texts. Loss: cross-entropy over the task's classes, squared
error for STS-B's score. Metric: the task's official one.

B examples, T tokens, C labels.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import get_variant
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import COLUMNS, Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.loading.vocabulary import CLS, SEP
from vlmill.train.objectives.losses import IGNORED, mean_cross_entropy
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue.evaluation import BEST_SCORE, decode_logits, evaluate_predictions
from vlmill.train.tasks.glue.metrics import INTERBERT, TASKS, glue_metrics
from vlmill.train.tasks.glue.settings import HALVES, GlueSettings
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import (
    EvaluationResult,
    Prediction,
    SampleSource,
    Task,
    require_variant,
)
from vlmill.train.tasks.vcr.texts import cut_pair


def encode_text(text: str, words: Tokenizer) -> list[int]:
    """Returns the word-piece ids of a text, without [CLS] and [SEP]."""
    ids: list[int] = words.encode(text, add_special_tokens=False).ids
    return ids


def join_texts(
    first: Sequence[int], second: Sequence[int] | None, words: Tokenizer, longest: int
) -> tuple[Ids, int]:
    """Returns at most ``longest`` tokens int64 [T], and how many of them are of segment 0.

    Of two texts the longer one is cut at its end, token by token; its [SEP] stays, as all of them
    do (arXiv:1810.04805, released code). ``longest`` is 4 at least.
    """
    cls, sep = words.token_to_id(CLS), words.token_to_id(SEP)
    if second is None:
        ids = list(first[: longest - 2])
        return np.array([cls, *ids, sep], dtype=np.int64), len(ids) + 2
    num_first, num_second = cut_pair(first, second, longest - 3)
    tokens = [cls, *first[:num_first], sep, *second[:num_second], sep]
    return np.array(tokens, dtype=np.int64), num_first + 2


LABELS = pa.schema([STATEMENTS.schema.field(n) for n in ("text_a", "text_b", "label_id", "score")])


@dataclass(kw_only=True)
class Glue(Task):
    """Fine-tunes a variant on one GLUE task; texts have at most ``max_tokens`` tokens."""

    settings: GlueSettings
    max_tokens: int
    tokenizer: Tokenizer | None = None

    name = "glue"
    losses = ("labels",)
    weighs_regions = False  # GLUE has no regions

    def __post_init__(self) -> None:
        # The metrics that InterBERT's table prints; for MNLI the accuracy over both halves.
        metric = INTERBERT.get(self.settings.task, "accuracy")
        self.criterion = Criterion(name=metric, highest=True)

    @property
    def rules(self) -> str:
        """Returns the key of `metrics.TASKS`: both halves of MNLI have the same classes."""
        return HALVES[0] if self.settings.task == "mnli" else self.settings.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Returns the classes' names by their numbers; empty for STS-B, which has a score."""
        return TASKS[self.rules].classes

    @property
    def source(self) -> str:
        """Returns the source of its rows: ``glue/rte``."""
        return f"glue/{self.settings.task}"

    # Input

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the tokenizer, by which two texts are tokenised and cut together."""
        return dataclasses.replace(self, tokenizer=words)

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the number of outputs: one for each class, or one for the score."""
        return {"num_labels": max(len(self.classes), 1)}

    def examples(self, path: str) -> Examples:
        """Reads the rows of the task, including empty texts: a test set is answered completely."""
        return Examples(
            path=path,
            table=STATEMENTS,
            as_pairs=self._as_pairs,
            labels=LABELS,
            takes_empty=True,
            find_fault=self._reject_reason,
        )

    def _reject_reason(self, row: Mapping[str, Any]) -> Reason | None:
        """Returns a reject reason for an unknown class, or for a score outside 0 to 5."""
        if self.classes:
            is_known = -1 <= row["label_id"] < len(self.classes)
        else:
            is_known = row["score"] is None or 0 <= row["score"] <= BEST_SCORE
        return None if is_known else Reason.LABEL_UNKNOWN

    def _as_pairs(self, statements: pa.RecordBatch) -> pa.RecordBatch:
        """Reads statements as pairs without an image. Their text holds all words: a vocabulary is
        trained on it.
        """
        rows = statements.filter(pc.equal(statements.column("source"), self.source))
        columns = {name: rows.column(name) for name in rows.schema.names}
        second = pc.coalesce(columns["text_b"], pa.scalar("", pa.string()))
        columns["pair_id"] = columns["example_id"]
        columns["text"] = pc.binary_join_element_wise(columns["text_a"], second, " ")
        columns["image_id"] = pa.nulls(rows.num_rows, pa.string())
        return pa.RecordBatch.from_pydict({n: columns[n] for n in (*COLUMNS, *LABELS.names)})

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the outputs are the task's classes, for any training table."""
        return TaskRecord(name=self.name, labels=self.classes)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the sample of the texts, cut together."""
        assert self.tokenizer is not None
        values = (batches.table.value(name, visit.row) for name in ("text_a", "text_b"))
        first, *second = (encode_text(v, self.tokenizer) for v in values if v is not None)
        tokens, num_first = join_texts(
            first, second[0] if second else None, self.tokenizer, self.max_tokens
        )
        none = np.zeros(len(tokens), dtype=np.bool_)
        text = MaskedTokens(original=tokens, tokens=tokens, masked=none)
        sample = batches.example(visit.row, draws, text)
        assert not isinstance(sample, Undecodable)  # the task has no images
        return (TextSample(**(vars(sample) | {"num_first": num_first})),)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns each row's start of the second segment, and its class (-100: not public) or its
        score (NaN: not public).
        """
        firsts = [sample.num_first for sample in samples if isinstance(sample, TextSample)]
        ids = [table.value("label_id", sample.row) for sample in samples]
        scores = [table.value("score", sample.row) for sample in samples]
        return {
            f"{LABEL}num_first": torch.tensor(firsts),
            f"{LABEL}classes": torch.tensor([number if number >= 0 else IGNORED for number in ids]),
            f"{LABEL}scores": torch.tensor([math.nan if s is None else s for s in scores]),
        }

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of rows whose label is public."""
        if self.classes:
            known = batch.tensors[f"{LABEL}classes"] != IGNORED
        else:
            known = ~batch.tensors[f"{LABEL}scores"].isnan()
        return {"labels": int(known.sum())}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "B C"]:
        """Returns the logits, or the score."""
        inputs = batch.inputs
        segments = second_segments(inputs.tokens, batch.labels["num_first"])
        logits: Tensor = model(inputs.tokens, inputs.token_mask, segments, real=inputs.real_tokens)
        return logits

    def compute(self, outputs: Float[Tensor, "B C"], batch: Batch) -> dict[str, Tensor]:
        """Returns cross-entropy, or squared error, as a mean over the rows with a label."""
        if self.classes:
            return {"labels": mean_cross_entropy(outputs, batch.labels["classes"])}
        scores = batch.labels["scores"]
        known = ~scores.isnan()
        errors = torch.where(known, outputs[:, 0].float() - scores.nan_to_num(), 0.0)
        return {"labels": errors.square().sum() / known.sum().clamp(min=1)}

    # Metric

    def predict(self, outputs: Float[Tensor, "B C"], batch: Batch) -> list[list[float]]:
        """Returns the logits of each row, or its score alone."""
        logits = outputs.float().cpu()
        require_finite(dict(zip(batch.pair_ids, logits.numpy(), strict=True)), "--checkpoint")
        values: list[list[float]] = logits.tolist()
        return values

    def compute_score(self, outputs: Float[Tensor, "B C"], value: list[float]) -> float:
        """Returns the highest logit, or the score."""
        return max(value)

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the task's metrics of the rows with a label, both halves of MNLI as one."""
        predictions, labels = dict[int, float](), dict[int, float]()
        for prediction in predicted:
            label, score = (table.value(name, prediction.row) for name in ("label_id", "score"))
            if label >= 0 or (not self.classes and score is not None):
                predictions[prediction.row] = decode_logits(prediction.value)
                labels[prediction.row] = label if self.classes else score
        figures = glue_metrics(self.rules, predictions, labels) if labels else {}
        values_by_metric = {name.rpartition("/")[2]: value for name, value in figures.items()}
        measured = {
            name: value
            for name, value in values_by_metric.items()
            if value is not None and not name.endswith(("_stderr", "_n")) and name != "n"
        }
        # The correlation of constant values is undefined; it counts as 0 between checkpoints.
        return {self.criterion.name: 0.0} | measured

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the official metrics of each split, and the server's file."""
        values = {table.pair_id(prediction.row): prediction.value for prediction in predicted}
        return evaluate_predictions(examples, self.settings, values)


@dataclass(frozen=True, kw_only=True)
class TextSample(Sample):
    """Holds a row of a batch; its first ``num_first`` tokens are of segment 0."""

    num_first: int


def second_segments(tokens: Int[Tensor, "B T"], num_first: Int[Tensor, " B"]) -> Int[Tensor, "B T"]:
    """Returns segment ids: 1 from each row's ``num_first`` on."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return (positions >= num_first[:, None]).to(tokens.dtype)


def glue(
    recipe: TaskRecipe, examples: str, labels: Path | None, init: LoadedCheckpoint | None
) -> Glue:
    """Returns the task of a recipe. Raises InputError for inputs that GLUE does not use, and for a
    table without a row of the task.
    """
    if labels is not None:
        raise InputError(f"--labels {labels}: glue has fixed classes; remove --labels")
    if recipe.blind:
        raise InputError("blind=true: glue has no images; remove it")
    require_variant(recipe)
    task = Glue(settings=recipe.settings, max_tokens=longest_text(recipe, init))
    there = list_sources(examples)
    if task.source not in there:
        known = [name for name in there if name.startswith("glue/")]
        raise InputError(
            f"--examples {examples} has no row of {task.source}, which "
            f"settings.task={recipe.settings.task} asks for (it has "
            f"{', '.join(known) or 'none of GLUE'}); set settings.task to a task that it has"
        )
    return task


def longest_text(recipe: TaskRecipe, init: LoadedCheckpoint | None) -> int:
    """Returns how many tokens are read: the recipe's, limited by the model's positions."""
    configs = [get_variant(recipe.variant).get_body(recipe.model)]
    if init is not None:
        configs.append(init.body)
    # The network takes more than its pretraining was fed, except VLMo, which has no more positions.
    counts = [getattr(config, "num_positions", None) for config in configs]
    limits = [count for count in counts if count is not None] or [configs[0].max_text_tokens]
    limit: int = min(recipe.stages[0].feeding.max_tokens or limits[0], *limits)
    return limit


def list_sources(examples: str) -> list[str]:
    """Returns the sources of a table of statements."""
    batches = iter_batches(examples, STATEMENTS, columns=["source"], flag="--examples")
    sources = {value for batch in batches for value in batch.column(0).unique().to_pylist()}
    return sorted(value for value in sources if value is not None)
