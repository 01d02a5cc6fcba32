"""Trains a model by pretraining objectives on masked pairs."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import find_variant
from vlmill.train.loading.images.tokenizer import ImageTokenizer, ImageTokens, blank_tokens
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.objectives.pretraining import PretrainingStep, label_counts
from vlmill.train.recipes import get_training
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import CountLabels
from vlmill.train.run.validation import held_out_losses
from vlmill.train.settings.parts import Objectives
from vlmill.train.settings.spec import Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Trains a model on the objectives of a recipe's stages."""

    tokenizer: Tokenizer
    picture_tokenizer: ImageTokenizer | None = None
    criterion: Criterion = dataclasses.field(default_factory=Criterion)

    def batches(self, run: StageRun, *, training: bool, **common: Any) -> StageBatches:
        """Returns the stage's masked pairs."""
        return PretrainBatches(
            stage=get_stage(run), lexicon=Lexicon.from_tokenizer(self.tokenizer), **common
        )

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> PretrainingStep:
        """Returns the stage's objectives on ``model``."""
        tokenizer, stage = self.picture_tokenizer, get_stage(run)
        tokens: Callable[[Tensor], Tensor] | None = None
        if tokenizer is not None:
            blanks = partial(blank_tokens, stride=tokenizer.stride)
            tokens = blanks if blank else tokenizer.reader(device)
        return make_step(
            model,
            stage.objectives,
            tokens,
            same_picture_negatives=stage.same_picture_negatives,
        )

    def count_labels(self, run: StageRun) -> CountLabels:
        """Returns the labels of each objective."""
        return partial(label_counts, weights=get_stage(run).objectives)

    def measure(
        self, module: nn.Module, batches: StageBatches, examples: int, accelerator: Accelerator
    ) -> dict[str, float]:
        """Returns the losses of held-out pairs."""
        assert isinstance(batches, PretrainBatches)
        return held_out_losses(module, batches, examples, accelerator)


def get_stage(run: StageRun) -> Stage:
    """Returns the stage of a run of pretraining."""
    assert isinstance(run.stage, Stage)
    return run.stage


def make_step(
    model: nn.Module, weights: Objectives, image_tokens: ImageTokens | None = None, **options: bool
) -> PretrainingStep:
    """Returns the objectives on a model, by its variant's losses; ``options`` as `PretrainingStep`
    has them.
    """
    losses = get_training(find_variant(model)).losses
    return PretrainingStep(model, weights, losses, image_tokens, **options)
