"""Defines the modules that are exported, and describes their inputs.

B pairs, texts or images, T tokens, R regions, D width of a region's feature, S pixels a side, H
width of the vectors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.registry import find_variant, get_variant
from vlmill.models.rows import get_part
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.batch import normalise_pixels
from vlmill.train.loading.features import get_global_widths
from vlmill.train.tasks.retrieval.checks import (
    body_config,
    find_feeding,
    longest_text,
    select_ranking,
)

FIRST_WORD = 5  # of random texts: after the special tokens
TEXT_INPUTS: Mapping[str, str] = {
    "tokens": "int64 [B, T]: word-piece ids, [CLS] first, [SEP] last, 0 in padding",
    "token_mask": "bool [B, T]: true where a token is real",
}


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Describes a file to export.

    inputs, output: descriptions. axes: the axes of free size of each input. limits: the largest
    sizes of axes. make_inputs: returns random inputs of ``rows`` rows, with padding, of sizes that
    depend on ``rows``.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, str]
    output: tuple[str, str]
    axes: Mapping[str, Mapping[int, str]]
    limits: Mapping[str, int] = field(default_factory=dict)
    make_inputs: Callable[[int], dict[str, Tensor]]


class TextVectors(nn.Module):
    """Computes a dual encoder's vectors of texts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Int[Tensor, "B T"], token_mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B H"]:
        """Returns unit vectors."""
        vectors: Float[Tensor, "B H"] = self.model.text_vectors(tokens, token_mask, pack=False)
        return vectors


class ImageVectors(nn.Module):
    """Computes a dual encoder's vectors of images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B H"]:
        """Returns unit vectors."""
        vectors: Float[Tensor, "B H"] = self.model.image_vectors(normalise_pixels(pixels))
        return vectors


class RegionScores(nn.Module):
    """Computes the logits that texts belong to images, of a model that reads regions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        variant = get_variant(find_variant(model))
        self.model = model  # the parts below are its own
        self.body, self.logit = variant.get_body(model), get_part(model, variant.match_logit)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        region_features: Float[Tensor, "B R D"],
        region_locations: Float[Tensor, "B R 5"],
        region_mask: Bool[Tensor, "B R"],
        global_features: Float[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Returns the logits."""
        inputs = VLInputs(
            tokens=tokens,
            token_mask=token_mask,
            region_features=region_features,
            region_locations=region_locations,
            region_mask=region_mask,
            global_features=global_features,
        )
        scores: Float[Tensor, " B"] = self.logit(self.body(inputs, pack=False).pooled)
        return scores


def make_graphs(loaded: LoadedCheckpoint) -> list[Graph]:
    """Returns the graphs of a checkpoint: two of a dual encoder, one of a model of regions.

    Raises InputError for a model without a contrastive or matching head.
    """
    if select_ranking(loaded) == "contrast":
        return [_text_graph(loaded), _image_graph(loaded)]
    return [_score_graph(loaded)]


def _text_graph(loaded: LoadedCheckpoint) -> Graph:
    config = body_config(loaded)
    longest = longest_text(loaded, find_feeding(loaded))
    return Graph(
        name="text",
        module=TextVectors(loaded.model),
        inputs=TEXT_INPUTS,
        output=("vectors", f"float32 [B, {config.width}] of length 1"),
        axes={name: {0: "B", 1: "T"} for name in TEXT_INPUTS},
        limits={"T": config.max_text_tokens},
        make_inputs=lambda rows: _random_texts(rows, longest, config.vocab_size),
    )


def _image_graph(loaded: LoadedCheckpoint) -> Graph:
    config = body_config(loaded)
    side = config.image_size
    return Graph(
        name="image",
        module=ImageVectors(loaded.model),
        inputs={
            "pixels": f"uint8 [B, 3, {side}, {side}]: RGB, upright, resized to {side} x {side} "
            "bicubically, without cropping; the graph normalises them"
        },
        output=("vectors", f"float32 [B, {config.width}] of length 1"),
        axes={"pixels": {0: "B"}},
        make_inputs=lambda rows: {
            "pixels": torch.randint(256, (rows, 3, side, side), dtype=torch.uint8)
        },
    )


def _score_graph(loaded: LoadedCheckpoint) -> Graph:
    config, feeding = body_config(loaded), find_feeding(loaded)
    longest, global_width = longest_text(loaded, feeding), sum(get_global_widths(config))
    inputs = {
        **TEXT_INPUTS,
        "region_features": f"float32 [B, R, {config.region_width}]: features of the detector, at "
        f"most {feeding.max_regions} regions; the full image first (whole_image="
        f"{feeding.whole_image})",
        "region_locations": "float32 [B, R, 5]: x1/W, y1/H, x2/W, y2/H, area/(W*H)",
        "region_mask": "bool [B, R]: true where a region is real",
    }
    axes = {name: {0: "B", 1: "T" if name in TEXT_INPUTS else "R"} for name in inputs}
    if global_width:
        inputs["global_features"] = f"float32 [B, {global_width}]: of the image-level networks"
        axes["global_features"] = {0: "B"}

    def make_inputs(rows: int) -> dict[str, Tensor]:
        regions = rows + 4
        mask = torch.arange(regions) < torch.randint(2, regions + 1, (rows, 1))
        tensors = {
            **_random_texts(rows, longest, config.vocab_size),
            "region_features": torch.rand(rows, regions, config.region_width),
            "region_locations": torch.rand(rows, regions, 5),
            "region_mask": mask,
        }
        if global_width:
            tensors["global_features"] = torch.rand(rows, global_width)
        return tensors

    return Graph(
        name="scores",
        module=RegionScores(loaded.model),
        inputs=inputs,
        output=("scores", "float32 [B]: logits that a text belongs to its image"),
        axes=axes,
        limits={"T": config.max_text_tokens},
        make_inputs=make_inputs,
    )


def _random_texts(rows: int, longest: int, vocab_size: int) -> dict[str, Tensor]:
    """Returns texts of different lengths, with padding."""
    tokens = min(longest, rows + 5)
    mask = torch.arange(tokens) < torch.randint(3, tokens + 1, (rows, 1))
    words = torch.randint(min(FIRST_WORD, vocab_size - 1), vocab_size, (rows, tokens))
    return {"tokens": words * mask, "token_mask": mask}
