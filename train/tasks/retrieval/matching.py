"""Scores every text with every image, by a matching head or by contrastive vectors.

I images, T texts, B texts of a batch, L tokens of a text, R regions, M patches, E elements of an
image, H width. A fusion model reads text and image together, so that all I x T pairs pass through
it; parts that depend on one of the two alone are computed once. Pairs are ranked by the matching
logit, not its sigmoid: it has the same order and does not saturate into ties.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from vlmill.models.layers.operators import unchanging_weights
from vlmill.models.layers.pair_heads import fuse
from vlmill.models.positions import Cells, first_cells
from vlmill.models.registry import find_variant, get_variant
from vlmill.models.rows import get_part
from vlmill.models.vilbert.model import Stream, Vilbert
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.sample import kept_lengths
from vlmill.train.tasks.retrieval.inputs import Images, TextBatch, text_batches
from vlmill.train.tasks.retrieval.score_store import ScoreCache

Advance = Callable[[int], None]
Logit = Callable[[Float[Tensor, "B P"]], Float[Tensor, " B"]]
TOKENS_KEPT = 1 << 17  # read texts that stay in memory: 0.4 GB at a width of 768


def ignore_progress(count: int) -> None:
    """Does nothing: a progress callback for callers that show none."""


@runtime_checkable
class PairScorer(Protocol):
    """Splits a model with a matching head into the work per text, per image and per pair."""

    @property
    def keeps_texts(self) -> bool:
        """Returns whether read texts are hidden states, which take memory."""
        ...

    def read_texts(self, texts: TextBatch) -> Any:
        """Computes the parts of a batch of texts that all images share."""
        ...

    def read_image(self, batch: Batch) -> Any:
        """Computes the parts of the one image of ``batch`` that all texts share."""
        ...

    def pool(self, texts: Any, image: Any) -> Float[Tensor, "B P"]:
        """Returns the head's inputs for each text of the batch with the image."""
        ...

    def match(self, texts: Any, image: Any) -> Float[Tensor, " B"]:
        """Returns logits that each text of the batch belongs to the image."""
        ...


@dataclass(frozen=True, kw_only=True)
class EncodeScorer:
    """Scores pairs of one stream, or with interaction from the first layer on; embeds regions once.

    ``model`` embeds and encodes; ``logit`` makes logits [B] of its pooled vectors [B, P].
    ``max_elements``: the number of elements that text and regions share, as in `Feeding`.
    """

    model: Any
    logit: Logit
    max_elements: int | None = None
    keeps_texts: ClassVar[bool] = False

    def read_texts(self, texts: TextBatch) -> TextBatch:
        """Returns only their ids."""
        return texts

    def read_image(self, batch: Batch) -> Float[Tensor, "1 E H"]:
        """Returns embedded regions without padding."""
        inputs = batch.inputs
        global_features = () if inputs.global_features is None else (inputs.global_features,)
        embedded: Float[Tensor, "1 E H"] = self.model.embed_regions(
            inputs.region_features, inputs.region_locations, *global_features
        )
        return embedded

    def pool(self, texts: TextBatch, image: Float[Tensor, "1 E H"]) -> Float[Tensor, "B P"]:
        """Encodes the pairs."""
        tokens, token_mask = texts.tokens, texts.token_mask
        regions = image.expand(len(tokens), -1, -1)
        region_mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        region_cells = torch.arange(region_mask.numel(), device=regions.device)
        real: Cells | None = Cells(texts.real, region_cells)
        if self.max_elements is not None:
            tokens, token_mask, region_mask = cut_texts(texts, image.shape[1], self.max_elements)
            regions, real = regions[:, : region_mask.shape[1]], None
        read = pooled_cells(token_mask, region_mask)
        encoded = self.model.encode(tokens, token_mask, regions, region_mask, real=real, read=read)
        pooled: Float[Tensor, "B P"] = encoded.pooled
        return pooled

    def match(self, texts: TextBatch, image: Float[Tensor, "1 E H"]) -> Float[Tensor, " B"]:
        """Computes the head's logits of the encoded pairs."""
        return self.logit(self.pool(texts, image))


def pooled_cells(text: Shaped[Tensor, "B L"], image: Shaped[Tensor, "B R"]) -> Cells:
    """Returns the positions that heads read, the first of either: the last layer is mostly
    omitted.
    """
    texts, images = (len(text), text.shape[1]), (len(image), image.shape[1])
    return Cells(first_cells(texts, text), first_cells(images, image))


