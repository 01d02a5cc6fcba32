"""Checkpoints that fine-tuning starts from, with random weights, and what its runs log."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from tests.train.tasks.questions import ANSWERS, question, tiny

from vlmill.models import MODELS
from vlmill.models.bert.config import bert_small
from vlmill.models.registry import get_variant
from vlmill.runtime.console.log import read_log
from vlmill.train.checkpoints.files import CheckpointRecord, TrainingRecord, save_checkpoint
from vlmill.train.loading.vocabulary import train_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

CLOCK = ("samples_per_second", "mfu", "data_wait", "process_memory_bytes")


def logged(output: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without what the clock says."""
    lines = read_log(output / "log.jsonl")
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]


def vqa_start(folder: Path, name: str, *, pixels: int = 64) -> Path:
    """A checkpoint of what a recipe starts from: a model of its size, or a BERT of its layers.

    VLMo has seen images of ``pixels`` a side.
    """
    recipe = tiny(name)
    variant = recipe.starts_from[0]
    words = train_vocabulary([question(n)["question"] for n in range(3)] + list(ANSWERS), 60)
    sizes: dict[str, Any] = {"vocab_size": words.get_vocab_size()}
    body = get_variant(recipe.variant).get_body(recipe.model)
    if variant == "bert":
        same = ("width", "num_layers", "num_heads", "intermediate_width", "num_positions")
        config: Any = bert_small(**sizes, **{name: getattr(body, name) for name in same})
    elif variant == "vlmo":
        config = dataclasses.replace(body, **sizes, image_size=pixels)
    else:
        config = dataclasses.replace(body, **sizes, region_width=16, num_region_classes=7)
    return save_random(folder, variant, config, words)


def save_random(folder: Path, variant: str, config: Any, words: Tokenizer) -> Path:
    """A checkpoint of random weights, always the same ones."""
    torch.manual_seed(3)
    save_checkpoint(
        folder,
        MODELS[variant].model(config),
        CheckpointRecord(
            variant=variant,
            tokenizer=words,
            training=TrainingRecord(recipe="tiny", stage="pairs", step=1, num_pairs=1),
        ),
    )
    return folder
