"""Names that ViLBERT's code gave to what InterBERT's code, made from it, has too."""

from dataclasses import replace

from vlmill.models.reference.bert_names import mlm_head_links
from vlmill.models.reference.keymap import Link, linked


def region_embedding_links(ours: str, theirs: str) -> list[Link]:
    """Of a `RegionEmbedding`, as ViLBERT and what comes from its code call it."""
    return [
        *linked(f"{ours}.feature", f"{theirs}.image_embeddings"),
        *linked(f"{ours}.location", f"{theirs}.image_location_embeddings"),
        *linked(f"{ours}.norm", f"{theirs}.LayerNorm"),
    ]


def pretraining_links(matching: str) -> list[Link]:
    """Of `PairHeads`; ``matching`` is the reference's name of the matching layer."""
    return [
        *mlm_head_links(),
        *linked("region_head.transform.dense", "cls.imagePredictions.transform.dense"),
        *linked("region_head.transform.norm", "cls.imagePredictions.transform.LayerNorm"),
        *linked("region_head.decoder", "cls.imagePredictions.decoder"),
        *linked("match_head", matching),
    ]


def score_links() -> list[Link]:
    """Of `ScoreHeads`; the last is spelled so in every checkpoint."""
    return [
        *linked("score_head", "vil_logit"),
        *linked("region_head", "vision_logit"),
        *linked("token_head", "linguisic_logit"),
    ]


def under(prefix: str, link: Link) -> Link:
    """The link of a tensor that has moved into the module ``prefix``."""
    return replace(link, ours=f"{prefix}.{link.ours}")
