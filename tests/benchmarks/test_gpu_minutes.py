"""The GPU check of a few minutes, at its small size on a CPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu_check.minutes import BUDGET_S, MORE_PARTS, PARTS, MinutesPart, main
from benchmarks.gpu_check.minutes_card import launch_times, list_times, product_shares
from benchmarks.gpu_check.minutes_extraction import IDLE, STAGES
from benchmarks.gpu_check.minutes_steps import Bench, host_seconds
from torch import nn

pytestmark = pytest.mark.nightly

CPU = torch.device("cpu")
CARD_S, LONGEST_S = 10, 200  # of the card's own rates before the parts, and of a part
STEP_FIELDS = {
    "first_step_s",
    "step_ms",
    "samples_per_s",
    "mfu",
    "graphs",
    "recompiled",
    "breaks",
    "memory_gb",
    "pairs",
    "waits",
    "captured",
    "loss",
}


def run_minutes(
    folder: Path, *flags: str, parts: Any = (*PARTS, *MORE_PARTS)
) -> tuple[int, list[dict[str, Any]]]:
    """Returns the exit status and the lines that the file receives."""
    status = main(["--tiny", "--out", str(folder), *flags], parts)
    lines = (folder / "minutes.jsonl").read_text(encoding="utf-8").splitlines()
    return status, [json.loads(line) for line in lines]


def test_an_eager_step_has_all_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = run_minutes(tmp_path / "new" / "folder", "--only", "vilbert eager 256")
    assert status == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    card, step, host, end = lines
    assert {line["part"]: line.keys() - {"part", "at_s"} for line in lines} == {
        "card": {"peak_tflops", "copy_tb_s"},
        "vilbert eager 256": STEP_FIELDS,
        "vilbert eager 256/host": {"forward", "backward", "optimizer"},
        "end": set(),
    }
    assert card["copy_tb_s"] > 0 and end["at_s"] > 0
    assert step["pairs"] == 8 and step["samples_per_s"] > 0 and step["mfu"] > 0
    assert step["graphs"] == step["recompiled"] == step["breaks"] == 0
    assert min(host["forward"], host["backward"], host["optimizer"]) > 0


def test_the_parts_fit_the_budget_with_vlmo_at_the_end() -> None:
    seconds = [part.seconds for part in PARTS]
    assert CARD_S + sum(seconds) <= BUDGET_S
    assert max(part.seconds for part in (*PARTS, *MORE_PARTS)) <= LONGEST_S
    of_vlmo = [part.name.startswith("vlmo") for part in PARTS]
    assert of_vlmo == sorted(of_vlmo) and any(of_vlmo)
    names = [part.name for part in (*PARTS, *MORE_PARTS)]
    assert len(set(names)) == len(names)


def test_a_step_ahead_has_the_fields_of_a_step(tmp_path: Path) -> None:
    status, lines = run_minutes(tmp_path, "--only", "vilbert graph 256", "vilbert ahead graph 256")
    assert status == 0
    _, waiting, _, ahead, host, _ = lines
    assert waiting.keys() == ahead.keys() and host["optimizer"] > 0
    assert waiting["loss"] == ahead["loss"]  # after as many steps


def test_without_a_gpu_the_attention_kernel_is_skipped(tmp_path: Path) -> None:
    names = ("attention kernel", "attention flex")
    status, (_, kernel, flex, _) = run_minutes(tmp_path, "--only", *names)
    assert status == 0
    assert kernel["skipped"] == "neither a GPU nor Triton's interpreter"
    assert flex["skipped"] == "needs a GPU"


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not there for this system")
def test_the_attention_kernel_is_compared_and_each_block_size_recorded(tmp_path: Path) -> None:
    """In another process: Triton is told to interpret before it sees a kernel."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.minutes", "--tiny"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--only", "attention kernel"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    _, errors, times, *blocks, best, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert errors["same_bits_again"] and errors["kernel_bias"] < 2e-3
    assert errors["float32_bias"] < 2e-5 and times["kernel_ms"] > times["kernel_forward_ms"] > 0
    assert {line["kernel"] for line in blocks} == {"forward", "query", "key", "bias"}
    assert len(blocks) == 17 and all("ms" in line or "skipped" in line for line in blocks)
    fastest = min(line["ms"] for line in blocks if line["kernel"] == "key" and "ms" in line)
    assert best["key"]["ms"] == fastest


