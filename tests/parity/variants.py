"""Sets of other sizes and options than the recorded ones, written by our own networks.

What they prove is that a comparison takes every size and option from the set: numbers are proved
by the recordings of the official code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.parity.golden import GoldenSet, NotComparable
from tests.parity.handlers import HANDLERS
from tests.parity.results import Results
from torch import Tensor

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.models.published import FAMILIES, export_reference

TOLERANCE = [["*", {"abs": 1e-5, "of_max": 1e-5}]]


class Recorder(Results):
    """Takes what would be compared as what is recorded."""

    def check(self, key: str, ours: Any) -> None:
        value = ours.detach().clone().contiguous() if isinstance(ours, Tensor) else ours
        self.tensors[key] = {"recorded": value}


def write_set(
    root: Path,
    name: str,
    entry: Mapping[str, Any],
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> GoldenSet:
    """A set with ``tensors`` for its inputs and what decides on outputs, and no weights yet."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    # Copies: no two tensors of a file may share their memory.
    copies = {key: t.clone(memory_format=torch.contiguous_format) for key, t in tensors.items()}
    save_file(copies, folder / "cases.safetensors")
    return GoldenSet(root, name, {"tolerance": TOLERANCE, "integers": "exact", **entry})


def write_network(golden: GoldenSet, seed: int) -> None:
    """Random weights for a set's configuration, all of a size that lets errors show."""
    torch.manual_seed(seed)
    family = FAMILIES[golden.family]
    model = family.build(family.configure(golden.config))
    with torch.no_grad():
        for parameter in model.parameters():
            around = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(around + torch.randn(parameter.shape) * 0.2)
    weights = export_reference(golden.family, model)
    save_file({name: t.clone().contiguous() for name, t in weights.items()}, golden.weights)


def recorded(golden: GoldenSet) -> GoldenSet:
    """The set with our outputs beside its inputs.

    A stage is fed what is recorded of the stage before: each pass records the outputs of one more.
    """
    missing: str | None = ""
    while missing is not None:
        recorder = Recorder(golden)
        before, missing = missing, None
        try:
            HANDLERS[golden.part][golden.family](golden, recorder)
        except NotComparable as error:
            missing = str(error)
            if missing == before:
                raise
        outputs = {key: entry["recorded"] for key, entry in recorder.tensors.items()}
        save_file({**golden.tensors, **outputs}, golden.folder / "cases.safetensors")
        golden = GoldenSet(golden.root, golden.name, golden.entry)
    return golden


def write_detector(
    golden: GoldenSet, config: DetectorConfig, *, counters: bool, seed: int = 1
) -> None:
    """Random weights of a detector in its family's layout; ``counters`` of normalisations."""
    model = FasterRCNN(config)
    randomise(model, seed=seed)
    weights = {
        published_name(name, config.family): tensor.clone().contiguous()
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    if counters:
        norms = [name for name in weights if name.endswith("running_mean")]
        count = torch.tensor(1)
        weights |= {n.replace("running_mean", "num_batches_tracked"): count.clone() for n in norms}
    save_file(weights, golden.weights)


def drawn_pairs(config: Mapping[str, Any], sizes: tuple[int, int, int]) -> dict[str, Tensor]:
    """Inputs of B pairs of T tokens and R regions in ViLBERT's names; the last row is padded."""
    batch, length, rows = sizes
    tokens = torch.randint(1, config["vocab_size"], (batch, length))
    token_mask, region_mask = torch.ones(batch, length), torch.ones(batch, rows)
    token_mask[-1, length - 2 :], region_mask[-1, rows - 1 :] = 0, 0
    return {
        "input_ids": tokens * token_mask.long(),
        "token_type_ids": torch.zeros(batch, length).long(),
        "attention_mask": token_mask.long(),
        "image_feat": torch.randn(batch, rows, config["v_feature_size"]),
        "image_loc": torch.rand(batch, rows, 5),
        "image_attention_mask": region_mask.long(),
    }


def drawn_labels(config: Mapping[str, Any], sizes: tuple[int, int, int]) -> dict[str, Tensor]:
    """Labels of pretraining beside :func:`drawn_pairs`."""
    batch, length, rows = sizes
    words = torch.randint(1, config["vocab_size"], (batch, length))
    asked = torch.rand(batch, length) < 0.5
    classes = torch.randn(batch, rows - 1, config["v_target_size"]).softmax(-1)
    return {
        "masked_lm_labels": words.where(asked, -1),
        "image_label": torch.where(torch.rand(batch, rows - 1) < 0.5, 1, -1),
        "image_target": classes,
        "next_sentence_label": torch.arange(batch) % 2,
    }


def drawn_texts(config: Mapping[str, Any], batch: int, length: int) -> dict[str, Tensor]:
    """Texts in VLMo's names, one of which is padded; some words are to be guessed."""
    tokens = torch.randint(5, config["vocab_size"], (batch, length))
    mask = torch.ones(batch, length).long()
    mask[-1, length - 2 :] = 0
    asked = torch.rand(batch, length) < 0.4
    asked[:, 1] = True
    return {
        "text_ids": tokens * mask,
        "text_ids_mlm": torch.where(asked, 4, tokens) * mask,
        "text_labels_mlm": tokens.where(asked, -100),
        "text_masks": mask,
    }


def of_case(case: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs under the names of a case."""
    return {f"{case}.in.{name}": tensor for name, tensor in inputs.items()}
