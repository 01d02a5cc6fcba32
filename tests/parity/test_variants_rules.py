"""Operators, rules and optimisers of other sizes and settings, by formulas and torchvision."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import GOLDEN
from tests.parity.detector_training_keys import solver_of
from tests.parity.draws import collator_row
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import compare
from tests.parity.training_vlmo import Vocabulary, is_drawn
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import roi_align, roi_pool

from vlmill.train.detector.learning import rate_factor
from vlmill.train.loading.masking.words import Replacement

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

SETS = {golden.name: golden for golden in read_index(GOLDEN)}


def changed_copy(root: Path, name: str, tensors: dict[str, Tensor], readme: str = "") -> GoldenSet:
    """A committed set with other tensors in cases.safetensors, and another README.md if given."""
    shutil.copytree(GOLDEN / name, root / name)
    if tensors:
        save_file(
            {key: tensor.contiguous() for key, tensor in tensors.items()},
            root / name / "cases.safetensors",
        )
    if readme:
        (root / name / "README.md").write_text(readme)
    return GoldenSet(root, name, SETS[name].entry)


def expect_passed(golden: GoldenSet) -> None:
    result: Any = compare(golden)
    assert (result["status"], result["reason"]) == ("passed", "")


@pytest.mark.parametrize(("size", "scale"), [(7, 0.0625), (9, 0.125)])
def test_pooling_of_another_size_and_scale(tmp_path: Path, size: int, scale: float) -> None:
    tensors = dict(SETS["frcnn/ops"].tensors)
    features, rois = tensors["roi.in.map"], tensors["roi.in.rois"]
    tensors = {key: t for key, t in tensors.items() if not key.startswith("roi.out")}
    tensors["roi.in.scale"] = torch.tensor(scale)
    tensors["roi.out.pool"] = roi_pool(features, rois, size, scale)
    for samples in (0, 3):
        for name, aligned in (("aligned", True), ("legacy", False)):
            pooled = roi_align(features, rois, size, scale, samples, aligned)
            tensors[f"roi.out.align_{name}{samples}"] = pooled
    expect_passed(changed_copy(tmp_path, "frcnn/ops", tensors))


def test_anchors_and_coders_of_other_settings(tmp_path: Path) -> None:
    """Four sizes and two ratios on a 2 x 5 grid of stride 8; two scales of Caffe's."""
    tensors = dict(SETS["frcnn/ops"].tensors)
    tensors = {k: t for k, t in tensors.items() if not k.startswith(("anchor.", "coder.out."))}
    cells = []
    for size in (20.0, 40.0, 45.5, 80.0):
        for ratio in (1 / 3, 2.0):
            width = np.sqrt(size**2 / ratio)
            cells.append(np.array([-width, -width * ratio, width, width * ratio]) / 2)
    grid = [
        cell + 8 * np.array([x, y, x, y]) + 8 * 0.25
        for y in range(2)
        for x in range(5)
        for cell in cells
    ]
    tensors["anchor.out.d2_c_0.25"] = torch.tensor(np.array(grid), dtype=torch.float32)
    boxes = []
    for ratio in (0.4, 1.5):
        width = np.round(np.sqrt(256 / ratio))
        for scale in (3, 7):
            half = (np.array([width, np.round(width * ratio)]) * scale - 1) / 2
            boxes.append([*(7.5 - half), *(7.5 + half)])
    tensors["anchor.out.caffe_3_7"] = torch.tensor(np.array(boxes), dtype=torch.float32)
    tensors["coder.out.d2_2_4_5_5"] = decoded(
        tensors["coder.in.boxes"], tensors["coder.in.deltas"], (2, 4, 5, 5)
    )
    expect_passed(changed_copy(tmp_path, "frcnn/ops", tensors))


