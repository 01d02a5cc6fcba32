"""Defines two-class matching and the heads around it for ViLBERT, its baseline and InterBERT.

B pairs, T tokens, R regions, N labelled positions; Ht and Hv widths of text and regions, P of
pooled vectors, V vocabulary, K region classes, D feature width, A answers, C labels. InterBERT's
code comes from ViLBERT's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.config_checks import Fusion
from vlmill.models.inputs import VLInputs
from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Classifier, MlmHead, RegionHead
from vlmill.models.outputs import Encoded

MASKED_LOGIT = -10000.0  # added to scores of padding, as in the released code


def fuse(
    text: Float[Tensor, "#B P"], regions: Float[Tensor, "#B P"], fusion: Fusion
) -> Float[Tensor, "B P"]:
    """Returns one vector per pair from the pooled vectors of both modalities.

    A single row belongs to all pairs of the other modality.
    """
    return text * regions if fusion == "mul" else text + regions


@dataclass(frozen=True, kw_only=True)
class EncodedPair(Encoded):
    """Adds the pooled vector of each modality before fusion; None for a missing modality.

    task: the hidden states of the task token, if there is one; ``text`` is without it.
    """

    text_pooled: Float[Tensor, "B P"] | None
    region_pooled: Float[Tensor, "B P"] | None
    task: Float[Tensor, "B Ht"] | None = None


class PairHeads(nn.Module):
    """Holds the pretraining heads: masked words, masked regions, matching in two classes.

    The text's activation is that of the region head too, as in the released code.
    ``regress_features``: the region head predicts features, not classes. Class 0 of matching is
    "belongs together". Embeddings and layers belong to the variant.
    """

    needs_text, needs_regions = True, False  # in each batch
    text_embedding: TextEmbedding
    region_embedding: RegionEmbedding
    embed_regions: Callable[..., Tensor]
    encode: Callable[..., EncodedPair]

    def __init__(
        self,
        config: Any,
        widths: tuple[int, int],
        pooled_width: int,
        *,
        regress_features: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config
        self.regress_features = regress_features
        self.mlm_head = MlmHead(widths[0], config.vocab_size, config.act)
        outputs = config.region_width if regress_features else config.num_region_classes
        self.region_head = RegionHead(widths[1], outputs, config.act)
        self.match_dropout = nn.Dropout(dropout)
        self.match_head = nn.Linear(pooled_width, 2)

    def forward(self, inputs: VLInputs, *, pack: bool = True, **more: Any) -> EncodedPair:
        """Encodes pairs; ``more`` are further arguments of the variant's ``encode``.

        Padding costs nothing and is returned as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for a batch without any token or region, or without what the variant
        needs, for more tokens than positions, another feature width and, on the CPU, a single pair
        without what the variant needs and invalid values (`VLInputs.check`).
        """
        self._check(inputs)
        regions = self.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            real=inputs.real_regions if pack else None,
            **self.region_options(inputs),
        )
        return self.encode(
            inputs.tokens,
            inputs.token_mask,
            regions,
            inputs.region_mask,
            segments=inputs.segments,
            real=inputs.real,
            read=inputs.read,
            pack=pack,
            **more,
        )

    def region_options(self, inputs: VLInputs) -> dict[str, Any]:
        """Returns further arguments of the variant's ``embed_regions``."""
        return {}

    def _check(self, inputs: VLInputs) -> None:
        needs = {"tokens": self.needs_text, "region_features": self.needs_regions}
        shapes = {name: tuple(getattr(inputs, name).shape) for name in needs}
        for name, shape in shapes.items():
            if needs[name] and not shape[1]:
                raise ValueError(
                    f"{name} has shape {shape}: the variant needs one position at least"
                )
        if not any(shape[1] for shape in shapes.values()):
            raise ValueError("tokens and region_features are both without any position")
        inputs.check(
            need_text=self.needs_text,
            need_regions=self.needs_regions,
            vocab_size=self.config.vocab_size,
            num_segments=self.config.num_segments,
        )

    def mlm_logits(self, text_hidden: Float[Tensor, "N Ht"]) -> Float[Tensor, "N V"]:
        """Returns logits over the vocabulary at labelled positions (masked language modelling)."""
        logits: Float[Tensor, "N V"] = self.mlm_head(text_hidden, self.text_embedding.word.weight)
        return logits

    @property
    def class_decoder(self) -> nn.Linear | None:
        """Returns the layer whose rows are the detector's classes; None if the head regresses."""
        return None if self.regress_features else self.region_head.decoder

    def region_class_logits(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N K"]:
        """Returns masked regions' logits over the detector's classes, background first.

        Raises ValueError if the head regresses features.
        """
        if self.regress_features:
            raise ValueError(
                "regress_features=True: the region head gives features, no class logits; build "
                "the model with regress_features=False"
            )
        logits: Float[Tensor, "N K"] = self.region_head(region_hidden)
        return logits

    def region_features(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N D"]:
        """Returns the predicted features of masked regions.

        Raises ValueError if the head predicts classes.
        """
        if not self.regress_features:
            raise ValueError(
                "regress_features=False: the region head gives class logits, no features; build "
                "the model with regress_features=True"
            )
        features: Float[Tensor, "N D"] = self.region_head(region_hidden)
        return features

    def match_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B 2"]:
        """Returns logits of "belongs together" and of "does not" (image-text matching)."""
        logits: Float[Tensor, "B 2"] = self.match_head(self.match_dropout(pooled))
        return logits

    def match_logit(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Returns log odds of "belongs together" (image-text matching)."""
        logits = self.match_logits(pooled)
        return logits[:, 0] - logits[:, 1]

    @torch.no_grad()
    def standardise_regions(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Initialises new weights as if features had mean 0 and variance 1, given their statistics.

        Regression of masked features starts from ``mean``; see `RegionEmbedding.standardise`.
        """
        self.region_embedding.standardise(mean, std)
        if self.regress_features:
            self.region_head.decoder.bias.add_(mean)


class OnTrunk(nn.Module):
    """Holds a pretrained model whose outputs the heads of a task read."""

    def __init__(self, trunk: PairHeads) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, inputs: VLInputs, *, pack: bool = True, **more: Any) -> EncodedPair:
        """Returns the inputs of the heads; arguments as for the trunk."""
        encoded: EncodedPair = self.trunk(inputs, pack=pack, **more)
        return encoded


class ScoreHeads(OnTrunk):
    """Scores a pair, each region and each token, from a trunk's outputs, and answers questions.

    ``dropout`` is applied to rows, and to pooled vectors only if ``drop_pooled``. The head of
    answers belongs to the model.
    """

    answer_head: nn.Module

    def __init__(
        self,
        trunk: PairHeads,
        widths: tuple[int, int],
        pooled_width: int,
        dropout: float,
        *,
        init_std: float,
        drop_pooled: bool = True,
    ) -> None:
        super().__init__(trunk)
        self.dropout = nn.Dropout(dropout)
        self.pooled_dropout = nn.Dropout(dropout if drop_pooled else 0.0)
        self.score_head = nn.Linear(pooled_width, 1)
        self.token_head = nn.Linear(widths[0], 1)
        self.region_head = nn.Linear(widths[1], 1)
        for head in (self.score_head, self.token_head, self.region_head):
            init_bert(head, init_std)

    def answer_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B A"]:
        """Returns VQA's independent logits of each answer."""
        logits: Float[Tensor, "B A"] = self.answer_head(self.pooled_dropout(pooled))
        return logits

    def scores(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Returns scores of the match of text and image: VCR's choices, retrieval's candidates."""
        scores: Float[Tensor, "B 1"] = self.score_head(self.pooled_dropout(pooled))
        return scores[:, 0]

    def region_scores(
        self, regions: Float[Tensor, "B R Hv"], region_mask: Bool[Tensor, "B R"]
    ) -> Float[Tensor, "B R"]:
        """Returns logits of each region being the referent (RefCOCO+); padding is 10000 lower."""
        scores: Float[Tensor, "B R 1"] = self.region_head(self.dropout(regions))
        return scores[..., 0] + MASKED_LOGIT * ~region_mask

    def token_scores(self, text: Float[Tensor, "B T Ht"]) -> Float[Tensor, "B T"]:
        """Returns a logit for each token; no task of the releases uses it."""
        scores: Float[Tensor, "B T 1"] = self.token_head(self.dropout(text))
        return scores[..., 0]


class PairClassifier(OnTrunk):
    """Classifies a text with one image or several by the concatenated pooled vectors [width].

    ``config`` has the numbers of images and of labels and the rate of dropout.
    """

    def __init__(self, config: Any, trunk: PairHeads, width: int) -> None:
        super().__init__(trunk)
        self.config = config
        width *= config.num_pictures
        self.dropout = nn.Dropout(config.dropout)
        self.head = Classifier(width, width, config.num_labels, config.trunk.act)
        init_bert(self.head, config.trunk.init_std)

    def label_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "examples C"]:
        """Returns logits over labels; each ``num_pictures`` consecutive rows are one example."""
        rows = side_by_side(self.dropout(pooled), self.config.num_pictures)
        logits: Float[Tensor, "examples C"] = self.head(rows)
        return logits


def side_by_side(rows: Float[Tensor, "B P"], count: int) -> Float[Tensor, "examples countP"]:
    """Concatenates every ``count`` rows. Raises ValueError for remaining rows."""
    if len(rows) % count:
        raise ValueError(f"pooled has {len(rows)} rows, expected a multiple of {count} images")
    return rows.reshape(len(rows) // count, -1)
