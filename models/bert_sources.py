"""What each variant takes from BERT, exactly as its paper or released code says; the rest is new.

One function a variant gives the links from its tensors to BERT's; `DRAWN` says how new weights are
drawn where it is not BERT's normal distribution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vlmill.models.bert import Bert
from vlmill.models.heads import Pooler
from vlmill.models.imagebert import ImageBert
from vlmill.models.interbert import InterBert
from vlmill.models.reference.bert import links as bert_links
from vlmill.models.reference.bert_names import (
    SEGMENTS,
    WORDS,
    block_links,
    mlm_head_links,
    text_embedding_links,
)
from vlmill.models.reference.keymap import Link, linked
from vlmill.models.single_stream import SingleStream
from vlmill.models.vilbert import Vilbert
from vlmill.models.vilbert_tasks import WeightNormLinear
from vlmill.models.vlbert import VlBert
from vlmill.models.vlbert_body import NUM_SPECIAL_WORDS, VlBertBody
from vlmill.models.vlbert_end_to_end import VlBertEndToEnd
from vlmill.models.vlbert_tasks import VlBertRefcoco, VlBertVcr, VlBertVqa
from vlmill.models.vlmo_encoder import VlmoEncoder

POOLER, NEXT_SENTENCE = "bert.pooler.dense", "cls.seq_relationship"
FIRST_WORDS = f"{WORDS}[:{NUM_SPECIAL_WORDS}]"
REPEATED = f"{SEGMENTS} x "


def derived(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What VL-BERT's code makes of BERT's tensors before it takes them, under names that say so.

    The first rows of the word table, and RoBERTa's only segment repeated.
    """
    made = {FIRST_WORDS: state[WORDS][:NUM_SPECIAL_WORDS]} if WORDS in state else {}
    segments = state.get(SEGMENTS)
    if segments is not None and len(segments) == 1:
        made |= {f"{REPEATED}{count}": segments.expand(count, -1) for count in (2, 3)}
    return made


def layers_from_bert(*lists: str, counts: Sequence[int]) -> list[Link]:
    """BERT's layers 0, 1, ... over lists of `PostNormBlock` with these names and lengths.

    The lists continue each other: the second begins with the layer after the first's last.
    """
    ours = [f"{name}.{i}" for name, count in zip(lists, counts, strict=True) for i in range(count)]
    return [
        link
        for number, block in enumerate(ours)
        for link in block_links(block, f"bert.encoder.layer.{number}")
    ]


def bert(model: Bert, state: Mapping[str, Tensor]) -> list[Link]:
    """Everything."""
    return bert_links(model)


def imagebert(model: ImageBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Text embeddings with both segments, layers, word head; the pooler where it is used.

    Regions' projections, their layer norm unless configured, and the heads of classes, features and
    matching are new (arXiv:2001.07966, sec. 3.1 and 4; the word head is [choice]).
    """
    norm = linked("region_embedding.norm", "bert.embeddings.LayerNorm")
    return [
        *text_embedding_links(),
        *layers_from_bert("layers", counts=[len(model.layers)]),
        *mlm_head_links(),
        *(linked("pooler.dense", POOLER) if isinstance(model.pooler, Pooler) else []),
        *(norm if model.config.image_norm_from_bert else []),
    ]


def vilbert(model: Vilbert, state: Mapping[str, Tensor]) -> list[Link]:
    """The text's stream and the word head (arXiv:1908.02265, sec. 3.2 and released code).

    The co-attention layers, their feed-forward parts of the text too, and the poolers are new.
    """
    return [
        *text_embedding_links(),
        *layers_from_bert("text_layers", counts=[len(model.text_layers)]),
        *mlm_head_links(),
    ]


def single_stream(model: SingleStream, state: Mapping[str, Tensor]) -> list[Link]:
    """All that has BERT's names in the released code.

    The pooler is among it, and the matching head, which starts from the next-sentence head. The
    regions' own type table is not.
    """
    return [
        *text_embedding_links(),
        *layers_from_bert("layers", counts=[len(model.layers)]),
        *linked("pooler.dense", POOLER),
        *mlm_head_links(),
        *linked("match_head", NEXT_SENTENCE),
    ]


def interbert(model: InterBert, state: Mapping[str, Tensor]) -> list[Link]:
    """BERT's layers run through interaction and on into the text's own module.

    At the released depth interaction is BERT's layers 0 to 5 and the text's module 6 to 11; at the
    paper's, interaction has all twelve, and both extraction modules are new.
    """
    counts = [len(model.interaction_layers), len(model.text_layers)]
    return [
        *text_embedding_links(),
        *layers_from_bert("interaction_layers", "text_layers", counts=counts),
        *mlm_head_links(),
    ]


def vlbert_body(body: VlBertBody, state: Mapping[str, Tensor]) -> list[Link]:
    """Text embeddings with two of the three segments, layers; the pooler where it is used.

    What belongs to regions, [END] and segment C are new (arXiv:1908.08530, sec. 3.4, released
    code). RoBERTa's one segment serves for A and B, and in a task's model for C.
    """
    rows = 3 if type(body) is VlBertBody and f"{REPEATED}3" in state else 2
    found = text_embedding_links(segment_rows=None if rows == 3 else 2)
    if f"{REPEATED}{rows}" in state:
        found = [
            replace(link, theirs=(f"{REPEATED}{rows}",)) if SEGMENTS in link.theirs else link
            for link in found
        ]
    return [
        *found,
        *layers_from_bert("layers", counts=[len(body.layers)]),
        *(linked("pooler.dense", POOLER) if isinstance(body.pooler, Pooler) else []),
        *([Link("special_words.weight", (FIRST_WORDS,))] if body.special_words else []),
    ]


def vlbert(model: VlBert, state: Mapping[str, Tensor]) -> list[Link]:
    """The body, the word head, and the next-sentence head where there is one for matching."""
    return [
        *vlbert_body(model, state),
        *mlm_head_links(),
        *(linked("match_head", NEXT_SENTENCE) if model.match_head is not None else []),
    ]


BERT_SOURCES: dict[type[nn.Module], Callable[[Any, Mapping[str, Tensor]], list[Link]]] = {
    Bert: bert,
    ImageBert: imagebert,
    InterBert: interbert,
    SingleStream: single_stream,
    Vilbert: vilbert,
    VlBertBody: vlbert_body,
    VlBert: vlbert,
}

PYTORCH, XAVIER = "PyTorch's default", "Xavier's uniform distribution"
_VLBERT = [("region_vectors.projection.*", PYTORCH)]
DRAWN: dict[type[nn.Module], Sequence[tuple[str, str]]] = {
    VlBertBody: _VLBERT,
    VlBert: _VLBERT,
    VlBertEndToEnd: [("cnn.*", PYTORCH)],
    VlmoEncoder: [("patch_embedding.projection.*", PYTORCH)],
    VlBertVqa: [("head.*", XAVIER)],
    VlBertRefcoco: [("head.*", XAVIER)],
    VlBertVcr: [("answer_head.*", XAVIER), ("category_head.*", XAVIER)],
    WeightNormLinear: [("direction", PYTORCH), ("length", "the direction's norm")],
}
