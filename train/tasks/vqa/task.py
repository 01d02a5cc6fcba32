"""VQA: a question about an image, and which of a list of answers annotators gave.

Input: the question (VL-BERT: followed by a [MASK]) with its image. Head: a classifier of the list's
answers, on the pooled vector (ViLBERT, VLMo) or on the [MASK] (VL-BERT). Loss: each answer's binary
cross-entropy with its soft score, summed over the answers, or a softmax. Metric: the soft score of
the likeliest answer; the official accuracy, of all annotators, is evaluation's.

B questions, A answers, N labels of a batch.

A head's list of answers is the checkpoint's, a given one, or the list of the data.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.answers import (
    EXACT_SOURCES,
    MIN_QUESTIONS,
    TYPED_SOURCES,
    collect_labels,
    label_answers,
    make_label,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import QUESTIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import COLUMNS, Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.losses import IGNORED, mean_cross_entropy, summed_binary_cross_entropy
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.heads import HeadTask, ragged_tensors
from vlmill.train.tasks.scores import by_id, require_finite
from vlmill.train.tasks.task import EvaluationResult, Prediction, SampleSource, require_variant
from vlmill.train.tasks.vlbert_texts import find_sides, mirrored_text
from vlmill.train.tasks.vqa.evaluation import Answer, evaluate_predictions, targets_of_row
from vlmill.train.tasks.vqa.metrics import soft_scores
from vlmill.train.tasks.vqa.settings import VqaSettings


def select_answers(
    examples: str | None, labels: Path | None, init: LoadedCheckpoint | None, *, min_questions: int
) -> list[str]:
    """Returns the answers of a run: of ``--init`` where it was fine-tuned for VQA, of ``labels``,
    of the list next to the table, or the answers of at least ``min_questions`` of its questions.

    Raises InputError where a checkpoint's list and a given one differ, and where no list exists.
    """
    given_labels = None if labels is None else read_labels(labels)
    labels_path = None if examples is None else to_path(examples) / LABELS_FILE
    if labels_path is not None and not labels_path.is_file():
        labels_path = None
    has_list = init is not None and init.task is not None and init.task.name == "vqa"
    # 1 is the value of the recipes with -small; it asks for every answer, as the other lists have.
    if min_questions not in (1, MIN_QUESTIONS) and (has_list or given_labels or labels_path):
        source = (
            "--init" if has_list else labels_path if given_labels is None else f"--labels {labels}"
        )
        print_status(
            f"warning: settings.min_questions={min_questions} has no effect: the "
            f"answers come from {source}"
        )
    if init is not None and init.task is not None and init.task.name == "vqa":
        checkpoint_labels = list(init.task.labels)
        if given_labels is not None and given_labels != checkpoint_labels:
            raise InputError(
                f"--labels {labels}: the checkpoint {init.path} has its own list of "
                f"{len(checkpoint_labels)} answers; remove --labels"
            )
        return checkpoint_labels
    if given_labels is not None:
        return given_labels
    if labels_path is not None:
        return read_labels(labels_path)
    assert examples is not None  # only a list can replace them
    answers = collect_labels(published_answers(examples), min_questions=min_questions)
    if not answers:
        raise InputError(
            f"--examples {examples}: no answer occurs in {min_questions} questions; give --labels "
            "FILE, or settings.min_questions=1"
        )
    print_status(
        f"answers: {len(answers)} that occur in {min_questions} or more questions of --examples"
    )
    return answers


def published_answers(examples: str) -> list[str]:
    """Returns the most frequent answer to each question that is trained or validated on."""
    answers = list[str]()
    columns = ("answer", "split")
    for batch in iter_batches(examples, QUESTIONS, columns=columns, flag="--examples"):
        answers += [
            row["answer"]
            for row in batch.to_pylist()
            if row["answer"] is not None and find_use(row["split"]) != "test"
        ]
    return answers


def report_missing_answers(examples: str, answers: list[str]) -> None:
    """Prints how many of the annotators' answers are not among ``answers``, and how many questions
    have no answer among them.
    """
    known, counts = set(answers), Counter[str]()
    columns = ("answers", "source")
    for batch in iter_batches(examples, QUESTIONS, columns=columns, flag="--examples"):
        for row in batch.to_pylist():
            if row["answers"] is None:
                continue
            as_typed, row_answers = row["source"] in UNPROCESSED, row["answers"]
            row_answers = row_answers if as_typed else list(map(make_label, row_answers))
            counts["questions"] += 1
            counts["answers"] += len(row_answers)
            counts["outside"] += sum(answer not in known for answer in row_answers)
            counts["unlabelled"] += not any(answer in known for answer in row_answers)
    if counts["outside"]:
        print_status(
            f"note: {counts['outside']} of {counts['answers']} answers of annotators "
            f"are not in the list of {len(answers)}; {counts['unlabelled']} of "
            f"{counts['questions']} questions have no answer in the list"
        )


UNPROCESSED = (*TYPED_SOURCES, *EXACT_SOURCES)  # sources whose answers are compared as typed
UNANSWERABLE = "unanswerable"  # an answer of VizWiz


LABELS = pa.schema([("label_ids", pa.list_(pa.int32())), ("label_scores", pa.list_(pa.float32()))])


@dataclass(kw_only=True)
class Vqa(HeadTask):
    """Fine-tunes a variant for VQA: a classifier over the answers ``names``."""

    settings: VqaSettings
    mirrored: Mapping[int, int] = dataclasses.field(default_factory=dict)  # tokens, left and right

    name = "vqa"
    losses = ("answers",)
    criterion = Criterion(name="soft_score", highest=True)

    # Input

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the vocabulary's special tokens, and its left and right."""
        copy = super().with_vocabulary(words)
        sides = find_sides(words) if self.settings.mirror_words else {}
        return dataclasses.replace(copy, mirrored=sides)

    def examples(self, path: str) -> Examples:
        """Reads questions; their labels are their annotators' answers that are in the list."""
        return Examples(path=path, table=QUESTIONS, as_pairs=self._as_pairs, labels=LABELS)

    def _as_pairs(self, questions: pa.RecordBatch) -> pa.RecordBatch:
        rows = questions.select(["answers", "source"]).to_pylist()
        labels = [label_answers(row["source"], row["answers"] or (), self.numbers) for row in rows]
        names = {"pair_id": "question_id", "text": "question"}
        columns = {name: questions.column(names.get(name, name)) for name in COLUMNS}
        columns["label_ids"] = pa.array([ids for ids, _ in labels], LABELS.field(0).type)
        columns["label_scores"] = pa.array([scores for _, scores in labels], LABELS.field(1).type)
        return pa.RecordBatch.from_pydict(columns)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Returns the index of each answer in the list."""
        return {answer: number for number, answer in enumerate(self.names)}

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the list is the checkpoint's own."""
        return TaskRecord(name=self.name, labels=self.names)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the question with its image; the words left and right are mirrored with it."""
        samples = super().samples(batches, visit, draws)
        if not self.settings.mirror_words or isinstance(samples, Undecodable):
            return samples
        return tuple(
            dataclasses.replace(sample, text=mirrored_text(sample.text, self.mirrored))
            if sample.regions is not None and sample.regions.mirrored
            else sample
            for sample in samples
        )

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns each label's row in the batch, its index in the list and its score; of a question
        with a [MASK] its segments and the position of the [MASK].
        """
        ids = [table.value("label_ids", sample.row) for sample in samples]
        scores = [table.value("label_scores", sample.row) for sample in samples]
        if self.settings.mirror_words:
            ids = [self._mirror_labels(n, s) for n, s in zip(ids, samples, strict=True)]
        flat_scores = torch.tensor([s for values in scores for s in values])
        return {
            **ragged_tensors(ids),
            f"{LABEL}scores": flat_scores,
            **self.mask_tensors(samples),
        }

    def _mirror_labels(self, ids: list[int], sample: Sample) -> list[int]:
        """Returns the labels of a mirrored image: "left" for "right", where the list has both."""
        if sample.regions is None or not sample.regions.mirrored:
            return ids
        return [self.numbers.get(swap_sides(self.names[number]), number) for number in ids]

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of questions that teach something."""
        counts = batch.tensors[f"{LABEL}counts"]
        if self.settings.unlabelled and self.settings.loss == "binary":
            return {"answers": len(counts)}
        return {"answers": int((counts > 0).sum())}

    def compute(self, outputs: Float[Tensor, "B A"], batch: Batch) -> dict[str, Tensor]:
        """Returns the loss of the answers, a mean over the questions that teach something."""
        logits, counts = outputs, batch.labels["counts"]
        targets = make_targets(batch.labels, logits)
        if self.settings.loss == "softmax":
            classes = torch.where(counts > 0, targets.argmax(-1), IGNORED)
            return {"answers": mean_cross_entropy(logits, classes)}
        if self.settings.unlabelled:
            return {"answers": summed_binary_cross_entropy(logits, targets)}
        teaching = (counts > 0).to(logits.dtype)
        # Rows that teach nothing add 0 to the sum; the mean is over the other rows.
        weighted = nn.functional.binary_cross_entropy_with_logits(
            logits, targets, reduction="none"
        ).sum(-1)
        return {"answers": (weighted * teaching).sum() / teaching.sum().clamp(min=1)}

    # Metric

    def predict(self, outputs: Float[Tensor, "B A"], batch: Batch) -> list[Answer]:
        """Returns the likeliest answer, the first of equal ones, to each question, and the
        probability that the question has an answer.
        """
        logits = outputs.float().cpu()
        by_id = dict(zip(batch.pair_ids, logits.numpy(), strict=True))
        require_finite(by_id, "--checkpoint")
        indices: list[int] = logits.argmax(-1).tolist()
        if (number := self.numbers.get(UNANSWERABLE)) is None:
            return [Answer(index) for index in indices]
        is_softmax = self.settings.loss == "softmax"
        shares = (logits.softmax(-1) if is_softmax else logits.sigmoid())[:, number]
        return [Answer(i, 1 - s) for i, s in zip(indices, shares.tolist(), strict=True)]

    def compute_score(self, outputs: Float[Tensor, "B A"], value: Answer) -> float:
        """Returns the answer's logit."""
        return float(outputs[0, value.index])

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the mean soft score of the likeliest answers."""
        predictions = {prediction.row: prediction.value.index for prediction in predicted}
        targets = {
            prediction.row: targets_of_row(table, prediction.row) for prediction in predicted
        }
        scores = soft_scores(predictions, targets)
        return {"soft_score": float(np.mean(list(scores.values()))) if scores else 0.0}

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the official accuracy and the soft score of each split, and its result file."""
        answer_pairs = (
            (table.pair_id(prediction.row), self.names[prediction.value.index])
            for prediction in predicted
        )
        answers = by_id(answer_pairs, "--checkpoint")
        return evaluate_predictions(examples, table, predicted, answers)


def swap_sides(answer: str) -> str:
    """Returns a text with left for right and right for left."""
    sides = {"left": "right", "right": "left"}
    return " ".join(sides.get(word, word) for word in answer.split(" "))


def make_targets(
    labels: Mapping[str, Int[Tensor, " N"]], logits: Float[Tensor, "B A"]
) -> Float[Tensor, "B A"]:
    """Returns the soft score of every answer to each question."""
    targets = torch.zeros_like(logits, dtype=torch.float32)
    indices = (labels["rows"], labels["ids"])
    return targets.index_put(indices, labels["scores"].float(), accumulate=True)


def vqa(
    recipe: TaskRecipe, examples: str | None, labels: Path | None, init: LoadedCheckpoint | None
) -> Vqa:
    """Returns the task of a recipe on a table of questions; ``labels`` is a file of answers.

    Without a table, the file or ``init`` must have the answers.
    """
    require_variant(recipe)
    settings: VqaSettings = recipe.settings
    answers = select_answers(examples, labels, init, min_questions=settings.min_questions)
    if examples is not None:
        report_missing_answers(examples, answers)
    return Vqa(settings=settings, variant=recipe.variant, names=tuple(answers))
