"""Defines VL-BERT with its pretraining heads (Su et al., arXiv:1908.08530, sec. 3.4).

N labelled positions, B samples, H width, V vocabulary, K region classes.
"""

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.heads import MlmHead, RegionHead
from vlmill.models.vlbert.config import VlBertConfig
from vlmill.models.vlbert.encoder import VlBertBody

BELONGS = 1  # the matching head's class of pairs that belong together


def _without(head: str) -> str:
    return (
        f"this VL-BERT was built with {head}=False and has no such head; build it with {head}=True"
    )


class VlBert(VlBertBody):
    """Holds the encoder with heads for masked words, masked regions and matching, as configured."""

    def __init__(self, config: VlBertConfig) -> None:
        super().__init__(config)
        width, act = config.width, config.act
        self.mlm_head = MlmHead(width, config.vocab_size, act) if config.masked_words else None
        self.class_head = (
            RegionHead(width, config.num_region_classes, act, norm=False)
            if config.masked_classes
            else None
        )
        self.match_head = nn.Linear(width, 2) if config.matching else None
        for head in (self.mlm_head, self.class_head, self.match_head):
            if head is not None:
                init_bert(head, config.init_std)

    def mlm_logits(self, text_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Returns logits over the vocabulary (masked language modelling with visual clues).

        Raises ValueError if the model has no such head.
        """
        if self.mlm_head is None:
            raise ValueError(_without("masked_words"))
        logits: Float[Tensor, "N V"] = self.mlm_head(text_hidden, self.text_embedding.word.weight)
        return logits

    @property
    def class_decoder(self) -> nn.Linear | None:
        """Returns the layer whose rows are the detector's classes; None without that head."""
        return None if self.class_head is None else self.class_head.decoder

    def region_class_logits(self, region_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N K"]:
        """Returns logits over the detector's classes (masked RoI classification).

        Raises ValueError if the model has no such head.
        """
        if self.class_head is None:
            raise ValueError(_without("masked_classes"))
        logits: Float[Tensor, "N K"] = self.class_head(region_hidden)
        return logits

    def region_features(self, region_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N D"]:
        """Raises ValueError, since this is not one of VL-BERT's tasks."""
        raise ValueError("VL-BERT does not regress masked features; give that objective weight 0")

    def match_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Returns logits of "does not belong" and "belongs" (sentence-image relationship).

        Raises ValueError if the model has no such head.
        """
        if self.match_head is None:
            raise ValueError(
                "this VL-BERT has no matching head (nor has the released one): build it with "
                "matching=True and pooler=True and train it"
            )
        logits: Float[Tensor, "B 2"] = self.match_head(pooled)
        return logits

    def match_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns log odds that text and image belong together."""
        logits = self.match_logits(pooled)
        return logits[:, BELONGS] - logits[:, 1 - BELONGS]
