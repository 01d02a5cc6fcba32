"""Measures what matters most on one GPU within a few minutes, the most informative part first.

Each result is a line of JSON, printed and appended to minutes.jsonl as soon as it is measured, so a
machine that is taken away costs only the part in progress. A part that fails does not stop the
others; the exit status is then 1. A part that would exceed the budget is skipped.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_check import attention_kernel
from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.minutes_card import Record, card_rates
from benchmarks.gpu_check.minutes_extraction import measure_extraction
from benchmarks.gpu_check.minutes_steps import Bench, StepCase, measure_steps

from vlmill.train.devices.throughput import product_rate

BUDGET_S = 540.0
OUT = Path("build/gpu-check")


@dataclass(frozen=True, kw_only=True)
class MinutesPart:
    """Names a part, the seconds that it is expected to take on an H100, and the work."""

    name: str
    seconds: int
    run: Callable[[Bench], object]


def step_part(seconds: int, case: StepCase) -> MinutesPart:
    """Returns the part that measures a case of `minutes_steps`."""
    return MinutesPart(name=case.name, seconds=seconds, run=partial(measure_steps, case))


def case(name: str, pairs: int, **changes: Any) -> StepCase:
    """Returns the case of a name such as "vilbert graph 256": its variant, form and pairs."""
    variant, *form = name.split()
    form_changes = {field: True for field in form if field in ("ahead", "blocks", "graph")}
    return StepCase(
        name=f"{name} {pairs}", variant=variant, pairs=pairs, **{**form_changes, **changes}
    )


KERNEL = {"attention_kernel": True}
KERNELS = {**KERNEL, "residual_kernel": True}
# Together they fit the budget. VLMo's come last, as they take longest.
PARTS = (
    step_part(20, case("vilbert graph", 256)),
    step_part(20, case("vilbert ahead graph", 256)),
    step_part(20, case("vilbert half ahead graph", 256, half_norms=True)),
    step_part(30, case("vilbert ahead graph", 1024)),
    step_part(25, case("imagebert ahead graph", 256)),
    MinutesPart(name="extraction", seconds=100, run=measure_extraction),
    step_part(20, case("vilbert eager", 256)),
    step_part(25, case("interbert ahead graph", 256)),
    step_part(25, case("vl-bert ahead graph", 256)),
    step_part(20, case("vlmo eager", 64)),
    step_part(20, case("vlmo ahead", 64)),
    step_part(20, case("vlmo ahead kernels", 64, **KERNELS)),
    step_part(180, case("vlmo ahead kernel blocks", 64, **KERNEL)),
)
# For a larger budget, or by name.
MORE_PARTS = (
    step_part(25, case("vilbert ahead graph", 512)),
    step_part(80, case("vilbert blocks graph", 256)),
    step_part(90, case("vilbert half blocks graph", 256, half_norms=True)),
    step_part(15, case("vilbert autocast", 256, casts=False, profile=False)),
    MinutesPart(name=attention_kernel.NAME, seconds=40, run=attention_kernel.measure_kernels),
    MinutesPart(name=attention_kernel.FLEX_NAME, seconds=60, run=attention_kernel.measure_flex),
)


def main(
    argv: Sequence[str] | None = None, parts: Sequence[MinutesPart] = (*PARTS, *MORE_PARTS)
) -> int:
    """Runs the parts; returns 1 if one failed."""
    parser = command(parts)
    arguments = parser.parse_args(argv)
    names = [part.name for part in parts]
    for name in arguments.only or ():
        if name not in names:
            parser.error(f"--only: no part {name!r}; choose from {', '.join(map(repr, names))}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        record = Record(arguments.out / "minutes.jsonl")
    except OSError as error:
        parser.error(f"--out {arguments.out}: cannot write there ({error.strerror})")
    chosen = [part for part in parts if not arguments.only or part.name in arguments.only]
    try:
        return run_parts(chosen, record, arguments.budget, tiny=runs_tiny(arguments.tiny))
    finally:
        record.close()


def runs_tiny(asked: bool) -> bool:
    """Returns True for the small size on the CPU, the only one where there is no GPU."""
    if asked or torch.cuda.is_available():
        return asked
    print("# no GPU: at the small size, whose numbers mean nothing", file=sys.stderr)
    return True


def run_parts(parts: Sequence[MinutesPart], record: Record, budget_s: float, *, tiny: bool) -> int:
    """Measures the card, then runs the parts for which there is time; returns 1 if one failed."""
    device = torch.device("cpu" if tiny else "cuda")
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(device=device, tiny=tiny, folder=Path(folder))
        peak = product_rate(device, torch.bfloat16)
        bench = Bench(setting=setting, peak=peak, record=record)
        done = [record.attempt("card", partial(record_card, bench))]
        done += [run_part(part, bench, budget_s) for part in parts]
    record.write("end")
    return 0 if all(done) else 1


def record_card(bench: Bench) -> None:
    """Records the line of the card's own rates."""
    bench.record.write("card", **card_rates(bench.setting.device, bench.peak))


def run_part(part: MinutesPart, bench: Bench, budget_s: float) -> bool:
    """Runs a part, or records that it is skipped; returns False for one that failed."""
    if bench.record.seconds() + part.seconds > budget_s:
        bench.record.write(part.name, skipped="no time left")
        return True
    done = bench.record.attempt(part.name, partial(part.run, bench))
    if bench.setting.device.type == "cuda":
        torch.cuda.empty_cache()
    return done


def command(parts: Sequence[MinutesPart]) -> argparse.ArgumentParser:
    """Declares the flags."""
    listed = "\n".join(f"  {part.name:24}{part.seconds:4} s" for part in parts)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check.minutes",
        description=__doc__,
        epilog=f"parts, after the card's own rates:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="DIR",
        help="folder of minutes.jsonl, to which lines are appended (default: %(default)s)",
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="run on the CPU at the small sizes of the tests; the figures mean nothing",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="S",
        help="skip parts that would end later than after S seconds (default: %(default)g)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="run these parts only, in the order below"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
