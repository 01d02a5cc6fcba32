"""Fine-tuning from BERT, in bfloat16, on pictures larger than in pretraining."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tasks.finetuning.starts import logged, pretrained
from tests.train.tasks.questions import ANSWERS, question, tiny, world

from vlmill.models import MODELS
from vlmill.models.bert.config import BertConfig
from vlmill.train.checkpoints.files import TrainingRecord, load_checkpoint, save_checkpoint
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.evaluating.opened import EvaluationOptions
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
