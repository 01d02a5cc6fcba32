"""A variant starts from BERT here, and says where each of its parameters then comes from.

Each variant takes exactly what its paper or released code says; the rest is new. One function a
variant gives the links from its tensors to BERT's; `DRAWN` says how new weights are drawn where it
is not BERT's normal distribution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.models.bert.model import Bert
from vlmill.models.bert.published import links as bert_links
from vlmill.models.config_checks import INIT_STD
from vlmill.models.convert.files import read_state, unwrap_state
from vlmill.models.convert.keymap import (
    CheckpointMismatch,
    Link,
    LoadTable,
    import_state,
    link_module,
)
from vlmill.models.convert.names import (
    SEGMENTS,
    WORDS,
    block_links,
    canonical,
    mlm_head_links,
    text_embedding_links,
)
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.interbert.model import InterBert
from vlmill.models.layers.heads import Pooler
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import WeightNormLinear
from vlmill.models.vlbert.config import NUM_SPECIAL_WORDS
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.end_to_end import (
    VlBertEndToEnd,
    VlBertRefcocoEndToEnd,
    VlBertVcrEndToEnd,
)
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa
from vlmill.models.vlmo.encoder import VlmoEncoder

POOLER, NEXT_SENTENCE = "bert.pooler.dense", "cls.seq_relationship"
FIRST_WORDS = f"{WORDS}[:{NUM_SPECIAL_WORDS}]"
REPEATED = f"{SEGMENTS} x "


def derive_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Makes what VL-BERT's code makes of BERT's tensors, under names that say so.

    The first rows of the word table, and RoBERTa's only segment repeated.
    """
    tensors = {FIRST_WORDS: state[WORDS][:NUM_SPECIAL_WORDS]} if WORDS in state else {}
    segments = state.get(SEGMENTS)
    if segments is not None and len(segments) == 1:
        tensors |= {f"{REPEATED}{count}": segments.expand(count, -1) for count in (2, 3)}
    return tensors


def layers_from_bert(*lists: str, counts: Sequence[int]) -> list[Link]:
    """Links BERT's layers 0, 1, ... to stacks of layers of these names and lengths.

    The lists continue each other: the second begins with the layer after the first's last.
    """
    layer_names = [
        f"{name}.{i}" for name, count in zip(lists, counts, strict=True) for i in range(count)
    ]
    return [
        link
        for number, block in enumerate(layer_names)
        for link in block_links(block, f"bert.encoder.layer.{number}")
    ]


