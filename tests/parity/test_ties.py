"""Near ties: exchanged, counted and reported where scores are nearly equal, failures elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import compare
from tests.parity.results import Results
from tests.parity.ties import settle
from tests.parity.variants_detector import small_set
from torch import Tensor

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

SETS = {golden.name: golden for golden in read_index(GOLDEN)}
ROWS = ("pred_boxes", "scores", "classes", "kept", "final_boxes", "final_scores", "final_classes")
DETECTOR, TOKENIZER = "frcnn/d2_r50c4", "vlmo/dvae_customized"


def changed(name: str, **tensors: Tensor) -> GoldenSet:
    """A committed set with other tensors than its file has, scores within 0.002."""
    entry = SETS[name].entry
    tolerance = [["*.out.*scores0", {"abs": 0.002}], *entry["tolerance"]]
    golden = GoldenSet(GOLDEN, name, {**entry, "tolerance": tolerance})
    golden.__dict__["tensors"] = {**golden.tensors, **tensors}  # where cached properties are kept
    return golden


def steps(case: str) -> Tensor:
    """How far each score of a case's detections is above the next one's."""
    return -SETS[DETECTOR].tensors[f"{case}.out.scores0"].double().diff()


def with_rows_turned(case: str, first: int) -> GoldenSet:
    """A case's detections with rows ``first`` and the next turned, as if the reference did so."""
    golden = SETS[DETECTOR]
    keys = [f"{case}.out.{name}0" for name in ROWS]
    order = torch.arange(len(golden.tensors[keys[0]]))
    order[[first, first + 1]] = order[[first + 1, first]]
    return changed(DETECTOR, **{key: golden.tensors[key][order] for key in keys})


def test_nearly_tied_rows_may_be_turned_and_are_reported() -> None:
    case = SETS[DETECTOR].cases[-1]
    closest = float(steps(case).min())
    result: Any = compare(with_rows_turned(case, int(steps(case).argmin())))
    assert (result["status"], result["reason"]) == ("passed", "")
    noted = result["exchanges"][f"{case}.out.kept0"]
    assert noted["count"] >= 1 and noted["margin"] == pytest.approx(closest)
    json.dumps(result, allow_nan=False)


def test_rows_with_other_scores_may_not_be_turned() -> None:
    case = SETS[DETECTOR].cases[-1]
    result: Any = compare(with_rows_turned(case, int(steps(case).argmax())))
    assert result["status"] == "failed" and f"{case}.out.kept0" in result["reason"]
    assert not result["exchanges"]


def tokenizer_set(tmp_path: Path, shift: float) -> GoldenSet:
    """The tokenizer with a second token like the one chosen first, off by ``shift``, recorded so.

    The recording says the second one, at every place where the first was chosen.
    """
    golden = SETS[TOKENIZER]
    folder = tmp_path / TOKENIZER
    folder.mkdir(parents=True)
    for name in ("config.json", "README.md"):
        (folder / name).write_bytes((golden.folder / name).read_bytes())
    weights, recorded = load_file(golden.weights), dict(golden.tensors)
    head = max(name for name in weights if name.startswith("encoder.") and name.endswith("bias"))
    kernel = head.replace("bias", "weight")
    first = int(recorded["case0.out.codebook_indices"].flatten()[0])
    second = (first + 1) % len(weights[head])
    weights[kernel][second], weights[head][second] = weights[kernel][first], weights[head][first]
    weights[head][second] -= shift
    for case in golden.cases:
        logits = recorded[f"{case}.out.logits"].clone()
        logits[:, second] = logits[:, first] - shift
        tokens = logits.argmax(1)
        recorded[f"{case}.out.logits"] = logits
        recorded[f"{case}.out.codebook_indices"] = tokens.where(tokens != first, second)
    save_file(weights, folder / "weights.safetensors")
    save_file(recorded, folder / "cases.safetensors")
    return GoldenSet(tmp_path, TOKENIZER, golden.entry)


def test_a_choice_between_nearly_tied_scores_may_be_the_other(tmp_path: Path) -> None:
    result: Any = compare(tokenizer_set(tmp_path, 2e-6))
    assert (result["status"], result["reason"]) == ("passed", "")
    noted = result["exchanges"]["case0.out.codebook_indices"]
    assert noted["count"] >= 1 and noted["margin"] <= 1e-5


def test_a_choice_of_a_lower_score_fails(tmp_path: Path) -> None:
    result: Any = compare(tokenizer_set(tmp_path, 1e-3))
    assert result["status"] == "failed" and not result["exchanges"]
    assert "case0.out.codebook_indices" in result["reason"]


def test_settled_choices_by_hand(tmp_path: Path) -> None:
    """Of rows of two scores: a tie within 0.1, one beyond, and one where both agree."""
    recorded = torch.tensor([[1.0, 1.05], [1.0, 1.2], [1.0, 3.0]])
    save_file({"case0.out.scores": recorded}, tmp_path / "cases.safetensors")
    results = Results(GoldenSet(tmp_path, ".", {"tolerance": [["*", {"abs": 0.1}]]}))
    mine = torch.tensor([0, 0, 1])
    chosen = settle(results, "case0.out.choice", mine, "case0.out.scores", recorded)
    assert chosen.tolist() == [1, 0, 1]
    assert results.exchanges["case0.out.choice"]["count"] == 1
    assert results.exchanges["case0.out.choice"]["margin"] == pytest.approx(0.05)


def test_proposals_that_nearly_tie_may_be_others_from_the_image_on(tmp_path: Path) -> None:
    """A network off by a ten-thousandth drops other proposals at the cuts, and says so."""
    golden, _ = small_set(tmp_path, "detectron2", {}, seed=3)
    weights = load_file(golden.weights)
    torch.manual_seed(3)
    for name, values in weights.items():
        if values.is_floating_point() and "running" not in name and "anchor_gen" not in name:
            weights[name] = values * (1 + 1e-4 * torch.randn_like(values))
    save_file(weights, golden.weights)
    near = [["*.proposals*", {"abs": 0.3}], ["*box*", {"abs": 0.5}], ["*decoded*", {"abs": 0.5}]]
    others = [["*", {"abs": 3e-3, "of_max": 5e-3}]]
    entry = {**golden.entry, "tolerance": near + others}
    passing: Any = compare(GoldenSet(tmp_path, golden.name, entry))
    assert (passing["status"], passing["reason"]) == ("passed", "")
    noted = passing["exchanges"]["case0.out.proposals1"]
    assert noted["count"] >= 1 and 0 < noted["margin"] < 1e-3
    exact = [["*.proposal_logits*", {"abs": 1e-6}], *near, *others]
    failing: Any = compare(GoldenSet(tmp_path, golden.name, {**entry, "tolerance": exact}))
    assert failing["status"] == "failed" and "case0.out.proposals1" in failing["reason"]
