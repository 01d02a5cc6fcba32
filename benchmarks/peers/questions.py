"""Questions about images for a step of VQA: tables that a run reads, and its first batch.

B questions, T tokens, R regions with the full image in row 0, D feature width, A answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peers.works import CLS, MASK, SEP, WORDS
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import QUESTIONS, REGIONS
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.batch import Batch
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import (
    TaskInputs,
    open_task,
    open_task_runner,
    prepare_examples,
)
from vlmill.train.tasks.task import LearntTask
from vlmill.train.tasks.vqa.task import make_targets

ANSWERS = 3_129  # of VQA 2.0, in every published code
ANNOTATORS = 10
FEATURES = 2_048
SIDE_PX = 600
SPECIAL = ("[PAD]", *(f"[unused{number}]" for number in range(99)), "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True, kw_only=True)
class VqaWork:
    """B questions for a step, as a peer takes them; row 0 of the R regions is the full image.

    questions int64 [B, T] are word pieces without special ones, 0 behind them; features [B, R, D];
    locations [B, R, 5] as fractions; region_lengths int64 [B]; targets [B, A], the soft score of
    each answer.
    """

    questions: Tensor
    features: Tensor
    locations: Tensor
    region_lengths: Tensor
    targets: Tensor

    def word_pieces(self) -> list[list[int]]:
        """Returns each question's word pieces, without the padding."""
        return [row[row > 0].tolist() for row in self.questions]


@dataclass(frozen=True, kw_only=True)
class PreparedStep:
    """A run's step module with its first batch, as `train-vl finetune` computes it."""

    module: nn.Module
    task: LearntTask
    batch: Batch
    parameters: int

    def loss(self) -> Tensor:
        """The loss of the batch."""
        total: Tensor = self.module(self.batch, torch.ones(len(self.task.losses)))[0]
        return total

    def work(self) -> VqaWork:
        """The batch as a peer takes it."""
        inputs, special = self.batch.inputs, torch.tensor([CLS, SEP, MASK])
        rows = [row[(row > 0) & ~torch.isin(row, special)] for row in inputs.tokens]
        return VqaWork(
            questions=pad_sequence(rows, batch_first=True),
            features=inputs.region_features,
            locations=inputs.region_locations,
            region_lengths=inputs.region_mask.sum(1),
            targets=make_targets(self.batch.labels, torch.zeros(len(rows), ANSWERS)),
        )


def write_vocabulary(folder: Path) -> None:
    """Writes ``vocab.txt`` of BERT's size, whose special words have BERT's numbers."""
    words = [*SPECIAL, "[MASK]", *(f"w{number}" for number in range(WORDS - len(SPECIAL) - 1))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def write_questions(folder: Path, texts: Sequence[int], regions: Sequence[int]) -> TaskInputs:
    """Writes a question of so many tokens, with [CLS] and [SEP], about an image of so many
    regions, the full image among them, for each of ``texts``; and a vocabulary of BERT's size.
    """
    rng = np.random.default_rng(0)
    write_vocabulary(folder)
    answers = [f"answer {number}" for number in range(ANSWERS)]
    (folder / "answers.txt").write_text("\n".join(answers) + "\n", encoding="utf-8")
    rows, images = [], []
    for number, (length, count) in enumerate(zip(texts, regions, strict=True)):
        text = " ".join(f"w{word}" for word in rng.integers(0, 20_000, length - 2))
        said = [answers[at] for at in rng.integers(0, ANSWERS, 3)]
        rows.append(
            dict.fromkeys(QUESTIONS.schema.names)
            | {
                "question_id": str(number),
                "image_id": str(number),
                "question": text,
                "answer": said[0],
                "answers": said * (ANNOTATORS // len(said)) + said[:1],
                "split": "train",
                "source": "vqa2",
            }
        )
        corners = np.sort(rng.random((count - 1, 2, 2)) * SIDE_PX, axis=1).astype(np.float32)
        images.append(
            RegionRow(
                image_id=str(number),
                width=SIDE_PX,
                height=SIDE_PX,
                boxes=corners.reshape(-1, 4),
                features=np.maximum(rng.standard_normal((count - 1, FEATURES)), 0),
            )
        )
    write_shard(folder / "questions", QUESTIONS, rows)
    write_shard(
        folder / "regions",
        REGIONS,
        encode_regions(images, dtype="float16"),
        arrays=region_arrays(dtype="float16", feature_dim=FEATURES),
    )
    return TaskInputs(
        examples=str(folder / "questions"),
        regions=str(folder / "regions"),
        vocab=str(folder / "vocab.txt"),
        labels=folder / "answers.txt",
    )


def prepared_step(recipe: TaskRecipe, inputs: TaskInputs, output: Path) -> PreparedStep:
    """Opens the run of a recipe on the tables, with drawn weights, up to its first step."""
    task, sources = open_task(recipe, inputs, speaks=False)
    made = prepare_examples(recipe, sources, task, output, {}, fresh=False)
    assert made is not None  # a new folder holds no finished run
    words = Tokenizer.from_str(made.tokenizer)
    task = task.with_vocabulary(words)
    runner = open_task_runner(recipe, sources, output, words, task, make_accelerator(recipe))
    (run,) = runner.stages
    host = next(runner.learning.training_parts(run, 0))
    return PreparedStep(
        module=runner.learning.step(runner.model, run, torch.device("cpu")),
        task=task,
        batch=host.to("cpu"),
        parameters=sum(parameter.numel() for parameter in runner.model.parameters()),
    )
