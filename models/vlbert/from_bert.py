"""Links the weights of VL-BERT that start from BERT, and defines how the others are drawn."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from vlmill.models.convert import names
from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.layers.heads import Pooler
from vlmill.models.vlbert.config import NUM_SPECIAL_WORDS
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.end_to_end import VlBertEndToEnd, VlBertRefcocoEndToEnd, VlBertVcrEndToEnd
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa

FIRST_WORDS = f"{names.WORDS}[:{NUM_SPECIAL_WORDS}]"
REPEATED = f"{names.SEGMENTS} x "
XAVIER = "Xavier's uniform distribution"
NEW_WEIGHTS = {
    VlBertBody: [("region_vectors.projection.*", names.PYTORCH)],
    VlBert: [("region_vectors.projection.*", names.PYTORCH)],
    VlBertEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertRefcocoEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertVcrEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertVqa: [("head.*", XAVIER)],
    VlBertRefcoco: [("head.*", XAVIER)],
    VlBertVcr: [("answer_*", XAVIER), ("category_head.*", XAVIER)],
}


def derive_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors that VL-BERT's code derives from BERT's, under descriptive names.

    They are the first rows of the word table, and RoBERTa's only segment repeated.
    """
    tensors = {FIRST_WORDS: state[names.WORDS][:NUM_SPECIAL_WORDS]} if names.WORDS in state else {}
    segments = state.get(names.SEGMENTS)
    if segments is not None and len(segments) == 1:
        tensors |= {f"{REPEATED}{count}": segments.expand(count, -1) for count in (2, 3)}
    return tensors


def body_links(body: VlBertBody, state: Mapping[str, Tensor]) -> list[Link]:
    """Links text embeddings with two of three segments, layers, and the pooler if used.

    The tensors of regions, [END] and segment C are new (arXiv:1908.08530, sec. 3.4, released code).
    RoBERTa's one segment serves for A and B, and in a task's model for C.
    """
    rows = 3 if type(body) is VlBertBody and f"{REPEATED}3" in state else 2
    fills_table = rows == body.config.num_segments
    keymap = names.text_embedding_links(segment_rows=None if fills_table else rows)
    if f"{REPEATED}{rows}" in state:
        keymap = [
            replace(link, references=(f"{REPEATED}{rows}",))
            if names.SEGMENTS in link.references
            else link
            for link in keymap
        ]
    return [
        *keymap,
        *names.layers_from_bert("layers", counts=[len(body.layers)]),
        *(link_module("pooler.dense", names.POOLER) if isinstance(body.pooler, Pooler) else []),
        *([Link("special_words.weight", (FIRST_WORDS,))] if body.special_words else []),
    ]


def vlbert_links(model: VlBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the body, the word head, and for matching the next-sentence head."""
    return [
        *body_links(model, state),
        *(names.mlm_head_links() if model.mlm_head is not None else []),
        *(link_module("match_head", names.NEXT_SENTENCE) if model.match_head is not None else []),
    ]
