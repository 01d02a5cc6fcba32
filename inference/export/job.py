"""Writes a checkpoint as ONNX files, each compared with PyTorch before the folder appears.

A `Graph` describes a file: the module that is exported, and its inputs. B pairs, texts or images,
T tokens, R regions, D width of a region's feature, S pixels a side, H width of the vectors.
"""

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models.inputs import VLInputs
from vlmill.models.registry import find_variant, get_variant
from vlmill.models.rows import get_part
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.loading.batch import normalise_pixels
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.vocabulary import vocabulary_contents
from vlmill.train.tasks.retrieval.checks import (
    find_feeding,
    longest_text,
    select_ranking,
)

FIRST_WORD = 5  # of random texts: after the special tokens
TEXT_INPUTS: Mapping[str, str] = {
    "tokens": "int64 [B, T]: word-piece ids, [CLS] first, [SEP] last, 0 in padding",
    "token_mask": "bool [B, T]: true where a token is real",
}

TOLERANCE = 1e-4  # largest difference between onnxruntime and PyTorch
TRACED, COMPARED = 6, 9  # rows of the inputs that a graph is made from and compared on
RECORD, FULL_TOKENIZER = "export.json", "tokenizer.json"
LARGEST_FILE = 2_000_000_000  # bytes that a file of protocol buffers may have
SEED = 0  # of the random inputs


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
    config = loaded.body
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
    config = loaded.body
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
    config, feeding = loaded.body, find_feeding(loaded)
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


class Differs(ArithmeticError):
    """Raised if a graph's results differ from PyTorch's by more than `TOLERANCE`."""


def export_onnx(checkpoint: str | Path, output: Path) -> str:
    """Writes the graphs of a checkpoint to ``output``, and returns a sentence on them.

    Raises InputError for a checkpoint that cannot rank, and for an output with other files.
    """
    _require_free(output)
    loaded = load_checkpoint(checkpoint)
    loaded.model.eval().requires_grad_(False)
    graphs = make_graphs(loaded)
    records = {}
    with atomic_folder(output, replace=True, last=RECORD) as folder:
        for graph in graphs:
            print_status(f"exporting {graph.name}.onnx")
            export_graph(graph, folder)
            difference = compare_graph(graph, folder / f"{graph.name}.onnx")
            records[f"{graph.name}.onnx"] = _describe(graph, difference)
        for name, text in vocabulary_contents(loaded.tokenizer).items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
        (folder / FULL_TOKENIZER).write_text(loaded.tokenizer.to_str(), encoding="utf-8")
        record = {"software": SOFTWARE, **_describe_inputs(loaded), "files": records}
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    largest = max(record["max_difference"] for record in records.values())
    return f"{output}: {', '.join(records)}; onnxruntime differs from PyTorch by {largest:.1e}"


def export_graph(graph: Graph, folder: Path) -> None:
    """Writes a graph to ``folder``, its weights in the same file unless they are too large."""
    torch.manual_seed(SEED)
    inputs = graph.make_inputs(TRACED)
    sizes = {
        axis: torch.export.Dim(axis, max=graph.limits.get(axis))
        for axes in graph.axes.values()
        for axis in axes.values()
    }
    shapes = {
        name: {number: sizes[axis] for number, axis in axes.items()}
        for name, axes in graph.axes.items()
    }
    weights = sum(p.nbytes for p in graph.module.parameters())
    # The strides of the plain computation hold in the graph; fused kernels' strides do not.
    plain = sdpa_kernel(SDPBackend.MATH)
    with warnings.catch_warnings(), redirect_stdout(StringIO()), plain:
        warnings.simplefilter("ignore")  # the exporter's, about its own parts
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            graph.module,
            kwargs=inputs,
            f=str(folder / f"{graph.name}.onnx"),
            input_names=list(inputs),
            output_names=[graph.output[0]],
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=weights > LARGEST_FILE,
            verbose=False,
        )


def compare_graph(graph: Graph, path: Path) -> float:
    """Returns the largest difference between onnxruntime and PyTorch on inputs of other sizes.

    Raises Differs if it exceeds `TOLERANCE`.
    """
    import onnxruntime

    torch.manual_seed(SEED + 1)
    inputs = graph.make_inputs(COMPARED)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, _to_arrays(inputs))
    with torch.inference_mode():
        expected = graph.module(**inputs).numpy()
    difference = float(np.abs(actual - expected).max())
    if actual.shape != expected.shape or not difference <= TOLERANCE:
        raise Differs(
            f"{path.name}: onnxruntime gives {list(actual.shape)} and differs by {difference:.1e} "
            f"from PyTorch's {list(expected.shape)}; at most {TOLERANCE} was expected"
        )
    return difference


def _to_arrays(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in inputs.items()}


def _describe(graph: Graph, difference: float) -> dict[str, Any]:
    name, text = graph.output
    return {"inputs": dict(graph.inputs), "outputs": {name: text}, "max_difference": difference}


def _describe_inputs(loaded: LoadedCheckpoint) -> dict[str, Any]:
    """Returns how texts and images are prepared, for a reader without vlmill."""
    feeding = find_feeding(loaded)
    return {
        "variant": loaded.variant,
        "max_tokens": longest_text(loaded, feeding),
        "max_regions": feeding.max_regions if feeding.has_regions else None,
        "max_elements": feeding.max_elements if feeding.has_regions else None,
        "whole_image": feeding.whole_image if feeding.has_regions else None,
        "detector_fingerprint": loaded.detector_fingerprint,
        "tolerance": TOLERANCE,
    }


def _require_free(output: Path) -> None:
    """Raises InputError for a folder with files other than an earlier export."""
    if output.is_file():
        raise InputError(f"--output {output} is a file; give a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / RECORD).is_file():
        raise InputError(f"--output {output} has other files; give a new folder")
