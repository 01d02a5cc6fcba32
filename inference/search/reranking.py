"""Ranks the results of a search again, by the matching head of a model that reads text and image
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.vocabulary import SPECIALS, encode_texts
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.checks import (
    find_feeding,
    longest_text,
    select_ranking,
)
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import PairScorer, make_scorer, match_scores

Row = dict[str, Any]
BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Reranker:
    """Scores texts with the images of results."""

    loaded: LoadedCheckpoint
    scorer: PairScorer
    images: RegionImages | PixelImages
    device: torch.device
    longest: int  # tokens of a text

    def rerank(self, text: str, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Returns results by falling ``match``, the logit that text and image belong together.

        Those whose image cannot be read have none and come last, in their order.
        """
        tokens = encode_texts(self.loaded.tokenizer, [text], self.longest).tokens
        if len(tokens[0]) <= SPECIALS:
            return [dict(row) for row in rows]
        ids = list(dict.fromkeys(str(row["image_id"]) for row in rows if "image_id" in row))
        faults: Mapping[str, object] = self.images.missing(ids)
        good = [name for name in ids if name not in faults and self.images.fault(name) is None]
        logits = match_scores(
            self.scorer, tokens, good, self.images, device=self.device, batch_size=BATCH
        )
        matches = dict(zip(good, logits[:, 0].tolist(), strict=True))
        scored = [
            {"score": row["score"], "match": round(matches[row["image_id"]], 6), **row}
            for row in rows
            if row.get("image_id") in matches
        ]
        unscored = [dict(row) for row in rows if row.get("image_id") not in matches]
        return [*sorted(scored, key=lambda row: -row["match"]), *unscored]


def open_reranker(
    checkpoint: Path | str, count: int, *, regions: str | None, images: str | None, device: str
) -> Reranker:
    """Loads the model that ranks ``count`` results again, and opens its images.

    Raises InputError for a model without a matching head, and without the table that it reads.
    """
    loaded = load_checkpoint(find_checkpoint(checkpoint), "--reranker")
    select_ranking(loaded, count, "index")
    feeding = find_feeding(loaded)
    loaded.model.to(device_named(device))
    return Reranker(
        loaded=loaded,
        scorer=make_scorer(loaded.model, get_max_elements(feeding)),
        images=open_images(loaded, feeding, regions, images),
        device=device_named(device),
        longest=longest_text(loaded, feeding),
    )


def open_images(
    loaded: LoadedCheckpoint, feeding: Feeding, regions: str | None, images: str | None
) -> RegionImages | PixelImages:
    """Opens the regions or images that the model reads. Raises InputError if they are missing."""
    who = with_article(loaded.variant)
    if feeding.kind == "pixels":
        if images is None:
            raise InputError(f"--images is missing: --reranker is {who}, which reads images")
        return PixelImages(ImageReader(images), feeding)
    if regions is None:
        raise InputError(f"--regions is missing: --reranker is {who}, which reads regions")
    return RegionImages(
        RegionReader(regions), feeding, global_features=loaded.takes_global_features
    )
