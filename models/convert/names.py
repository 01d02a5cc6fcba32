"""Links names that several families of checkpoints share: BERT's, and those of pair models."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from vlmill.models.convert.keymap import Link, link_module

WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"  # the word table again
POOLER, NEXT_SENTENCE = "bert.pooler.dense", "cls.seq_relationship"
PYTORCH = "PyTorch's default"  # a rule for initialising new weights


def text_embedding_links(
    module: str = "text_embedding",
    reference: str = "bert.embeddings",
    *,
    tied: Sequence[str] = (DECODER,),
    segment_rows: int | None = None,
) -> list[Link]:
    """Links a `TextEmbedding`; ``tied`` are further names of the word table.

    ``segment_rows``: the leading rows of the segment table that the reference has; None: all.
    """
    return [
        Link(f"{module}.word.weight", (f"{reference}.word_embeddings.weight",), also=tuple(tied)),
        Link(f"{module}.position.weight", (f"{reference}.position_embeddings.weight",)),
        Link(
            f"{module}.segment.weight",
            (f"{reference}.token_type_embeddings.weight",),
            rows=segment_rows,
        ),
        *link_module(f"{module}.norm", f"{reference}.LayerNorm"),
    ]


def block_links(module: str, reference: str) -> list[Link]:
    """Links a `PostNormBlock`: ``block_links("layers.0", "bert.encoder.layer.0")``."""
    attention = f"{reference}.attention"
    names = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
    return [
        *link_module(f"{module}.attention.qkv", *names),
        *link_module(f"{module}.attention.out", f"{attention}.output.dense"),
        *link_module(f"{module}.norm", f"{attention}.output.LayerNorm"),
        *feed_forward_links(
            f"{module}.feed_forward", f"{reference}.intermediate", f"{reference}.output"
        ),
    ]


def layers_from_bert(*lists: str, counts: Sequence[int]) -> list[Link]:
    """Links BERT's layers 0, 1, ... to stacks of layers of these names and lengths.

    Each list continues the previous one: the second begins with the layer after the first's last.
    """
    layer_names = [
        f"{name}.{i}" for name, count in zip(lists, counts, strict=True) for i in range(count)
    ]
    return [
        link
        for number, block in enumerate(layer_names)
        for link in block_links(block, f"bert.encoder.layer.{number}")
    ]


def feed_forward_links(module: str, up: str, down: str) -> list[Link]:
    """Links a `FeedForwardSublayer`; the reference calls its halves ``up`` and ``down``."""
    return [
        *link_module(f"{module}.feed_forward.up", f"{up}.dense"),
        *link_module(f"{module}.feed_forward.down", f"{down}.dense"),
        *link_module(f"{module}.norm", f"{down}.LayerNorm"),
    ]


def mlm_head_links(
    module: str = "mlm_head", reference: str = "cls.predictions", *, tied_bias: Sequence[str] = ()
) -> list[Link]:
    """Links an `MlmHead`; its decoder belongs to the word table's link.

    ``tied_bias`` are further names of the bias in the reference.
    """
    return [
        *link_module(f"{module}.transform.dense", f"{reference}.transform.dense"),
        *link_module(f"{module}.transform.norm", f"{reference}.transform.LayerNorm"),
        Link(f"{module}.bias", (f"{reference}.bias",), also=tuple(tied_bias)),
    ]


# Names in other layouts, in this order: TensorFlow's layer norms, RoBERTa's model and word head.
RENAMES = (
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
    (re.compile(r"^roberta\."), "bert."),
    (re.compile(r"^lm_head\.(dense|layer_norm)\."), r"cls.predictions.transform.\1."),
    (re.compile(r"^lm_head\."), "cls.predictions."),
    (re.compile(r"\.layer_norm\."), ".LayerNorm."),
)
BARE = ("embeddings.", "encoder.", "pooler.")  # in a file without heads and prefix
# Tensors that show where a BERT is in a larger network.
KNOWN = frozenset(
    (WORDS, "bert.encoder.layer.0.attention.self.query.weight", "cls.predictions.bias")
)


def canonical(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames a BERT or RoBERTa state dict to the names of `transformers`' BertForPreTraining.

    Layouts in use: ``gamma`` and ``beta`` for layer norms' weight and bias, as converted from
    TensorFlow; without the prefix ``bert.``, as written by a model without heads; RoBERTa's
    ``roberta.`` and ``lm_head.``.
    """
    renamed = {}
    for name, tensor in state.items():
        new = name
        for pattern, replacement in RENAMES:
            new = pattern.sub(replacement, new)
        renamed[f"bert.{new}" if new.startswith(BARE) else new] = tensor
    return renamed


def region_embedding_links(module: str, reference: str) -> list[Link]:
    """Links a `RegionEmbedding` to the names of ViLBERT and its descendants."""
    return [
        *link_module(f"{module}.feature", f"{reference}.image_embeddings"),
        *link_module(f"{module}.location", f"{reference}.image_location_embeddings"),
        *link_module(f"{module}.norm", f"{reference}.LayerNorm"),
    ]


def pretraining_links(matching: str) -> list[Link]:
    """Links `PairHeads`; ``matching`` is the reference's name of the matching layer."""
    return [
        *mlm_head_links(),
        *link_module("region_head.transform.dense", "cls.imagePredictions.transform.dense"),
        *link_module("region_head.transform.norm", "cls.imagePredictions.transform.LayerNorm"),
        *link_module("region_head.decoder", "cls.imagePredictions.decoder"),
        *link_module("match_head", matching),
    ]


def score_links() -> list[Link]:
    """Links `ScoreHeads`; published checkpoints contain the misspelt "linguisic"."""
    return [
        *link_module("score_head", "vil_logit"),
        *link_module("region_head", "vision_logit"),
        *link_module("token_head", "linguisic_logit"),
    ]


def under(prefix: str, link: Link) -> Link:
    """Returns the link of a tensor that has moved into the module ``prefix``."""
    return replace(link, name=f"{prefix}.{link.name}")
