"""Defines two-class matching and the heads around it for ViLBERT, its baseline and InterBERT.

B pairs, T tokens, R regions, N labelled positions; Ht and Hv widths of text and regions, P of
pooled vectors, V vocabulary, K region classes, D feature width. InterBERT's code comes from
ViLBERT's.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.config_checks import Fusion
from vlmill.models.inputs import VLInputs
from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import MlmHead, RegionHead
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

    ``act`` is the text's activation; the released code uses it in the region head too.
    ``regress_features``: the region head predicts features of ``region_width``, not classes. Class
    0 of matching is "belongs together". Embeddings belong to the variant.
    """

    text_embedding: TextEmbedding
    region_embedding: RegionEmbedding

    def __init__(
        self,
        *,
        vocab_size: int,
        widths: tuple[int, int],
        pooled_width: int,
        num_region_classes: int,
        region_width: int,
        regress_features: bool,
        act: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.regress_features = regress_features
        self.mlm_head = MlmHead(widths[0], vocab_size, act)
        outputs = region_width if regress_features else num_region_classes
        self.region_head = RegionHead(widths[1], outputs, act)
        self.match_dropout = nn.Dropout(dropout)
        self.match_head = nn.Linear(pooled_width, 2)

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


class ScoreHeads(nn.Module):
    """Scores a pair, each region and each token, from a trunk's outputs.

    ``dropout`` is applied to rows, and to pooled vectors only if ``drop_pooled``.
    """

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
        super().__init__()
        self.trunk = trunk
        self.dropout = nn.Dropout(dropout)
        self.pooled_dropout = nn.Dropout(dropout if drop_pooled else 0.0)
        self.score_head = nn.Linear(pooled_width, 1)
        self.token_head = nn.Linear(widths[0], 1)
        self.region_head = nn.Linear(widths[1], 1)
        for head in (self.score_head, self.token_head, self.region_head):
            init_bert(head, init_std)

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


def side_by_side(rows: Float[Tensor, "B P"], count: int) -> Float[Tensor, "examples countP"]:
    """Concatenates every ``count`` rows. Raises ValueError for remaining rows."""
    if len(rows) % count:
        raise ValueError(f"pooled has {len(rows)} rows, expected a multiple of {count} images")
    return rows.reshape(len(rows) // count, -1)


def check_modalities(
    inputs: VLInputs,
    *,
    need_text: bool,
    need_regions: bool,
    vocab_size: int,
    num_segments: int,
) -> None:
    """Raises ValueError for a batch without any token or region, if the variant needs one.

    On the CPU also for a single pair without one, and for invalid values (`VLInputs.check`).
    """
    num_tokens, num_regions = inputs.tokens.shape[1], inputs.region_features.shape[1]
    for name, number, needed in (
        ("tokens", num_tokens, need_text),
        ("region_features", num_regions, need_regions),
    ):
        if needed and not number:
            raise ValueError(
                f"{name} has shape {tuple(getattr(inputs, name).shape)}: the variant needs one "
                "position at least"
            )
    if not num_tokens and not num_regions:
        raise ValueError("tokens and region_features are both without any position")
    inputs.check(
        need_text=need_text,
        need_regions=need_regions,
        vocab_size=vocab_size,
        num_segments=num_segments,
    )
