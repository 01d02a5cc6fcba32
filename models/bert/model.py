"""BERT (Devlin et al., arXiv:1810.04805): a text-only model built from the blocks that the variants
share.

B texts, T tokens, N labelled positions, H width, V vocabulary. The variants start from its weights,
and it is the baseline without images.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.bert.config import BertConfig, BertTextConfig
from vlmill.models.inputs import check_below, check_occupied, check_texts, readable
from vlmill.models.layers.blocks import config_layers, init_bert, run_layers
from vlmill.models.layers.embeddings import TextEmbedding
from vlmill.models.layers.heads import MlmHead, Pooler
from vlmill.models.layers.packing import make_layout
from vlmill.models.positions import Positions


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """Holds the last hidden states, with zeros at skipped padding, and the pooled first state."""

    text: Float[Tensor, "B T H"]
    pooled: Float[Tensor, "B H"]


class Bert(nn.Module):
    """Holds the encoder, its pooler and its two pretraining heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.text_embedding = TextEmbedding(
            config.vocab_size, config.num_positions, config.num_segments, width, config.dropout
        )
        self.layers = config_layers(config, config.num_layers)
        self.pooler = Pooler(width)
        self.mlm_head = MlmHead(width, config.vocab_size, config.act)
        self.next_sentence_head = nn.Linear(width, 2)
        init_bert(self, config.init_std)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | int = 0,
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> EncodedText:
        """Encodes texts (sec. 3); ``segments`` has one id per token, or one for all.

        ``real``: the indices that ``token_mask`` marks. A GPU packs only with them. Padding costs
        nothing and comes back as zeros; with ``pack=False`` it is computed too. Raises ValueError
        for texts without tokens or with more tokens than positions, for masks and segments of
        another shape and, on the CPU, for one empty text and for ids outside the tables.
        """
        check_texts(tokens, token_mask, segments)
        if readable(tokens):
            check_occupied("token_mask", token_mask, "token", "texts")
            check_below("tokens", tokens, self.config.vocab_size, "vocab_size")
            if isinstance(segments, Tensor):
                check_below("segments", segments, self.config.num_segments, "num_segments")
        layout = make_layout(token_mask, real, pack=pack)
        hidden = layout.pack(self.text_embedding(tokens, segments))
        hidden = run_layers(self.layers, hidden, layout)
        return EncodedText(text=hidden, pooled=self.pooler(hidden[:, 0]))

    def text_vectors(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B H"]:
        """Returns the texts' unit vectors, for search by inner product.

        [choice] A vector is the mean of the last hidden states, since masked words do not train the
        pooler.
        """
        hidden = self(tokens, token_mask, real=real, pack=pack).text.float()
        hidden = hidden.masked_fill(~token_mask[..., None], 0)
        return F.normalize(hidden.sum(1), dim=-1)

    def mlm_logits(self, text_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Returns logits over the vocabulary at the labelled positions (sec. 3.1, task 1)."""
        logits: Float[Tensor, "N V"] = self.mlm_head(text_hidden, self.text_embedding.word.weight)
        return logits

    def next_sentence_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Returns logits of two classes (sec. 3.1, task 2): 0 follows, 1 does not."""
        logits: Float[Tensor, "B 2"] = self.next_sentence_head(pooled)
        return logits


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
