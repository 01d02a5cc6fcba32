"""Links the weights of ImageBERT that start from BERT."""

from collections.abc import Mapping

from torch import Tensor

from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.convert.names import (
    POOLER,
    layers_from_bert,
    mlm_head_links,
    text_embedding_links,
)
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.layers.heads import Pooler


def links(model: ImageBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links text embeddings with both segments, layers, word head, and the pooler if used.

    Regions' projections, their layer norm unless configured, and the heads of classes, features and
    matching are new (arXiv:2001.07966, sec. 3.1 and 4; the word head is [choice]).
    """
    norm = link_module("region_embedding.norm", "bert.embeddings.LayerNorm")
    return [
        *text_embedding_links(),
        *layers_from_bert("layers", counts=[len(model.layers)]),
        *mlm_head_links(),
        *(link_module("pooler.dense", POOLER) if isinstance(model.pooler, Pooler) else []),
        *(norm if model.config.image_norm_from_bert else []),
    ]
