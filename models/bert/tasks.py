"""Defines BERT as a classifier of texts and of text pairs (Devlin et al., arXiv:1810.04805, sec.
4.1).

B texts, T tokens, C labels.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.bert.config import BertTextConfig
from vlmill.models.bert.model import Bert
from vlmill.models.layers.blocks import init_bert
from vlmill.models.positions import Positions


class BertText(nn.Module):
    """Classifies with one linear layer on BERT's pooled vector."""

    def __init__(self, config: BertTextConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = Bert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.trunk.width, config.num_labels)
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
        """Returns logits of the labels; ``segments`` 0 and 1 for pairs, 0 if not given.

        ``real``: the indices that ``token_mask`` marks. Raises the errors of `Bert`.
        """
        encoded = self.trunk(
            tokens, token_mask, 0 if segments is None else segments, real=real, pack=pack
        )
        logits: Float[Tensor, "B C"] = self.head(self.dropout(encoded.pooled))
        return logits
