"""Trains retrieval by separate encoders of texts and images (VLMo, arXiv:2111.02358, sec. 4.3).

Input: a caption and its image. Head: a vector of either, of length 1. Loss: the contrast of all
pairs of the step, in both directions, of all parts that it is computed in (accumulation) and of all
processes. Metric: recall among held-out images.

B pairs, H width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vlmill.models.vlmo.model import Vlmo
from vlmill.schemas.errors import InputError
from vlmill.train.devices.gather import gather_first
from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.objectives.cached_contrast import StepContrast, vectors_contrast
from vlmill.train.objectives.negatives import same_images
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.retrieval.base import RetrievalTask, measure_recalls, scores_of_vectors
from vlmill.train.tasks.retrieval.settings import RetrievalSettings
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import Prediction


def scaled_vectors(
    model: Vlmo, text: Float[Tensor, "B H"], image: Float[Tensor, "B H"]
) -> Float[Tensor, "B 2 H"]:
    """Returns vectors whose products are the contrast's logits; texts have the temperature."""
    return torch.stack([model.log_scale.exp().float() * text, image], dim=1)


def compute_contrast(
    vectors: Float[Tensor, "B 2 H"], image_keys: Tensor | None = None
) -> Float[Tensor, ""]:
    """Returns the contrast of scaled vectors; pairs of the same image in ``image_keys`` are not
    negatives of each other.
    """
    excluded = None if image_keys is None else same_images(image_keys)
    return vectors_contrast(vectors, excluded)


@dataclass(kw_only=True)
class DualEncoder(RetrievalTask):
    """Pulls matching caption-image pairs together and pushes all others apart."""

    settings: RetrievalSettings

    losses = ("contrast",)

    def __post_init__(self) -> None:
        """Sets the contrast of every pair of the step, computed in one part or several."""
        same = self.settings.same_picture_negatives
        self.contrast = StepContrast(same_picture_negatives=same)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns no tensors: the pairs themselves define which belong together."""
        return {}

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of pairs."""
        return {"contrast": len(batch.pair_ids)}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "B 2 H"]:
        """Returns the vectors of each text, times the temperature, and of each image."""
        vlmo, inputs = cast(Vlmo, model), batch.pixel_inputs(masked=False)
        inputs.check(vocab_size=vlmo.config.vocab_size)
        text = vlmo.text_vectors(inputs.tokens, inputs.token_mask, real=inputs.real_tokens)
        return scaled_vectors(vlmo, text, vlmo.image_vectors(inputs.pixels))

    def compute(self, outputs: Float[Tensor, "B 2 H"], batch: Batch) -> dict[str, Tensor]:
        """Returns the contrast with the pairs of all processes. Held-out pairs, whose numbers
        differ between processes, are contrasted with the batch's (:meth:`measure` has all).
        """
        keys = self._keys(batch.image_keys)
        if torch.is_grad_enabled():
            outputs = gather_first(outputs)
            keys = None if keys is None else gather_first(keys)
        return {"contrast": compute_contrast(outputs, keys)}

    def _keys(self, images: Tensor | None) -> Tensor | None:
        """Returns the keys by which pairs are not negatives of each other."""
        return None if self.settings.same_picture_negatives else images

    def predict(self, outputs: Float[Tensor, "B 2 H"], batch: Batch) -> list[NDArray[np.floating]]:
        """Returns the vectors of each pair, float32 [2, H]."""
        vectors = outputs.float().cpu().numpy()
        require_finite(dict(zip(batch.pair_ids, vectors, strict=True)), "--checkpoint")
        return list(vectors)

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns recalls in both directions, and the contrast of all held-out pairs. It replaces
        the contrast of the parts that they were computed in.
        """
        vectors = torch.from_numpy(np.stack([prediction.value for prediction in predicted]))
        keys = table.image_keys[[prediction.row for prediction in predicted]].view(np.int64)
        loss = float(compute_contrast(vectors, self._keys(torch.from_numpy(keys))))
        numbers = measure_recalls(*scores_of_vectors(table, predicted))
        return numbers | {"loss": loss, "contrast": loss}


def require_pairs(batch_size: int) -> None:
    """Raises InputError for steps of a single pair, whose negatives are the step's other pairs."""
    if batch_size < 2:
        raise InputError(
            f"stages.0.batch_size={batch_size}: a single pair has no negative; set it to at least 2"
        )


def dual_encoder(recipe: TaskRecipe) -> DualEncoder:
    """Returns the task of a recipe. Raises InputError for steps of a single pair, and a model
    without the contrast's head.
    """
    require_pairs(recipe.stages[0].batch_size)
    if not recipe.model.contrast:
        raise InputError("model.contrast=false: retrieval learns that head; set it to true")
    return DualEncoder(settings=recipe.settings)
