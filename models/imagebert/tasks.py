"""Defines ImageBERT's models for retrieval (Qi et al., arXiv:2001.07966, sec. 4.2) and for classes.

B pairs, H width, C labels. Retrieval is the paper's only task; its three losses are in `train`.
"""

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.imagebert.config import ImageBertClassifierConfig, ImageBertRetrievalConfig
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.inputs import VLInputs
from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.heads import Classifier
from vlmill.models.outputs import Encoded


class ImageBertRetrieval(nn.Module):
    """Scores a pair twice: the pretrained matching logit, and a score among candidates.

    The binary loss trains the first, which also ranks at the end (the paper's best, table 4). The
    multi-class and the triplet loss train the second, one layer for both [choice].
    """

    def __init__(self, config: ImageBertRetrievalConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = ImageBert(config.trunk)
        self.score_head = nn.Linear(config.trunk.width, 1)
        init_bert(self.score_head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs as in pretraining but without masking; raises the errors of `ImageBert`."""
        encoded: Encoded = self.trunk(inputs, pack=pack)
        return encoded

    def match_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns c(t), log odds that text and image belong together."""
        return self.trunk.match_logit(pooled)

    def rank_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns the score for ranking: `match_logit` or `scores`, as configured."""
        by_score = self.config.rank_by == "score"
        return self.scores(pooled) if by_score else self.match_logit(pooled)

    def scores(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns s(t), the score of the pair among candidates."""
        scores: Float[Tensor, "B 1"] = self.score_head(pooled)
        return scores[:, 0]


class ImageBertClassifier(nn.Module):
    """Classifies a text with an image by the hidden state of [CLS].

    [choice] The paper has no such task: the head is that of ViLBERT's and InterBERT's classifiers,
    a layer with layer norm and a linear layer.
    """

    def __init__(self, config: ImageBertClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = ImageBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        width = config.trunk.width
        self.head = Classifier(width, width, config.num_labels)
        init_bert(self.head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs as in pretraining but without masking; raises the errors of `ImageBert`."""
        encoded: Encoded = self.trunk(inputs, pack=pack)
        return encoded

    def label_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B C"]:
        """Returns logits over labels."""
        logits: Float[Tensor, "B C"] = self.head(self.dropout(pooled))
        return logits
