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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import MODELS
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.answers import MIN_QUESTIONS, collect_labels, soft_labels
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
from vlmill.train.loading.store.prepare import AS_IT_IS, TextForm
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.loading.vocabulary import CLS, MASK, SEP, UNK
from vlmill.train.objectives.losses import (
    IGNORED,
    mean_cross_entropy,
    summed_binary_cross_entropy,
)
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.mirrored_texts import find_sides, mirrored_text
from vlmill.train.tasks.scores import by_id, require_finite
from vlmill.train.tasks.task import (
    EvaluationResult,
    Prediction,
    SampleSource,
    Task,
    require_variant,
)
from vlmill.train.tasks.vlbert_texts import SpecialIds, vqa_text
from vlmill.train.tasks.vqa.evaluation import evaluate_predictions, targets_of_row
from vlmill.train.tasks.vqa.metrics import soft_scores
from vlmill.train.tasks.vqa.recipes import VqaSettings


def select_answers(
    examples: str, labels: Path | None, init: LoadedCheckpoint | None, *, min_questions: int
) -> list[str]:
    """Returns the answers of a run: of ``--init`` where it was fine-tuned for VQA, of ``labels``,
    of the list next to the table, or the answers of at least ``min_questions`` of its questions.

    Raises InputError where a checkpoint's list and a given one differ, and where no list exists.
    """
    given_labels = None if labels is None else read_labels(labels)
    labels_path = to_path(examples) / LABELS_FILE
    has_list = init is not None and init.task is not None and init.task.name == "vqa"
    if min_questions != MIN_QUESTIONS and (
        has_list or given_labels is not None or labels_path.is_file()
    ):
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
    if labels_path.is_file():
        return read_labels(labels_path)
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
    for batch in iter_batches(examples, QUESTIONS, columns=("answers",), flag="--examples"):
        for row_answers in batch.column("answers").to_pylist():
            if row_answers is None:
                continue
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


LABELS = pa.schema([("label_ids", pa.list_(pa.int32())), ("label_scores", pa.list_(pa.float32()))])
READS_MASK = "mask"  # the head that reads its answer from a [MASK]

Logits = Callable[[Any, Batch], Float[Tensor, "B A"]]


def pooled_logits(model: Any, batch: Batch) -> Float[Tensor, "B A"]:
    """Returns the logits of ViLBERT and its baseline: two layers on the pooled vectors
    (arXiv:1908.02265, sec. 3.3).
    """
    logits: Tensor = model.answer_logits(model(batch.inputs).pooled)
    return logits


def mask_logits(model: Any, batch: Batch) -> Float[Tensor, "B A"]:
    """Returns the logits of VL-BERT: a word head on the [MASK] (arXiv:1908.08530, sec. 4.2)."""
    logits: Tensor = model(batch.inputs, batch.labels["answer_positions"])
    return logits


def pixel_logits(model: Any, batch: Batch) -> Float[Tensor, "B A"]:
    """Returns the logits of VLMo: a classifier on the fusion vector (arXiv:2111.02358, sec.
    4.2).
    """
    logits: Tensor = model(batch.pixel_inputs(masked=False))
    return logits


# By the input that a variant's row declares for its head.
HEADS: dict[str, Logits] = {
    "pooled": pooled_logits,
    READS_MASK: mask_logits,
    "pixels": pixel_logits,
}


