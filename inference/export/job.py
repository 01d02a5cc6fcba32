"""Writes a checkpoint as ONNX files, each compared with PyTorch before the folder appears."""

import json
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.inference.export.graphs import Graph, make_graphs
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.loading.vocabulary import vocabulary_contents
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text

TOLERANCE = 1e-4  # largest difference between onnxruntime and PyTorch
TRACED, COMPARED = 6, 9  # rows of the inputs that a graph is made from and compared on
RECORD, FULL_TOKENIZER = "export.json", "tokenizer.json"
LARGEST_FILE = 2_000_000_000  # bytes that a file of protocol buffers may have
SEED = 0  # of the random inputs


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
