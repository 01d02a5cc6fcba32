"""Ranks a test by a model that reads pairs, with its layers in bfloat16.

All pairs of 400 texts and 400 images are 160,000 passes: in bfloat16 they take half the time on a
CPU with AMX. The matching head stays in float32, so that scores do not round to ties.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from real.tables import Test
from vlmill.models.registry import get_variant
from vlmill.models.rows import get_part
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.loading.batch import Batch
from vlmill.train.tasks.retrieval.candidates import encode_texts, read_pairs
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.matching import EncodeScorer, match_scores
from vlmill.train.tasks.retrieval.metrics import retrieval_metrics

BATCH_SIZE = 200


@dataclass(frozen=True, kw_only=True)
class HalfScorer(EncodeScorer):
    """Scores pairs in bfloat16, with the head in float32."""

    def read_image(self, batch: Batch) -> Float[Tensor, "1 E H"]:
        """Returns embedded regions without padding."""
        fields = ("region_features", "region_locations")
        half = {name: getattr(batch.inputs, name).bfloat16() for name in fields}
        return super().read_image(replace(batch, inputs=replace(batch.inputs, **half)))

    def match(self, texts: Any, image: Float[Tensor, "1 E H"]) -> Float[Tensor, " B"]:
        """Returns the head's logits in float32."""
        return self.logit(self.pool(texts, image).float())


def half_scorer(loaded: LoadedCheckpoint, max_elements: int | None = None) -> HalfScorer:
    """Returns the scorer of a model, which it converts."""
    variant = get_variant(loaded.variant)
    body, logit = variant.get_body(loaded.model), get_part(loaded.model, variant.match_logit)
    body.bfloat16()
    for name in ("match_head", "score_head"):
        for owner in (body, loaded.model):
            if (head := getattr(owner, name, None)) is not None:
                head.float()
    return HalfScorer(model=body, logit=logit, max_elements=max_elements)


def rank_pairs(checkpoint: Path, test: Test, split: str | None = None) -> dict[str, float]:
    """Returns the recalls of a checkpoint on a test, in 0..1."""
    loaded = load_checkpoint(checkpoint)
    pairs = read_pairs(str(test.pairs), split).pairs
    image_ids = list(dict.fromkeys(str(pair.image_id) for pair in pairs))
    numbers = {image_id: number for number, image_id in enumerate(image_ids)}
    owners = np.array([numbers[str(pair.image_id)] for pair in pairs])
    feeding: Any = find_feeding(loaded)
    texts = [pair.text for pair in pairs]
    tokens = encode_texts(loaded.tokenizer, texts, longest_text(loaded, feeding)).tokens
    with Progress(total=len(texts) * len(image_ids), unit="pair", label="ranking") as progress:
        scores = match_scores(
            half_scorer(loaded, feeding.max_elements),
            tokens,
            image_ids,
            RegionImages(RegionReader(str(test.regions)), feeding),
            device=torch.device("cpu"),
            batch_size=BATCH_SIZE,
            advance=progress.advance,
        )
    return retrieval_metrics(scores, owners)