@dataclass(kw_only=True)
class Vqa(Task):
    """Learns VQA with a variant's head over ``answers``, the texts of its outputs."""

    settings: VqaSettings
    variant: str
    answers: tuple[str, ...]
    special: SpecialIds = dataclasses.field(default_factory=SpecialIds)
    mirrored: Mapping[int, int] = dataclasses.field(default_factory=dict)  # tokens, left and right

    name = "vqa"
    losses = ("answers",)
    criterion = Criterion(name="soft_score", highest=True)

    # Input

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the vocabulary's special tokens, and its left and right."""
        ids = words.get_vocab()
        special = SpecialIds(cls=ids[CLS], sep=ids[SEP], mask=ids[MASK])
        return dataclasses.replace(self, special=special, mirrored=find_sides(words))

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the head's size: an output for each answer."""
        return {"num_answers": len(self.answers)}

    def label_pieces(self, words: Tokenizer) -> list[list[int]]:
        """Returns the answers' word-piece ids (VL-BERT starts its outputs from them)."""
        encodings = words.encode_batch(list(self.answers), add_special_tokens=False)
        unknown = [words.get_vocab()[UNK]]
        return [encoding.ids or unknown for encoding in encodings]

    def examples(self, path: str) -> Examples:
        """Reads questions; their labels are their annotators' answers that are in the list."""
        return Examples(path=path, table=QUESTIONS, as_pairs=self._as_pairs, labels=LABELS)

    def _as_pairs(self, questions: pa.RecordBatch) -> pa.RecordBatch:
        rows = questions.select(["answers"]).to_pylist()
        labels = [soft_labels(row["answers"] or (), self.numbers) for row in rows]
        names = {"pair_id": "question_id", "text": "question"}
        columns = {name: questions.column(names.get(name, name)) for name in COLUMNS}
        columns["label_ids"] = pa.array([ids for ids, _ in labels], LABELS.field(0).type)
        columns["label_scores"] = pa.array([scores for _, scores in labels], LABELS.field(1).type)
        return pa.RecordBatch.from_pydict(columns)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Returns the index of each answer in the list."""
        return {answer: number for number, answer in enumerate(self.answers)}

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the list is the checkpoint's own."""
        return TaskRecord(name=self.name, labels=self.answers)

    @property
    def reads_mask(self) -> bool:
        """Returns whether the answer is read from a [MASK]."""
        return MODELS[self.variant].heads[self.name] == READS_MASK

    @property
    def form(self) -> TextForm:
        """Returns the form of a text: VL-BERT's question is followed by [MASK] and [SEP]."""
        return TextForm(apply=self._with_mask, adds=2) if self.reads_mask else AS_IT_IS

    def _with_mask(self, tokens: list[int]) -> list[int]:
        text_ids: list[int] = vqa_text([tokens[1:-1]], self.special).tokens[0].tolist()
        return text_ids

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the question with its image; a mirrored image swaps its left and right."""
        text = batches.text(visit.row)
        masked = text.tokens == self.special.mask if self.reads_mask else text.masked
        text = dataclasses.replace(text, masked=masked)
        sample = batches.example(visit.row, draws, text)
        if isinstance(sample, Undecodable):
            return sample
        if self.settings.mirror_words and sample.regions is not None and sample.regions.mirrored:
            text = mirrored_text(sample.text, self.mirrored)
            sample = dataclasses.replace(sample, text=text)
        return (sample,)

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
        lengths = torch.tensor([len(values) for values in ids])
        tensors = {
            f"{LABEL}rows": torch.repeat_interleave(torch.arange(len(ids)), lengths),
            f"{LABEL}ids": torch.tensor([n for values in ids for n in values], dtype=torch.int64),
            f"{LABEL}scores": torch.tensor([s for values in scores for s in values]),
            f"{LABEL}counts": lengths,
        }
        if self.reads_mask:
            questions = [sample.text.tokens[1:-3].tolist() for sample in samples]
            text = vqa_text(questions, self.special)
            assert text.answers is not None
            tensors |= {"segments": text.segments, f"{LABEL}answer_positions": text.answers}
        return tensors

    def _mirror_labels(self, ids: list[int], sample: Sample) -> list[int]:
        """Returns the labels of a mirrored image: "left" for "right", where the list has both."""
        if sample.regions is None or not sample.regions.mirrored:
            return ids
        return [self.numbers.get(swap_sides(self.answers[number]), number) for number in ids]

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of questions that teach something."""
        counts = batch.tensors[f"{LABEL}counts"]
        if self.settings.unlabelled and self.settings.loss == "binary":
            return {"answers": len(counts)}
        return {"answers": int((counts > 0).sum())}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "B A"]:
        """Returns the logits of the variant's head."""
        return HEADS[MODELS[self.variant].heads[self.name]](model, batch)

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

    def predict(self, outputs: Float[Tensor, "B A"], batch: Batch) -> list[int]:
        """Returns the index of the likeliest answer, the first of equal ones, to each question."""
        logits = outputs.float().cpu()
        by_id = dict(zip(batch.pair_ids, logits.numpy(), strict=True))
        require_finite(by_id, "--checkpoint")
        indices: list[int] = logits.argmax(-1).tolist()
        return indices

    def compute_score(self, outputs: Float[Tensor, "B A"], value: int) -> float:
        """Returns the answer's logit."""
        return float(outputs[0, value])

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns the mean soft score of the likeliest answers."""
        predictions = {prediction.row: int(prediction.value) for prediction in predicted}
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
            (table.pair_id(prediction.row), self.answers[prediction.value])
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
    recipe: TaskRecipe, examples: str, labels: Path | None, init: LoadedCheckpoint | None
) -> Vqa:
    """Returns the task of a recipe on a table of questions; ``labels`` is a file of answers."""
    require_variant(recipe)
    settings: VqaSettings = recipe.settings
    answers = select_answers(examples, labels, init, min_questions=settings.min_questions)
    report_missing_answers(examples, answers)
    return Vqa(settings=settings, variant=recipe.variant, answers=tuple(answers))
