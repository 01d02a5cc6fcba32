"""Links the weights of ViLBERT and of its baseline that start from BERT."""

from collections.abc import Mapping

from torch import Tensor

from vlmill.models.convert import names
from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import WeightNormLinear

NEW_WEIGHTS = {WeightNormLinear: [("direction", names.PYTORCH), ("length", "the direction's norm")]}


def vilbert_links(model: Vilbert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the text's stream and the word head (arXiv:1908.02265, sec. 3.2, released code).

    The co-attention layers, including their feed-forward parts of the text, and the poolers are
    new.
    """
    return [
        *names.text_embedding_links(),
        *names.layers_from_bert("text_layers", counts=[len(model.text_layers)]),
        *names.mlm_head_links(),
    ]


def single_stream_links(model: SingleStream, state: Mapping[str, Tensor]) -> list[Link]:
    """Links all tensors that have BERT's names in the released code.

    They include the pooler and the matching head, which starts from the next-sentence head, but not
    the regions' own type table.
    """
    return [
        *names.text_embedding_links(),
        *names.layers_from_bert("layers", counts=[len(model.layers)]),
        *link_module("pooler.dense", names.POOLER),
        *names.mlm_head_links(),
        *link_module("match_head", names.NEXT_SENTENCE),
    ]