def bert(model: Bert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links everything."""
    return bert_links(model)


def imagebert(model: ImageBert, state: Mapping[str, Tensor]) -> list[Link]:
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


def vilbert(model: Vilbert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the text's stream and the word head (arXiv:1908.02265, sec. 3.2, released code).

    The co-attention layers, their feed-forward parts of the text too, and the poolers are new.
    """
    return [
        *text_embedding_links(),
        *layers_from_bert("text_layers", counts=[len(model.text_layers)]),
        *mlm_head_links(),
    ]


def single_stream(model: SingleStream, state: Mapping[str, Tensor]) -> list[Link]:
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
    """Links text embeddings with two of three segments, layers, and the pooler if used.

    What belongs to regions, [END] and segment C are new (arXiv:1908.08530, sec. 3.4, released
    code). RoBERTa's one segment serves for A and B, and in a task's model for C.
    """
    rows = 3 if type(body) is VlBertBody and f"{REPEATED}3" in state else 2
    fills_table = rows == body.config.num_segments
    keymap = text_embedding_links(segment_rows=None if fills_table else rows)
    if f"{REPEATED}{rows}" in state:
        keymap = [
            replace(link, references=(f"{REPEATED}{rows}",))
            if SEGMENTS in link.references
            else link
            for link in keymap
        ]
    return [
        *keymap,
        *layers_from_bert("layers", counts=[len(body.layers)]),
        *(link_module("pooler.dense", POOLER) if isinstance(body.pooler, Pooler) else []),
        *([Link("special_words.weight", (FIRST_WORDS,))] if body.special_words else []),
    ]


def vlbert(model: VlBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the body, the word head, and for matching the next-sentence head."""
    return [
        *vlbert_body(model, state),
        *(mlm_head_links() if model.mlm_head is not None else []),
        *(link_module("match_head", NEXT_SENTENCE) if model.match_head is not None else []),
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
_REGION_CNN = [("cnn.*", PYTORCH)]
DRAWN: dict[type[nn.Module], Sequence[tuple[str, str]]] = {
    VlBertBody: _VLBERT,
    VlBert: _VLBERT,
    VlBertEndToEnd: _REGION_CNN,
    VlBertRefcocoEndToEnd: _REGION_CNN,
    VlBertVcrEndToEnd: _REGION_CNN,
    VlmoEncoder: [("patch_embedding.projection.*", PYTORCH)],
    VlBertVqa: [("head.*", XAVIER)],
    VlBertRefcoco: [("head.*", XAVIER)],
    VlBertVcr: [("answer_*", XAVIER), ("category_head.*", XAVIER)],
    WeightNormLinear: [("direction", PYTORCH), ("length", "the direction's norm")],
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Says where a parameter's values come from.

    names: the checkpoint's tensors, joined along the first axis; empty if the values are new.
    rows: how many leading rows they fill, where ours has more. rule: what the other values are:
    ``N(0, 0.02^2)`` or a constant; empty if there are none. missing: names that were looked for
    in vain.
    """

    names: tuple[str, ...] = ()
    rows: int | None = None
    rule: str = ""
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.names:
            lacking = f" (the checkpoint has no {' + '.join(self.missing)})" if self.missing else ""
            return f"new: {self.rule}{lacking}"
        sources = " + ".join(self.names)
        return (
            sources if self.rows is None else f"{sources} in rows 0 to {self.rows - 1}, {self.rule}"
        )


def initialise_from_bert(
    model: nn.Module, source: Mapping[str, Any] | str | Path
) -> dict[str, Origin]:
    """Copies BERT's weights into a new model; says where each parameter comes from.

    model: one of `BERT_SOURCES`, or a module that holds one (with a task's head, say). source: a
    state dict in any layout of `canonical`, or the path of such a file; nothing in it is executed.
    What the variant does not take from BERT stays as it was built.

    Raises CheckpointMismatch (a ValueError) where a shape differs or nothing fits, ValueError for
    a model that does not start from BERT or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    tensors = canonical(state)
    tensors |= derive_tensors(tensors)
    links = _links(model, tensors)
    table = import_state(model, links, tensors)
    if table.mismatched:
        raise CheckpointMismatch(
            f"{len(table.mismatched)} of BERT's tensors have other shapes than the model's; build "
            "it with the sizes of that BERT",
            table,
        )
    if not table.loaded:
        raise CheckpointMismatch("nothing in the checkpoint is BERT's", table)
    return loaded_origins(model, links, table)


def loaded_origins(model: nn.Module, links: Sequence[Link], table: LoadTable) -> dict[str, Origin]:
    """Says where each parameter of a model comes from that was loaded by these links."""
    rules = _rules(model)
    rows = {link.name: link.rows for link in links if link.name in table.loaded}
    origins = {}
    for name, parameter in model.named_parameters():
        names, filled = table.loaded.get(name, ()), rows.get(name)
        origins[name] = Origin(
            names=names,
            rows=filled,
            rule="" if names and not filled else _rule(name, parameter, filled or 0, rules),
            missing=table.missing.get(name, ()),
        )
    return origins


def _links(model: nn.Module, state: Mapping[str, Tensor]) -> list[Link]:
    """Lists the links of every part of ``model`` that starts from BERT."""
    links = [
        replace(link, name=_inside(name, link.name))
        for name, part in model.named_modules()
        if type(part) in BERT_SOURCES
        for link in BERT_SOURCES[type(part)](part, state)
    ]
    if not links:
        known = ", ".join(kind.__name__ for kind in BERT_SOURCES)
        raise ValueError(f"{type(model).__name__} does not start from BERT; these do: {known}")
    return links


def _rules(model: nn.Module) -> list[tuple[str, str]]:
    """Lists how new weights are drawn, by patterns of names, inner parts' rules first."""
    rules: list[tuple[str, str]] = [("*", f"N(0, {INIT_STD:g}^2)")]
    for name, part in model.named_modules():
        rules_of_part = list(DRAWN.get(type(part), ()))
        std = getattr(getattr(part, "config", None), "init_std", None)
        if std is not None and (part is model or type(part) in BERT_SOURCES):
            rules_of_part.append(("*", f"N(0, {std:g}^2)"))
        rules = [*((_inside(name, pattern), rule) for pattern, rule in rules_of_part), *rules]
    return rules


def _inside(part: str, name: str) -> str:
    return f"{part}.{name}" if part else name


def _rule(name: str, parameter: Tensor, start: int, rules: Sequence[tuple[str, str]]) -> str:
    """Says what rows from ``start`` on hold: a constant, or draws by the first rule that fits."""
    values = parameter.detach()[start:] if start else parameter.detach()
    if values.numel() and bool(torch.all(values == values.flatten()[0])):
        return f"{float(values.flatten()[0]):g}"
    return next(rule for pattern, rule in rules if fnmatchcase(name, pattern))
