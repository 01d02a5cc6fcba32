"""Defines the heads for fine-tuning InterBERT (arXiv:2003.13198, sec. 4).

B pairs, T tokens, P width of the pooled vector, C labels. Retrieval is fine-tuned with the
pretraining head for matching, in two classes over each candidate; VCR with one score for each
choice.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.config import (
    InterBertImagesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
)
from vlmill.models.interbert.model import InterBert
from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.heads import Classifier
from vlmill.models.layers.pair_heads import EncodedPair, ScoreHeads, side_by_side
from vlmill.models.positions import Positions


class InterBertTasks(ScoreHeads):
    """Holds the released heads over the fused pair, each region and each token."""

    def __init__(self, config: InterBertTasksConfig) -> None:
        trunk = config.trunk
        super().__init__(
            InterBert(trunk),
            (trunk.width, trunk.width),
            trunk.pooled_width,
            config.dropout,
            init_std=trunk.init_std,
        )
        self.config = config
        self.answer_head = nn.Linear(trunk.pooled_width, config.num_answers)
        init_bert(self.answer_head, trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> EncodedPair:
        """Returns the inputs of the heads; arguments as for the trunk."""
        encoded: EncodedPair = self.trunk(inputs, pack=pack)
        return encoded

    def answer_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B A"]:
        """Returns logits of each answer."""
        logits: Float[Tensor, "B A"] = self.answer_head(self.pooled_dropout(pooled))
        return logits


class InterBertText(nn.Module):
    """Classifies text without images: interaction over words, extraction, pooler, dropout, linear
    layer.

    The paper evaluates this on GLUE and does not specify the input without an image; [choice]
    without any region.
    """

    def __init__(self, config: InterBertTextConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = InterBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.trunk.pooled_width, config.num_labels)
        init_bert(self.head, config.trunk.init_std)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B C"]:
        """Returns logits of the labels; ``segments`` 0 and 1 for sentence pairs, 0 if not given.

        ``real``: the indices that ``token_mask`` marks.
        """
        batch, width = len(tokens), self.config.trunk.region_width
        table = self.trunk.text_embedding.word.weight
        pooled = self.trunk(
            VLInputs(
                tokens=tokens,
                token_mask=token_mask,
                region_features=table.new_zeros(batch, 0, width),
                region_locations=table.new_zeros(batch, 0, 5),
                region_mask=token_mask[:, :0],
                segments=torch.zeros_like(tokens) if segments is None else segments,
                real_tokens=real,
                real_regions=None if real is None else real[:0],
            ),
            pack=pack,
        ).pooled
        logits: Float[Tensor, "B C"] = self.head(self.dropout(pooled))
        return logits


class InterBertImages(nn.Module):
    """Classifies a text with one image or several by the concatenated pooled vectors.

    [choice] The paper has no such task: the head is that of 12-in-1 for two images
    (arXiv:1912.02315), a layer as wide as both vectors and a linear layer.
    """

    def __init__(self, config: InterBertImagesConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = InterBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        width = config.num_pictures * config.trunk.pooled_width
        self.head = Classifier(width, width, config.num_labels, config.trunk.act)
        init_bert(self.head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> EncodedPair:
        """Returns the input of the head; arguments as for the trunk."""
        encoded: EncodedPair = self.trunk(inputs, pack=pack)
        return encoded

    def label_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "examples C"]:
        """Returns logits over labels; each ``num_pictures`` consecutive rows are one example."""
        rows = side_by_side(self.dropout(pooled), self.config.num_pictures)
        logits: Float[Tensor, "examples C"] = self.head(rows)
        return logits