def decoded(boxes: Tensor, deltas: Tensor, weights: tuple[int, ...]) -> Tensor:
    """Detectron2's coder, written once more: several boxes a row."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    parts = []
    for several in deltas.reshape(len(boxes), -1, 4).unbind(1):
        dx, dy, dw, dh = several.unbind(1)
        x = boxes[:, 0] + width / 2 + dx / weights[0] * width
        y = boxes[:, 1] + height / 2 + dy / weights[1] * height
        w = (dw / weights[2]).clamp(max=np.log(1000 / 16)).exp() * width / 2
        h = (dh / weights[3]).clamp(max=np.log(1000 / 16)).exp() * height / 2
        parts.append(torch.stack([x - w, y - h, x + w, y + h], dim=1))
    return torch.cat(parts, dim=1)


def test_interbert_samples_of_other_widths(tmp_path: Path) -> None:
    """Three rows of regions and two tokens more, which are padding everywhere."""
    tensors = dict(SETS["interbert/data_ops"].tensors)
    fills = {"image_label": -1, "lm_label_ids": -1}
    for key, tensor in tensors.items():
        case, _, name = key.partition(".out.")
        if case.startswith(("pre", "vcr_merge")) and name:
            more = 2 if name in ("input_ids", "input_mask", "lm_label_ids") else 3
            if name == "multimodal_mask":
                regions, words = tensor.chunk(2)
                tensors[key] = torch.cat([F.pad(regions, (0, 3)), F.pad(words, (0, 2))])
            elif not name.startswith(("global", "is_next")):
                sides = [0, 0] * (tensor.ndim - 1) + [0, more]
                tensors[key] = F.pad(tensor, sides, value=fills.get(name, 0))
    tensors = {key: t for key, t in tensors.items() if ":" not in key}
    expect_passed(changed_copy(tmp_path, "interbert/data_ops", tensors))


def test_interbert_captions_stand_in_the_readme(tmp_path: Path) -> None:
    readme = (GOLDEN / "interbert/data_ops/README.md").read_text()
    assert '"10": w0..w6' in readme
    golden = changed_copy(
        tmp_path, "interbert/data_ops", {}, readme.replace('"10": w0..w6', '"10": w0..w5')
    )
    result: Any = compare(golden)
    assert result["status"] == "failed" and "pre" in result["reason"]


def test_a_vlmo_run_of_other_lengths_and_rates(tmp_path: Path) -> None:
    """300 updates of which 30 rise to 1e-3, the classifier's rate threefold, a cube."""
    name, peak, warmup, total = "vlmo/optimiser", 1e-3, 30, 300
    golden = changed_copy(
        tmp_path,
        name,
        {},
        (GOLDEN / name / "README.md").read_text().replace("2000-step run", "300-step run"),
    )
    path = golden.folder / "groups_and_schedule.json"
    values = json.loads(path.read_text())

    def rates(shape: Any, factor: float) -> dict[str, list[float]]:
        steps = (1, 7, 29, 30, 31, 150, 299, 300)
        by_step = {}
        for step in steps:
            left = (total - step) / (total - warmup)
            rate = peak * (step / warmup if step < warmup else shape(left))
            by_step[str(step)] = [rate, rate, rate * factor, rate * factor]
        return by_step

    run = values["vqa"]
    run["lr_at_step"] = rates(lambda left: left, 3.0)
    for number, group in enumerate(run["groups"]):
        group["initial_lr"] = peak * (3.0 if number > 1 else 1.0)
    end = 1e-6 / peak
    values = {
        "vqa": run,
        "power3": rates(lambda left: end + (1 - end) * left**3, 1.0),
        "cosine": rates(lambda left: (1 + np.cos(np.pi * (1 - left))) / 2, 1.0),
    }
    path.write_text(json.dumps(values))
    expect_passed(golden)


def test_the_vocabulary_is_the_smallest_that_was_drawn_from() -> None:
    """Rows masked from 77 tokens; [MASK] is 9."""
    fate = Replacement(mask_id=9, vocab_size=77)
    values: dict[str, Any] = {}
    tokens = ["[CLS]", *(f"w{n}" for n in range(30)), "[SEP]"]
    ids = list(range(20, 20 + len(tokens)))
    for row in range(6):
        fates, drawn = collator_row(len(ids), fate, torch.Generator().manual_seed(row))
        masked = np.where(fates < 0.8, 9, np.where(fates < 0.9, drawn, ids))
        prefix = f"rules:whole_word_masks.{row}"
        values[f"{prefix}.seed"], values[f"{prefix}.labels"] = row, ids
        values[f"{prefix}.masked_ids"] = masked.tolist()
        values[f"{prefix}.input_tokens"], values[f"{prefix}.input_ids"] = tokens, ids
    golden = GoldenSet(GOLDEN, "vlmo/other", {})
    golden.__dict__["values"] = values
    rows = [f"rules:whole_word_masks.{row}" for row in range(6)]
    vocabulary = Vocabulary.of(golden, rows)
    assert vocabulary.replacement.mask_id == 9 and vocabulary.ids["w3"] == 24
    assert all(is_drawn(golden, row, vocabulary.replacement) for row in rows)


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("frcnn/d2_r50c4", "config.json", "MODEL.RPN"),
        ("interbert/vltasks", "config.json", "hidden_size"),
        ("vlmo/nlvr2_rel", "config.json", "loss_names"),
        ("interbert/optim", "config.json", "t_total"),
    ],
)
def test_what_config_json_lacks_is_named(tmp_path: Path, name: str, file: str, key: str) -> None:
    golden = changed_copy(tmp_path, name, {})
    text = (golden.folder / file).read_text()
    assert f'"{key}"' in text
    (golden.folder / file).write_text(text.replace(f'"{key}"', f'"no_{key}"'))
    result: Any = compare(golden)
    assert result["status"] == "failed" and file in result["reason"] and key in result["reason"]
    assert not re.search(r"(KeyError|AssertionError)", result["reason"])


HANDLED = sorted(g.name for g in SETS.values() if g.part in ("detector", "models", "training"))


@pytest.mark.parametrize("name", HANDLED)
def test_a_set_without_an_input_fails_in_words(name: str) -> None:
    """Its last input, and all inputs: no error without a name, and never a pass without any."""
    inputs = sorted(key for key in SETS[name].tensors if ".in." in f".{key}")
    for without in (inputs[-1:], inputs):
        golden = GoldenSet(GOLDEN, name, SETS[name].entry)
        for key in without:
            del golden.tensors[key]  # type: ignore[attr-defined]
        result: Any = compare(golden)
        assert not re.search(r"(KeyError|AssertionError)", result["reason"])
        if without == inputs and inputs:
            assert result["status"] == "failed" and str(golden.root) in result["reason"]


def test_a_rate_that_falls_in_parts_of_the_same_length() -> None:
    """Detectron2's third schedule says how often the rate falls, not when."""
    keys = {"BASE_LR": 0.5, "GAMMA": 0.1, "NUM_DECAYS": 2, "MAX_ITER": 9, "WARMUP_ITERS": 0}
    named = {"LR_SCHEDULER_NAME": "WarmupStepWithFixedGammaLR"}
    solver = solver_of({f"SOLVER.{name}": value for name, value in (keys | named).items()})
    rates = [rate_factor(iteration, 9, solver) for iteration in range(9)]
    assert rates == pytest.approx([1.0] * 3 + [0.1] * 3 + [0.01] * 3)
