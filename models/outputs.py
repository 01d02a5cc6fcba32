"""Defines the outputs and methods that the variants on regions share, for training and evaluation.

B pairs, T tokens, R regions, N labelled positions; Ht, Hv, P widths that depend on the variant.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Holds the last hidden states of text and regions, and the input of the matching head.

    Positions that were not computed are zeros: padding, and unread positions (`VLInputs.read`).
    """

    text: Float[Tensor, "B T Ht"]
    regions: Float[Tensor, "B R Hv"]
    pooled: Float[Tensor, "B P"]


@runtime_checkable
class RegionModel(Protocol):
    """Defines a model that encodes text and regions and has the pretraining heads.

    Heads are applied to the labelled positions only: the caller selects the rows.
    """

    def __call__(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs; ``pack=False`` computes padding too."""
        ...

    def mlm_logits(self, text_hidden: Float[Tensor, "N Ht"]) -> Float[Tensor, "N V"]:
        """Returns logits over the vocabulary."""
        ...

    @property
    def class_decoder(self) -> nn.Linear | None:
        """Returns the layer whose rows are the detector's classes; None without that head."""
        ...

    def region_class_logits(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N K"]:
        """Returns logits over the detector's classes."""
        ...

    def region_features(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N D"]:
        """Regresses masked features."""
        ...

    def match_logit(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Returns log odds that text and image belong together.

        For a head with two classes this is the difference of their logits: its sigmoid equals the
        softmax's probability, and its binary cross-entropy equals the two-class one.
        """
        ...