def test_extraction_says_where_the_host_spends_its_time(tmp_path: Path) -> None:
    status, lines = run_minutes(tmp_path, "--only", "extraction")
    assert status == 0
    by_part = {line["part"]: line for line in lines}
    cases = [f"extraction {case}" for case in ("fast 2", "fast 4", "exact 2")]
    paths = [f"{case}/path" for case in cases]
    assert list(by_part) == [
        *("card", cases[0], paths[0], cases[1], paths[1], "extraction decoding"),
        *(cases[2], paths[2], "end"),
    ]
    assert all(by_part[case]["device_images_per_s"] > 0 for case in cases)
    assert by_part[cases[0]]["chunk_ms"].keys() == {"600", "1200", "2400"}
    assert by_part[cases[0]]["chunk_difference"] == {"600": 0.0, "1200": 0.0, "2400": 0.0}
    for path in paths:
        line = by_part[path]
        assert line["images_per_s"] > 0 and line["host_cpu_ms"] > 0
        assert line["host_ms"].keys() == STAGES.keys() and min(line["host_ms"].values()) > 0
        assert line["idle_ms"].keys() == IDLE.keys()
        assert line["pinned"] == [False] and line["images_without_slot"] == 0


def fail(bench: Bench) -> None:
    raise ValueError("first line\nsecond line")


def succeed(bench: Bench) -> None:
    bench.record.write("succeeds", peak=bench.peak > 0)


def test_a_part_that_fails_does_not_stop_the_next_one(tmp_path: Path) -> None:
    parts = (
        MinutesPart(name="fails", seconds=1, run=fail),
        MinutesPart(name="is long", seconds=1000, run=fail),
        MinutesPart(name="succeeds", seconds=1, run=succeed),
    )
    status, (_, failed, skipped, succeeded, end) = run_minutes(tmp_path, parts=parts)
    assert status == 1 and end["part"] == "end"
    assert failed["failed"] == "ValueError: first line\nsecond line"
    assert len(failed["where"]) == 3
    assert skipped["part"] == "is long" and skipped["skipped"] == "no time left"
    assert succeeded["peak"] is True


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "vilbert"], "no part 'vilbert'; choose from 'vilbert graph 256'"),
        (["--out", "FILE"], "cannot write there"),
    ],
)
def test_mistakes_in_flags_end_with_status_2(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path), *(str(file) if flag == "FILE" else flag for flag in flags)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_rates_of_single_operations() -> None:
    launches = launch_times(CPU)
    assert 0 < launches["launch_us"] <= launches["launch_and_run_us"]
    assert product_shares(CPU, 1e6, ((4, 8, 16),))["4x8x16"] > 0
    tensors = [torch.full((3,), 2.0), torch.full((2, 2), 3.0)]
    assert list_times(tensors).keys() == {"foreach_mul_by_tensors_ms", "foreach_mul_by_numbers_ms"}
    assert [set(tensor.flatten().tolist()) for tensor in tensors] == [{2.0}, {3.0}]


def test_the_time_of_each_call_is_collected_and_the_method_restored() -> None:
    layer = nn.Linear(2, 2)
    with host_seconds({"forward": (layer, "forward")}) as seconds:
        assert layer(torch.ones(3, 2)).shape == (3, 2)
        layer(torch.ones(1, 2))
    layer(torch.ones(1, 2))
    assert len(seconds["forward"]) == 2
    assert "forward" not in vars(layer)
