"""BERT (Devlin et al., arXiv:1810.04805): text alone, on the blocks that the variants share.

B texts, T tokens, N labelled positions, H width, V vocabulary. What the variants start from, and
the baseline without pictures.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.checks import (
    check_below,
    check_heads,
    check_occupied,
    check_shares,
    check_sizes,
    check_std,
    check_texts,
    readable,
)
from vlmill.models.layers.blocks import INIT_STD, PostNormBlock, activation, init_bert
from vlmill.models.layers.embeddings import TextEmbedding
from vlmill.models.layers.heads import MlmHead, Pooler
from vlmill.models.layers.packing import layout_of
from vlmill.models.places import Places


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes and switches; defaults are BERT-base uncased (sec. 3, released configuration)."""

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    num_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    act: str = "gelu"
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self)
        check_std(self)
        check_shares(self, "dropout", "attention_dropout")
        activation(self.act)


def bert_base(**changes: Any) -> BertConfig:
    """12 layers of 768, 109.5 million parameters below the heads; ``changes`` are fields."""
    return BertConfig(**changes)


def bert_large(**changes: Any) -> BertConfig:
    """24 layers of 1024, 335.1 million parameters below the heads; ``changes`` are fields."""
    large = {"width": 1024, "num_layers": 24, "num_heads": 16, "intermediate_width": 4096}
    return BertConfig(**(large | changes))


def bert_small(**changes: Any) -> BertConfig:
    """A few million parameters, for trials on a CPU; ``changes`` are fields of the config."""
    small: dict[str, Any] = {
        "vocab_size": 4000,
        "width": 192,
        "num_layers": 4,
        "num_heads": 4,
        "intermediate_width": 768,
        "num_positions": 64,
        "attention_dropout": 0.0,  # PyTorch's fused CPU kernel has none
        "init_std": 0.07,  # 0.02 is made for a width of 768
    }
    return BertConfig(**(small | changes))


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """Last hidden states, zeros where padding was not computed, and the pooled first position."""

    text: Float[Tensor, "B T H"]
    pooled: Float[Tensor, "B H"]


class Bert(nn.Module):
    """The encoder, its pooler and its two pretraining heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.text_embedding = TextEmbedding(
            config.vocab_size, config.num_positions, config.num_segments, width, config.dropout
        )
        self.layers = nn.ModuleList(
            PostNormBlock(
                width,
                config.num_heads,
                config.intermediate_width,
                config.dropout,
                config.attention_dropout,
                config.act,
            )
            for _ in range(config.num_layers)
        )
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
        real: Places | None = None,
        pack: bool = True,
    ) -> EncodedText:
        """Encode texts (sec. 3); ``segments`` of each token, or one of all.

        ``real``: the places that ``token_mask`` marks, without which a GPU packs nothing.
        Padding costs nothing and comes back as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for no token or more than positions, for masks and segments of another
        shape and, on the CPU, for a text without a token and ids that the tables lack.
        """
        check_texts(tokens, token_mask, segments)
        if readable(tokens):
            check_occupied("token_mask", token_mask, "token", "texts")
            check_below("tokens", tokens, self.config.vocab_size, "vocab_size")
            if isinstance(segments, Tensor):
                check_below("segments", segments, self.config.num_segments, "num_segments")
        layout = layout_of(token_mask, real, pack=pack)
        hidden = layout.pack(self.text_embedding(tokens, segments))
        for layer in self.layers:
            hidden = layer(hidden, layout)
        hidden = layout.unpack(hidden)
        return EncodedText(text=hidden, pooled=self.pooler(hidden[:, 0]))

    def mlm_logits(self, text_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Masked language modelling (sec. 3.1, task 1): logits where labels are."""
        logits: Float[Tensor, "N V"] = self.mlm_head(text_hidden, self.text_embedding.word.weight)
        return logits

    def next_sentence_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Next sentence prediction (sec. 3.1, task 2): class 0 follows, class 1 does not."""
        logits: Float[Tensor, "B 2"] = self.next_sentence_head(pooled)
        return logits
