"""The variants that read regions have these in common, for training and evaluation.

B pairs, T tokens, R regions, N labelled positions; Ht, Hv, P widths that depend on the variant.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Holds last hidden states of text and regions, and what the matching head takes.

    Zeros where it was not computed: padding, and what nobody reads (`VLInputs.read`).
    """

    text: Float[Tensor, "B T Ht"]
    regions: Float[Tensor, "B R Hv"]
    pooled: Float[Tensor, "B P"]


@runtime_checkable
class RegionModel(Protocol):
    """Encodes text and regions, and has the pretraining heads.

    Heads are applied to the labelled positions only: whoever calls them picks the rows.
    """

    def __call__(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs; ``pack=False`` computes padding too."""
        ...

    def mlm_logits(self, text_hidden: Float[Tensor, "N Ht"]) -> Float[Tensor, "N V"]:
        """Gives logits over the vocabulary."""
        ...

    @property
    def class_decoder(self) -> nn.Linear | None:
        """Gives the layer whose rows are the detector's classes; None without that head."""
        ...

    def region_class_logits(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N K"]:
        """Gives logits over the detector's classes."""
        ...

    def region_features(self, region_hidden: Float[Tensor, "N Hv"]) -> Float[Tensor, "N D"]:
        """Regresses masked features."""
        ...

    def match_logit(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Gives log odds that text and image belong together.

        Of a head with two classes the difference of their logits: the sigmoid of it is the
        softmax's probability, and its binary cross-entropy the two-way one.
        """
        ...
