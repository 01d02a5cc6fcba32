"""Trains a model by pretraining objectives on masked pairs."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from accelerate import Accelerator
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import find_variant, get_variant
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.images.tokenizer import ImageTokenizer, ImageTokens, blank_tokens
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.objectives.cached_contrast import CachedContrast, StepContrast
from vlmill.train.objectives.contrast import contrast_vectors
from vlmill.train.objectives.negatives import draw_negatives, make_draw
from vlmill.train.objectives.pretraining import NamedLosses, Options, label_counts, list_weighted
from vlmill.train.recipes import get_training
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import CountLabels
from vlmill.train.run.validation import held_out_losses
from vlmill.train.settings.parts import Objectives
from vlmill.train.settings.spec import Stage


class PretrainingStep(nn.Module):
    """Wraps a model and its objectives in one module, for several devices and for compiling.

    ``names`` are the objectives with a weight, in the order of their shares.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Objectives,
        image_tokens: ImageTokens | None = None,
        *,
        same_picture_negatives: bool = False,
        pack: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.weights, self.pack = model, weights, pack
        self.image_tokens = image_tokens
        self.same_picture_negatives = same_picture_negatives
        variant = find_variant(model)
        self.names, self.losses = list_weighted(weights), get_training(variant).losses
        self.contrast: StepContrast | None = None
        if get_variant(variant).contrasts and (weights.itc or weights.itm):
            match = bool(weights.itm)
            self.contrast = StepContrast(same_picture_negatives=same_picture_negatives, match=match)

    def forward(
        self,
        batch: Batch,
        shares: Float[Tensor, " J"] | None = None,
        numbers: Float[Tensor, "2 B"] | None = None,
        cached: CachedContrast | None = None,
    ) -> tuple[Tensor, NamedLosses]:
        """Returns the weighted sum, and each loss unweighted.

        ``shares``, one for each of ``names``: the batch's share of all labels. They are a tensor,
        because a compiled step would be compiled again for every new number. Without them, returns
        the vectors of a batch's pairs [B, P, 2, H] and no loss: the first pass of a step in parts;
        the second pass has ``cached``. ``numbers`` sample VLMo's negatives; without them, PyTorch's
        generator does.
        """
        if shares is None:
            inputs, masked = batch.pixel_inputs(masked=False), batch.inputs.tokens
            masked_tokens = masked if self.weights.mlm else None
            vlmo = cast(Vlmo, self.model)
            return contrast_vectors(vlmo, inputs, masked_tokens, pack=self.pack), {}
        draw = draw_negatives if numbers is None else make_draw(numbers)
        options = Options(
            image_tokens=self.image_tokens,
            draw=draw,
            same_picture_negatives=self.same_picture_negatives,
            pack=self.pack,
            cached=cached,
        )
        unshared = self.losses(self.model, batch, self.weights, options)
        shares_by_name = dict(zip(self.names, shares.unbind(), strict=True))
        losses = {name: loss * shares_by_name[name] for name, loss in unshared.items()}
        terms = [loss * getattr(self.weights, name) for name, loss in losses.items()]
        return torch.stack(terms).sum(), losses


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
        return PretrainingStep(
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
