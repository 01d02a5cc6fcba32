"""Compares a pretraining run that is killed and continued with an undisturbed one: the same
losses.

Runs are the user's command, each in a process of its own, with dropout. On a GPU some kernels add
in an order that varies (gradients of gathered rows and of attention). If two undisturbed runs
differ there, continuing is held to what they do with PyTorch's deterministic algorithms.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.tables import TableSizes, write_tables

from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.runner import LOG

Lines = list[dict[str, float]]

PLAIN = ("-m", "vlmill.train.cli")
# With warnings, not errors, for what has no deterministic kernel: they are part of the result.
DETERMINISTIC = (
    "-c",
    "import sys, torch; torch.use_deterministic_algorithms(True, warn_only=True); "
    "from vlmill.train.cli import main; sys.exit(main(sys.argv[1:]))",
)
# What cuBLAS needs to be deterministic (PyTorch's notes on reproducibility).
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
POLL_S = 0.005


class RunsDiffer(AssertionError):
    """Is raised if a continued run has other losses than an undisturbed one."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Holds a command with its tables; ``options`` is how Python is told to run it."""

    inputs: Inputs
    fields: tuple[str, ...]
    save_every: int
    options: tuple[str, ...]
    variables: Mapping[str, str]

    def command(self, output: Path) -> list[str]:
        """Returns the whole command line."""
        inputs = self.inputs
        assert inputs.pairs is not None
        assert inputs.regions is not None and inputs.vocab is not None
        return [
            *(sys.executable, *self.options, "pretrain", "imagebert-small"),
            *("--pairs", inputs.pairs, "--regions", inputs.regions, "--vocab", inputs.vocab),
            *("--output", str(output), f"save_every={self.save_every}", *self.fields),
        ]

    def start(self, output: Path) -> "subprocess.Popen[bytes]":
        """Begins or continues a run; what it says goes into a file beside its output."""
        with output.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                self.command(output),
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def finish(self, output: Path) -> Lines:
        """Runs to the end and returns the losses of the whole run, from where it is. Raises
        RuntimeError if it fails.
        """
        if self.start(output).wait():
            raise RuntimeError(f"the run failed: {said(output)[-400:]}")
        return losses_of((output / LOG).read_text(encoding="utf-8"))

    def killed_after_saving(self, output: Path) -> int:
        """Kills a new run with signal 9 once it has saved; returns the step that it can go on from.

        Raises RuntimeError if it has ended before.
        """
        process = self.start(output)
        try:
            while not (saved := saved_steps(output)):
                if process.poll() is not None:
                    raise RuntimeError(f"ended before it could be killed: {said(output)[-400:]}")
                time.sleep(POLL_S)
        finally:
            process.kill()
            status = process.wait()
        if status != -signal.SIGKILL:
            raise RuntimeError("the run ended before it could be killed; give it more steps")
        return max(saved)


def said(output: Path) -> str:
    """Returns all that a run has printed."""
    return output.with_suffix(".log").read_text(encoding="utf-8", errors="replace")


def run(setting: Setting) -> dict[str, object]:
    """Runs the part. Raises RunsDiffer if a continued run is another one."""
    inputs = write_tables(setting.folder, table_sizes(tiny=setting.tiny))
    plain = pretraining(inputs, setting, deterministic=False)
    undisturbed = plain.finish(setting.folder / "undisturbed")
    if setting.device.type != "cuda":
        return line_of(compared(plain, undisturbed, setting.folder / "killed"), undisturbed)
    chance = largest_difference(undisturbed, plain.finish(setting.folder / "again"))
    if not chance:
        line = line_of(compared(plain, undisturbed, setting.folder / "killed"), undisturbed)
        return line | {"between_undisturbed": 0.0, "deterministic_algorithms": False}
    exact = pretraining(inputs, setting, deterministic=True)
    undisturbed = exact.finish(setting.folder / "exact")
    outcome = compared(exact, undisturbed, setting.folder / "killed")
    return line_of(outcome, undisturbed) | {
        "between_undisturbed": chance,
        "deterministic_algorithms": True,
        "without_deterministic_kernel": complaints(said(setting.folder / "exact")),
    }


def table_sizes(*, tiny: bool) -> TableSizes:
    """Returns small tables: what is measured is not speed."""
    if tiny:
        return TableSizes(
            pairs=24, vocabulary=60, longest=20, regions=(4, 10), feature_dim=24, classes=9
        )
    return TableSizes(pairs=256, vocabulary=4000, feature_dim=512, classes=401)


def pretraining(inputs: Inputs, setting: Setting, *, deterministic: bool) -> Pretraining:
    """Returns the small recipe with dropout, which needs the random numbers where they were."""
    tiny = setting.tiny
    on_gpu = setting.device.type == "cuda"
    fields = (
        *("model.dropout=0.1", "model.attention_dropout=0.1", "log_every=1"),
        *(("model.width=16", "model.num_layers=2", "model.num_heads=2") if tiny else ()),
        f"batch_size={6 if tiny else 64}",
        f"steps={12 if tiny else 300}",
        f"precision={'bf16' if on_gpu else 'no'}",
    )
    # A command takes the GPU where it sees one, and threads that wait for each other on busy cores.
    hidden = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return Pretraining(
        inputs=inputs,
        fields=fields,
        save_every=2 if tiny else 50,
        options=DETERMINISTIC if deterministic else PLAIN,
        variables={**hidden, **(WORKSPACE if deterministic else {})},
    )


@dataclass(frozen=True, kw_only=True)
class Continued:
    """Says how a killed and continued run compares."""

    killed_after: int
    difference: float


def compared(command: Pretraining, undisturbed: Lines, output: Path) -> Continued:
    """Kill a run, continue it, and compare its losses. Raises RunsDiffer if one differs."""
    after = command.killed_after_saving(output)
    difference = largest_difference(undisturbed, command.finish(output))
    if difference:
        raise RunsDiffer(
            f"killed after step {after} and continued, losses differ by up to {difference}"
        )
    return Continued(killed_after=after, difference=difference)


def losses_of(log: str) -> Lines:
    """Returns the losses, by name, of each logged step; the rest of a line is time."""
    lines = [json.loads(line) for line in log.splitlines()]
    return [
        {name: value for name, value in line.items() if name in ("step", "lr") or "loss" in name}
        for line in lines
    ]


def largest_difference(undisturbed: Sequence[Mapping[str, float]], other: Lines) -> float:
    """Returns the largest difference over all steps and losses. Raises RunsDiffer if these are not
    the same ones.
    """
    if [set(line) for line in undisturbed] != [set(line) for line in other] or [
        line["step"] for line in undisturbed
    ] != [line["step"] for line in other]:
        raise RunsDiffer(f"{len(other)} logged steps, or other losses, expected {len(undisturbed)}")
    differences = [
        abs(line[name] - twin[name])
        for line, twin in zip(undisturbed, other, strict=True)
        for name in line
    ]
    return float(max(differences))


def complaints(text: str) -> list[str]:
    """Says what PyTorch has said of operators without a deterministic kernel, each once."""
    return sorted({line.strip()[:200] for line in text.splitlines() if "deterministic" in line})


def line_of(continued: Continued, undisturbed: Lines) -> dict[str, object]:
    """Returns the fields of the result."""
    return {
        "value": continued.difference,
        "unit": "largest difference of a loss",
        "limit": 0.0,
        "killed_after_step": continued.killed_after,
        "steps": len(undisturbed),
        "last_loss": undisturbed[-1]["loss"],
    }
