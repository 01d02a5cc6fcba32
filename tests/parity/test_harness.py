"""The comparison itself: what is off by one number, missing or unknown has to fail."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import compare
from tests.parity.results import Results

pytestmark = pytest.mark.nightly

ENTRIES = json.loads((GOLDEN / "index.json").read_text())["sets"]
CopySet = Callable[[str], GoldenSet]


@pytest.fixture
def copy_set(tmp_path: Path) -> CopySet:
    """A set of the committed choice, to be changed; its last case alone."""

    def copy(name: str) -> GoldenSet:
        shutil.copytree(GOLDEN / name, tmp_path / name)
        golden = GoldenSet(tmp_path, name, ENTRIES[name])
        recorded = dict(golden.tensors)
        if golden.cases:
            recorded = {k: v for k, v in recorded.items() if k.startswith(golden.cases[-1])}
        save_file(recorded, golden.folder / "cases.safetensors")
        return GoldenSet(tmp_path, name, ENTRIES[name])

    return copy


def shift(golden: GoldenSet, pattern: str) -> str:
    """Moves the last number of one recorded tensor by three times what is allowed."""
    path = golden.folder / "cases.safetensors"
    recorded = load_file(path)
    key = next(key for key in recorded if key.endswith(pattern))
    allowed = float(golden.allowed(key, recorded[key]).flatten()[-1])
    flat = recorded[key].flatten()
    if flat.dtype == torch.bool:
        flat[-1] = ~flat[-1]
    else:
        flat[-1] += 3 * allowed if flat.is_floating_point() and allowed else 1
    recorded[key] = flat.reshape(recorded[key].shape)
    save_file(recorded, path)
    return key


SHIFTED = {
    "frcnn/bua_caffe": (
        "out.tensor",
        "out.res4",
        "out.proposals",
        "out.features",
        "out.attr_probs",
        "out.sel1_objects_id",
        "out.sel2_bbox",
        "out.refined",
        "caffe.rois",
        "caffe.sel0_ids",
        "caffe.max_conf",
    ),
    "frcnn/d2_r50c4": ("out.rpn_deltas", "out.kept0", "out.final_boxes0", "out.resized0"),
    "frcnn/hf_frcnn": ("out.boxes1", "out.attr_ids0", "out.roi_features1", "out.sizes"),
    "frcnn/ops": ("roi.out.pool", "nms.out.tv_0.5", "coder.out.caffe", "anchor.out.d2_a_0.5"),
    "interbert/vltasks": ("out.vil_logit", "out.image_embedding", "out.match_score"),
    "vilbert/vilbert_pretrain_paperdepth": (
        "out.sequence_output_v",
        "out.masked_img_loss",
        "grad.bert.t_pooler.dense.weight",
        "grad_total_norm",
        "params_without_grad",
    ),
    "vlbert/coordinate_embeddings": ("out.embedding", "out.flat"),
    "vlbert/visual_linguistic_bert": (
        "out.embedding_output",
        "out.encoded_layers",
        "out.object_output",
        "out.object_positions",
        "out.pooled_output",
    ),
    "vlmo/beit_finetuned": ("out.hidden", "out.pooled", "out.logits"),
    "vlmo/dvae_customized": ("out.codebook_indices", "out.logits"),
    "vlmo/nlvr2_rel": ("out.nlvr2_logits", "out.loss"),
}


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, key) for name, keys in SHIFTED.items() for key in keys]
)
def test_one_shifted_number_fails(copy_set: CopySet, name: str, pattern: str) -> None:
    golden = copy_set(name)
    key = shift(golden, pattern)
    result = compare(GoldenSet(golden.root, name, golden.entry))
    assert result["status"] == "failed"
    tensors: Any = result["tensors"]
    assert not tensors[key]["ok"]
    assert key in str(result["reason"])


CHANGED = {
    "evaluation/glue": (0, "metrics", "mcc"),
    "evaluation/nlvr2": (0, "consistency"),
    "evaluation/retrieval": (0, "recall", "text_to_image", "r5"),
    "evaluation/vcr": (0, "interbert", "Q_AR_accuracy"),
    "evaluation/vqa": ("full", "accuracy", "overall"),
}


@pytest.mark.parametrize(("name", "place"), CHANGED.items(), ids=CHANGED)
def test_one_changed_figure_fails(tmp_path: Path, name: str, place: tuple[str | int, ...]) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    path = tmp_path / name / "expected.json"
    expected = json.loads(path.read_text())
    within = expected
    for step in place[:-1]:
        within = within[step]
    within[place[-1]] += 0.02
    path.write_text(json.dumps(expected))
    result = compare(GoldenSet(tmp_path, name, ENTRIES[name]))
    key = f"expected:{'.'.join(map(str, place))}"
    tensors: Any = result["tensors"]
    assert result["status"] == "failed" and [k for k, t in tensors.items() if not t["ok"]] == [key]


def test_one_changed_line_of_a_file_fails(tmp_path: Path) -> None:
    name = "evaluation/vcr"
    shutil.copytree(GOLDEN / name, tmp_path / name)
    path = tmp_path / name / "leaderboard.csv"
    header, first, *rest = path.read_text().splitlines()
    key, value, *others = first.split(",")
    changed = ",".join([key, str(float(value) + 1e-5), *others])
    path.write_text("\n".join([header, changed, *rest]) + "\n")
    result = compare(GoldenSet(tmp_path, name, ENTRIES[name]))
    assert result["status"] == "failed" and f"leaderboard:{key}" in str(result["reason"])


def test_the_copy_itself_passes(copy_set: CopySet) -> None:
    result = compare(copy_set("frcnn/d2_r50c4"))
    assert (result["status"], result["reason"]) == ("passed", "")


def test_a_recorded_output_that_nobody_compares_fails(copy_set: CopySet) -> None:
    golden = copy_set("frcnn/ops")
    save_file({**golden.tensors, "new.out.x": torch.ones(2)}, golden.folder / "cases.safetensors")
    save_file({"case0.grad.out.y": torch.ones(2)}, golden.folder / "grads.safetensors")
    result = compare(GoldenSet(golden.root, golden.name, golden.entry))
    assert result["status"] == "failed"
    assert "not compared" in str(result["reason"]) and "new.out.x" in str(result["reason"])
    assert "grads:case0.grad.out.y" in str(result["reason"])


def test_what_need_not_be_compared_may_be_missing(copy_set: CopySet) -> None:
    golden = copy_set("frcnn/ops")
    save_file({**golden.tensors, "new.out.x": torch.ones(2)}, golden.folder / "cases.safetensors")
    entry = {**golden.entry, "optional": {"new.out.*": "a reason"}}
    assert compare(GoldenSet(golden.root, golden.name, entry))["status"] == "passed"


def test_weights_that_lack_a_key_fail_and_name_it(copy_set: CopySet) -> None:
    golden = copy_set("frcnn/d2_r50c4")
    weights = load_file(golden.weights)
    del weights["roi_heads.box_predictor.bbox_pred.bias"]
    save_file(weights, golden.weights)
    result = compare(golden)
    assert result["status"] == "failed"
    assert "missing roi_heads.box_predictor.bbox_pred.bias" in str(result["reason"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("frcnn/nowhere", {}),
        ("frcnn/ops", {"family": "unheard-of"}),
        ("frcnn/ops", {"part": "models"}),
        ("frcnn/ops", {"tolerance": [["nothing*", {"abs": 1}]]}),
    ],
)
def test_a_set_that_cannot_be_handled_fails(name: str, changes: dict[str, Any]) -> None:
    result = compare(GoldenSet(GOLDEN, name, {**ENTRIES["frcnn/ops"], **changes}))
    assert result["status"] == "failed" and result["reason"] and result["tensors"]
    json.dumps(result, allow_nan=False)


def results_of(tmp_path: Path, recorded: torch.Tensor, **entry: Any) -> Results:
    save_file({"case0.out.x": recorded}, tmp_path / "cases.safetensors")
    tolerance = [["*.x", {"abs": 0.5, "rel": 0.1, "of_max": 0.01}], ["*", {"abs": 100.0}]]
    return Results(GoldenSet(tmp_path, ".", {"tolerance": tolerance, **entry}))


def test_tolerance_by_hand(tmp_path: Path) -> None:
    """0.5 + 0.1 x 10 + 0.01 x 100 for the first number, 0.5 + 10 + 1 for the second."""
    recorded = torch.tensor([10.0, -100.0])
    for ours, ok in (([12.4, -100.0], True), ([12.6, -100.0], False), ([10.0, -111.4], True)):
        results = results_of(tmp_path, recorded)
        results.check("case0.out.x", torch.tensor(ours))
        assert results.tensors["case0.out.x"]["ok"] == ok == (not results.complaints)
    assert results.tensors["case0.out.x"]["allowed"] == pytest.approx(11.5)


def test_what_is_recorded_as_not_finite_leaves_no_room(tmp_path: Path) -> None:
    """NaN matches NaN, infinity infinity, and neither widens what the other numbers may be off."""
    recording = torch.tensor([float("nan"), float("inf"), 1.0])
    save_file({"case0.out.x": recording}, tmp_path / "cases.safetensors")
    entry = {"tolerance": [["*", {"abs": 0.5, "of_max": 0.5, "rel": 0.5}]]}
    for ours, is_ok in (([0, 0, 1.4], True), ([0, 0, 3.1], False), ([0, 1, 0], False)):
        results = Results(GoldenSet(tmp_path, ".", entry))
        mine = torch.tensor([float(x) for x in ours])
        mine[0] = float("nan")
        mine[1] = float("inf") if ours[1] == 0 else mine[1]
        results.check("case0.out.x", mine)
        assert results.tensors["case0.out.x"]["ok"] == is_ok


@pytest.mark.parametrize(
    "ours", [torch.tensor([1.0]), torch.tensor([1.0, float("nan")]), torch.ones(2, 1)]
)
def test_other_shapes_and_nan_never_pass(tmp_path: Path, ours: torch.Tensor) -> None:
    results = results_of(tmp_path, torch.ones(2))
    results.check("case0.out.x", ours)
    assert not results.tensors["case0.out.x"]["ok"] and results.complaints


def test_integers_are_equal_unless_the_index_says_otherwise(tmp_path: Path) -> None:
    exact, tolerant = (
        results_of(tmp_path, torch.tensor([7, 8]), integers=integers)
        for integers in ("exact", "tolerance")
    )
    for results in (exact, tolerant):
        results.check("case0.out.x", torch.tensor([7, 9]))
    assert not exact.tensors["case0.out.x"]["ok"] and tolerant.tensors["case0.out.x"]["ok"]
    exact.check("case0.out.x", torch.tensor([7, 8]))
    assert not exact.tensors["case0.out.x"]["ok"]  # the worst of several comparisons counts


def set_with(tmp_path: Path, values: Any, **entry: Any) -> Results:
    """A set whose recordings are a JSON file."""
    (tmp_path / "rules.json").write_text(json.dumps(values))
    tolerance = [["*.rate", {"abs": 0.5}], ["*", {"abs": 0.0}]]
    return Results(GoldenSet(tmp_path, ".", {"tolerance": tolerance, **entry}))


def test_values_of_json_files_are_recordings(tmp_path: Path) -> None:
    recorded = {"fed": [{"a": 1}, {"a": "x"}], "out": {"rate": [[1.0, 2.0]], "2. b": [1, [2]]}}
    results = set_with(tmp_path, recorded)
    keys = ["rules:fed.0.a", "rules:fed.1.a", "rules:out.rate", "rules:out.2. b"]
    assert list(results.golden.values) == keys
    results.given("rules:fed.0.*")
    results.check_all({"rules:out.rate": [[1.4, 2.0]], "rules:out.2. b": [1, [2]]})
    assert not results.complaints
    results.finish()
    assert results.complaints == ["not compared: rules:fed.1.a"]


@pytest.mark.parametrize(
    ("key", "ours", "ok"),
    [
        ("count", 7, True),
        ("count", 8, False),
        ("count", 7.0, False),
        ("x.rate", [1.0, 2.4], True),
        ("x.rate", [1.0, 2.6], False),
        ("x.rate", [1.0], False),
        ("text", "dog", True),
        ("text", "cat", False),
        ("none", None, True),
        ("none", 0, False),
        ("empty", [], True),
        ("empty", [0], False),
        ("mixed", ["w", [1]], True),
        ("mixed", ["w", [2]], False),
    ],
)
def test_one_value(tmp_path: Path, key: str, ours: Any, ok: bool) -> None:
    values = {"count": 7, "text": "dog", "none": None, "empty": [], "mixed": ["w", [1]]}
    results = set_with(tmp_path, {**values, "x": {"rate": [1, 2.0]}})
    results.check(f"rules:{key}", ours)
    assert results.tensors[f"rules:{key}"]["ok"] == ok == (not results.complaints)
    json.dumps(results.tensors, allow_nan=False)


def test_gradients_by_parameter(tmp_path: Path) -> None:
    """Their own tolerance, and they have to be compared although no key says output."""
    grads = {"case0.grad.a.weight": torch.zeros(2), "case0.gradnorm.a.weight": torch.zeros(1)}
    save_file(grads, tmp_path / "grads.safetensors")
    save_file(grads, tmp_path / "source_weights.safetensors")
    where = {"file": "grads.safetensors", "prefix": "case0.grad.", "norms": "case0.gradnorm."}
    results = results_of(tmp_path, torch.ones(1), gradients={**where, "tolerance": {"abs": 0.25}})
    assert results.golden.gradients == {"a.weight": "grads:case0.grad.a.weight"}
    assert results.golden.gradient_norms == {"a.weight": "grads:case0.gradnorm.a.weight"}
    results.check("grads:case0.grad.a.weight", torch.tensor([0.0, 0.2]))
    assert not results.complaints
    results.check("grads:case0.grad.a.weight", torch.tensor([0.0, 0.3]))
    results.check("case0.out.x", torch.ones(1))
    results.finish()
    assert [c.split(":")[0] for c in results.complaints] == ["grads", "not compared"]
    assert results.complaints[1] == "not compared: grads:case0.gradnorm.a.weight"


def test_parts_are_chosen_by_the_index() -> None:
    assert {golden.part for golden in read_index(GOLDEN, "detector")} == {"detector"}
    assert len(read_index(GOLDEN)) > len(read_index(GOLDEN, "detector"))


def test_the_report_has_what_several_workers_compared_also_when_a_set_fails(
    copy_set: CopySet, pytestconfig: pytest.Config
) -> None:
    """The command itself, in another process: exit status and FILE."""
    golden = copy_set("frcnn/ops")
    key = shift(golden, "pool15x20.out.caffe")
    whole = [copy_set(name) for name in ("interbert/optim", "vlbert/optimizer")]
    sets = {each.name: each.entry for each in (golden, *whole)}
    (golden.root / "index.json").write_text(json.dumps({"sets": sets}))
    report = golden.root / "report.json"
    test = Path(__file__).parent / "test_parity.py"
    # Without the checks of shapes, which each process would compile anew.
    command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-q"]
    command += [str(test), "-n", "2"]
    command += ["--golden", str(golden.root), "--part", "detector", "--part", "training"]
    command += ["--report", str(report)]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    written = json.loads(report.read_text())
    assert set(written) == set(sets)
    assert written["frcnn/ops"]["status"] == "failed"
    assert not written["frcnn/ops"]["tensors"][key]["ok"]
    assert sum(not tensor["ok"] for tensor in written["frcnn/ops"]["tensors"].values()) == 1
    for each in whole:
        assert written[each.name]["status"] == "passed" and written[each.name]["tensors"]


def test_what_is_left_out_is_listed_until_it_is_compared(tmp_path: Path) -> None:
    results = set_with(tmp_path, {"a": 1, "b": [2]})
    results.check("rules:a", 1)
    results.leaves_out("no run has it", "rules:b")
    results.finish()
    assert not results.complaints and results.left_out == {"rules:b": "no run has it"}
    results.check("rules:b", [2])
    results.finish()
    assert results.complaints == ["rules:b is left out (no run has it), but is compared"]
