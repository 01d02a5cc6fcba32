"""Defines the heads for fine-tuning ViLBERT and its baseline (arXiv:1908.02265, sec. 3.3).

B pairs, T tokens, R regions, Ht and Hv widths of text and regions, P of the pooled vector. A head
is computed when its method is called; the released code computes all of them every time. There are
three sets: the heads of the paper's release (`VilbertTasks`), the heads of the 12-in-1 release
(`Vilbert12in1`), and the classifier of mmf's checkpoints (`VilbertClassifier`).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.heads import Classifier
from vlmill.models.layers.pair_heads import PairClassifier, PairHeads, ScoreHeads, side_by_side
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream


class WeightNormLinear(nn.Module):
    """Computes a linear layer with W = g V / ||V|| over the whole matrix (arXiv:1602.07868, eq. 2).

    It is initialised as PyTorch's linear layer, with g = ||V||, and with a bias of 0, as in the
    released code, whose initialisation skips derived tensors.
    """

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        start = nn.Linear(width, outputs).weight.detach()
        self.direction = nn.Parameter(start)
        self.length = nn.Parameter(start.norm())
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N C"]:
        """Applies the layer to each row."""
        weight = self.direction * (self.length / self.direction.norm())
        return F.linear(hidden, weight, self.bias)


def build_trunk(
    config: VilbertConfig | SingleStreamConfig,
) -> tuple[PairHeads, tuple[int, int], int]:
    """Builds ViLBERT or its baseline; also returns the widths of its streams and pooled vector."""
    if isinstance(config, VilbertConfig):
        return Vilbert(config), (config.width, config.visual_width), config.co_width
    return SingleStream(config), (config.width, config.width), config.width


class VilbertTasks(ScoreHeads):
    """Holds the heads of the paper's release, over ViLBERT or the single-stream baseline."""

    def __init__(self, config: VilbertTasksConfig) -> None:
        trunk, widths, pooled = build_trunk(config.trunk)
        super().__init__(
            trunk,
            widths,
            pooled,
            config.dropout,
            drop_pooled=isinstance(trunk, Vilbert),
            init_std=config.trunk.init_std,
        )
        self.config = config
        self.answer_head = nn.Sequential(
            WeightNormLinear(pooled, 2 * pooled),
            nn.ReLU(),
            nn.Dropout(config.classifier_dropout),
            WeightNormLinear(2 * pooled, config.num_answers),
        )


class Vilbert12in1(ScoreHeads):
    """Holds 12-in-1's heads: answers to VQA and GQA, pairs of images, entailment."""

    def __init__(self, config: Vilbert12in1Config) -> None:
        trunk, pooled = config.trunk, config.trunk.co_width
        widths = (trunk.width, trunk.visual_width)
        super().__init__(Vilbert(trunk), widths, pooled, config.dropout, init_std=trunk.init_std)
        self.config = config
        self.answer_head = Classifier(pooled, 2 * pooled, config.num_answers)
        self.gqa_head = Classifier(pooled, 2 * pooled, config.num_gqa_answers)
        self.two_pictures_head = Classifier(2 * pooled, 2 * pooled, 2)
        self.entailment_head = nn.Linear(pooled, 3)
        for head in (self.answer_head, self.gqa_head, self.two_pictures_head, self.entailment_head):
            init_bert(head, trunk.init_std)

    def gqa_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B G"]:
        """Returns GQA's logits over the answers."""
        logits: Float[Tensor, "B G"] = self.gqa_head(self.pooled_dropout(pooled))
        return logits

    def two_image_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "half 2"]:
        """Returns NLVR2's logits; rows 2i and 2i + 1 are one statement's two images.

        Raises ValueError for an odd number of rows.
        """
        logits: Float[Tensor, "half 2"] = self.two_pictures_head(
            self.pooled_dropout(side_by_side(pooled, 2))
        )
        return logits

    def entailment_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B 3"]:
        """Returns visual entailment's logits of three classes."""
        logits: Float[Tensor, "B 3"] = self.entailment_head(self.pooled_dropout(pooled))
        return logits


class VilbertClassifier(PairClassifier):
    """Holds the classifier of mmf's fine-tuned checkpoints, on the pooled vector of ViLBERT or, by
    our choice, of the single-stream baseline.
    """

    def __init__(self, config: VilbertClassifierConfig) -> None:
        trunk, _, pooled = build_trunk(config.trunk)
        super().__init__(config, trunk, pooled)
