"""Reads and writes BERT's own checkpoints: Hugging Face's and the original layout."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from vlmill.models.bert.config import BertConfig
from vlmill.models.bert.model import Bert
from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.convert.names import block_links, canonical, mlm_head_links, text_embedding_links
from vlmill.models.layers.blocks import LAYER_NORM_EPS

DECODER_BIAS = "cls.predictions.decoder.bias"  # a copy of the word head's bias in newer files

# Keys of bert_config.json and of transformers' config.json, and our fields.
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "act",
    "initializer_range": "init_std",
}


def configure(config: Mapping[str, Any]) -> BertConfig:
    """Reads a published configuration. Raises ValueError for a network other than BERT."""
    kind, eps = config.get("model_type", "bert"), config.get("layer_norm_eps", LAYER_NORM_EPS)
    if kind != "bert" or eps != LAYER_NORM_EPS:
        raise ValueError(
            f"model_type={kind!r} with layer_norm_eps={eps}: family bert is BERT itself, with "
            f"{LAYER_NORM_EPS}; other networks' weights can only start one of ours"
        )
    if "hidden_size" not in config:
        raise ValueError("no hidden_size: expected BERT's bert_config.json or config.json")
    return BertConfig(**{field: config[key] for key, field in FIELDS.items() if key in config})


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the names of `transformers`' BertForPreTraining."""
    assert isinstance(model, Bert)
    keymap = [
        *text_embedding_links(),
        *link_module("pooler.dense", "bert.pooler.dense"),
        *mlm_head_links(tied_bias=(DECODER_BIAS,)),
        *link_module("next_sentence_head", "cls.seq_relationship"),
    ]
    for number in range(len(model.layers)):
        keymap += block_links(f"layers.{number}", f"bert.encoder.layer.{number}")
    return keymap


IGNORED = ("bert.embeddings.position_ids",)  # a buffer that counts 0, 1, 2, ...

BERT = Family(
    configs=(BertConfig,),
    configure=configure,
    build=Bert,
    links=links,
    prepare=canonical,
    ignored=IGNORED,
)
