"""Which weights of ViLBERT and of its baseline start from BERT."""

from collections.abc import Mapping

from torch import Tensor

from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.convert.names import (
    NEXT_SENTENCE,
    POOLER,
    PYTORCH,
    layers_from_bert,
    mlm_head_links,
    text_embedding_links,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import WeightNormLinear

NEW_WEIGHTS = {WeightNormLinear: [("direction", PYTORCH), ("length", "the direction's norm")]}


def vilbert_links(model: Vilbert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the text's stream and the word head (arXiv:1908.02265, sec. 3.2, released code).

    The co-attention layers, their feed-forward parts of the text too, and the poolers are new.
    """
    return [
        *text_embedding_links(),
        *layers_from_bert("text_layers", counts=[len(model.text_layers)]),
        *mlm_head_links(),
    ]


def single_stream_links(model: SingleStream, state: Mapping[str, Tensor]) -> list[Link]:
    """Links all that has BERT's names in the released code.

    The pooler is among it, and the matching head, which starts from the next-sentence head. The
    regions' own type table is not.
    """
    return [
        *text_embedding_links(),
        *layers_from_bert("layers", counts=[len(model.layers)]),
        *link_module("pooler.dense", POOLER),
        *mlm_head_links(),
        *link_module("match_head", NEXT_SENTENCE),
    ]