def cut_texts(
    texts: TextBatch, num_regions: int, longest: int
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"], Bool[Tensor, "B R"]]:
    """Returns texts cut to the length that regions leave, [SEP] kept: ids, mask, regions' mask."""
    shares = {n: kept_lengths(n, num_regions, longest) for n in set(texts.lengths.tolist())}
    lengths = torch.tensor([shares[n] for n in texts.lengths.tolist()], device=texts.tokens.device)
    words, region_counts = lengths[:, :1], lengths[:, 1:]
    full_lengths = torch.from_numpy(texts.lengths).to(words)[:, None]
    ends = texts.tokens.gather(1, full_lengths - 1)
    tokens = texts.tokens.scatter(1, words - 1, ends)[:, : int(words.max())]
    positions = torch.arange(max(tokens.shape[1], num_regions), device=words.device)
    token_mask = positions[: tokens.shape[1]] < words
    return tokens, token_mask, positions[: int(region_counts.max())] < region_counts


@dataclass(frozen=True, kw_only=True)
class StreamScorer:
    """Scores pairs with ViLBERT: reads each text and image once, up to the first co-attention."""

    model: Vilbert
    logit: Logit
    keeps_texts: ClassVar[bool] = True

    def read_texts(self, texts: TextBatch) -> Stream:
        """Runs the text's own layers."""
        text = self.model.read_text(texts.tokens, texts.token_mask, real=texts.real)
        return self.model.projected_text(text).pooled_alone()

    def read_image(self, batch: Batch) -> Stream:
        """Runs the regions' own layers."""
        inputs = batch.inputs
        embedded = self.model.embed_regions(inputs.region_features, inputs.region_locations)
        return self.model.projected_regions(self.model.read_regions(embedded, inputs.region_mask))

    def pool(self, texts: Stream, image: Stream) -> Float[Tensor, "B P"]:
        """Runs the co-attention layers and the layers after them, and pools both streams."""
        count = texts.layout.shape[0]
        again = torch.zeros(count, dtype=torch.int64, device=image.hidden.device)
        return self.model.join(texts, image.take(again).pooled_alone()).pooled

    def match(self, texts: Stream, image: Stream) -> Float[Tensor, " B"]:
        """Computes the head's logits of the joined streams."""
        return self.logit(self.pool(texts, image))


@dataclass(frozen=True, kw_only=True)
class SeparateScorer:
    """Scores pairs with a ViLBERT without co-attention: no layer reads a text and an image, so each
    pair is only a product of two vectors.
    """

    model: Vilbert
    logit: Logit
    keeps_texts: ClassVar[bool] = True

    def read_texts(self, texts: TextBatch) -> Float[Tensor, "B P"]:
        """Returns the pooled vectors of the texts."""
        text = self.model.read_text(texts.tokens, texts.token_mask, real=texts.real)
        return self.model.pool_text(text.pooled_alone())

    def read_image(self, batch: Batch) -> Float[Tensor, "1 P"]:
        """Returns the pooled vector of the regions."""
        inputs = batch.inputs
        embedded = self.model.embed_regions(inputs.region_features, inputs.region_locations)
        regions = self.model.read_regions(embedded, inputs.region_mask)
        return self.model.pool_regions(regions.pooled_alone())

    def pool(
        self, texts: Float[Tensor, "B P"], image: Float[Tensor, "1 P"]
    ) -> Float[Tensor, "B P"]:
        """Fuses the vectors."""
        return fuse(texts, image, self.model.config.fusion)

    def match(
        self, texts: Float[Tensor, "B P"], image: Float[Tensor, "1 P"]
    ) -> Float[Tensor, " B"]:
        """Computes the head's logits of the fused vectors."""
        return self.logit(self.pool(texts, image))


@dataclass(frozen=True, kw_only=True)
class PixelScorer:
    """Scores pairs with VLMo's fusion encoder: an image's patches are embedded once."""

    model: Vlmo
    logit: Logit
    keeps_texts: ClassVar[bool] = False

    def read_texts(self, texts: TextBatch) -> TextBatch:
        """Returns only their ids."""
        return texts

    def read_image(self, batch: Batch) -> Float[Tensor, "1 M H"]:
        """Returns embedded patches."""
        assert batch.pixels is not None
        return self.model.encoder.embed_image(batch.pixels)

    def pool(self, texts: TextBatch, image: Float[Tensor, "1 M H"]) -> Float[Tensor, "B H"]:
        """Encodes the pairs."""
        encoder = self.model.encoder
        expanded = image.expand(len(texts.tokens), -1, -1)
        embedded = encoder.embed_text(texts.tokens)
        read = pooled_cells(texts.token_mask, expanded[..., 0])
        return encoder.fuse(embedded, texts.token_mask, expanded, real=texts.real, read=read).pooled

    def match(self, texts: TextBatch, image: Float[Tensor, "1 M H"]) -> Float[Tensor, " B"]:
        """Computes the head's logits of the encoded pairs."""
        return self.logit(self.pool(texts, image))


# Variants whose texts and images share more computation than embedded regions.
SCORERS: dict[str, Callable[..., PairScorer]] = {
    "encoded": EncodeScorer,
    "streams": StreamScorer,
    "pixels": PixelScorer,
}


def make_scorer(model: Any, max_elements: int | None = None) -> PairScorer:
    """Returns the scorer of a model that has, or contains a model that has, a ranking head."""
    variant = get_variant(find_variant(model))
    body, logit = variant.get_body(model), get_part(model, variant.match_logit)
    if max_elements is not None:  # a text's length depends on the image, so no text is read ahead
        return EncodeScorer(model=body, logit=logit, max_elements=max_elements)
    kind = SCORERS[get_variant(find_variant(body)).scores_pairs]
    if kind is StreamScorer and not body.config.co_attention:
        kind = SeparateScorer
    return kind(model=body, logit=logit)


@torch.inference_mode()
def match_scores(
    scorer: PairScorer,
    texts: Sequence[Ids],
    image_ids: Sequence[str],
    images: Images,
    *,
    device: torch.device,
    batch_size: int,
    advance: Advance = ignore_progress,
    chosen: NDArray[np.bool_] | None = None,
    cache: ScoreCache | None = None,
) -> NDArray[np.float32]:
    """Returns matching logits, float32 [I, T], of all or the ``chosen`` pairs [I, T]; else -inf.

    Images are read one after the other and never padded. Memory is the matrix, one batch of
    ``batch_size`` pairs, and :data:`TOKENS_KEPT` tokens of texts; where there are more, images are
    read again for the next ones. ``advance`` gets the number of pairs of each batch. Scores that
    ``cache`` has are not computed again, and new scores are added to it.
    """
    scores = np.full((len(image_ids), len(texts)), -np.inf, dtype=np.float32)
    cache = ScoreCache() if cache is None else cache
    next_pair = 0  # of the next pair, in the order of all
    num_pairs = scores.size if chosen is None else int(chosen.sum())
    with unchanging_weights(num_pairs):
        for rows, batches in _passes(scorer, texts, len(image_ids), batch_size, device, chosen):
            read: list[Any] = []
            for row in rows:
                columns, logits, image = list[NDArray[np.int64]](), list[Tensor](), None
                for number, batch in enumerate(batches):
                    begin, next_pair = next_pair, next_pair + len(batch.columns)
                    if next_pair <= len(cache.known):
                        scores[row, batch.columns] = cache.known[begin:next_pair]
                        continue
                    read = read or [scorer.read_texts(text_batch) for text_batch in batches]
                    if image is None:
                        image = scorer.read_image(images.batch([image_ids[row]]).to(device))
                    columns.append(batch.columns)
                    logits.append(scorer.match(read[number], image).float())
                    # A device computes while the next batch is requested, until its image ends.
                    if device.type == "cpu" or number == len(batches) - 1:
                        values = torch.cat(logits).cpu().numpy()
                        scores[row, np.concatenate(columns)] = values
                        cache.add(values)
                        columns, logits = [], []
                    advance(len(batch.columns))
    return scores


def _passes(
    scorer: PairScorer,
    texts: Sequence[Ids],
    num_images: int,
    batch_size: int,
    device: torch.device,
    chosen: NDArray[np.bool_] | None,
) -> Iterator[tuple[Sequence[int], list[TextBatch]]]:
    """Yields rows of images, each with the batches of texts that it is scored with."""
    if chosen is not None:
        for row, flags in enumerate(chosen):
            columns = np.flatnonzero(flags)
            chosen_texts = [texts[column] for column in columns.tolist()]
            yield [row], text_batches(chosen_texts, batch_size, device, columns)
        return
    every = text_batches(texts, batch_size, device)
    for part in _parts(every) if scorer.keeps_texts else [every]:
        yield range(num_images), part


def _parts(batches: Sequence[TextBatch]) -> Iterator[list[TextBatch]]:
    """Yields groups of batches with at most :data:`TOKENS_KEPT` tokens in all, or one batch."""
    part: list[TextBatch] = []
    for batch in batches:
        if part and sum(b.tokens.numel() for b in (*part, batch)) > TOKENS_KEPT:
            yield part
            part = []
        part.append(batch)
    if part:
        yield part
