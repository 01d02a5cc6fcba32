"""Measures training steps of the five models: samples per second, and the share of the card's peak.

A step is `vlmill.train.run.step.train_step` on batches of several lengths in turn: moving the
batch, forward, backward, clipping and the optimiser, in bfloat16 as recipes have it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from statistics import median
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from benchmarks.gpu_check.measuring import (
    Setting,
    peak_memory_gb,
    places_of_waits,
    reset_peak_memory,
)
from benchmarks.gpu_check.training import (
    CASES,
    Work,
    compiled,
    make_accelerator,
    new_model,
    training_of,
    work_of,
)
from benchmarks.gpu_check.utilisation import padding_share, useful_operations, utilisation
from torch import nn
from torch._dynamo.utils import counters

from vlmill.train.devices.throughput import product_rate, run_without_values, wait_for
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import read_features
from vlmill.train.run.pretraining import make_step
from vlmill.train.run.step import Training, train_step

GOAL, NEXT_GOAL = 0.45, 0.5  # of the card's measured rate of products
BATCHES, ROUNDS = 8, 3  # 24 timed steps
TINY_BATCHES, TINY_ROUNDS = 3, 1
PLACES_NAMED = 8  # of waits, in the result

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Form:
    """Says how a step is computed."""

    name: str
    pack: bool
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Holds forms that are measured on the same batches; ``loading`` are fields of the recipe.

    What is compiled gets batches of like lengths (docs/training.md), which differ from each other:
    among 256 pairs in any order some pair is nearly always as long as can be.
    """

    forms: tuple[Form, ...]
    loading: tuple[str, ...] = ()


EAGER = Comparison(forms=(Form(name="grid", pack=False), Form(name="packed", pack=True)))
COMPILED = Comparison(
    forms=(Form(name="compiled-grid", pack=False, compile=True),),
    loading=("loading.bucket=8", "loading.pad_to=8"),
)
COMPILED_PACKED = Comparison(
    forms=(Form(name="compiled-packed", pack=True, compile=True),), loading=("loading.bucket=8",)
)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Holds the seconds of each step of each round over the same batches."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def round_s(self) -> float:
        """Returns the median over the rounds: batches differ, so single steps do not compare."""
        return median(sum(steps) for steps in self.rounds)

    @property
    def step_s(self) -> float:
        """Returns the median over all steps."""
        return median(step for steps in self.rounds for step in steps)


def run_steps(variant: str, compared: Comparison, setting: Setting) -> dict[str, object]:
    """Runs a part: forms of a variant's step beside each other, the fastest as the value."""
    work = work_of(CASES[variant], setting, compared.loading)
    peak = product_rate(setting.device, torch.bfloat16)
    pairs, measured = fitting(
        work.stage.batch_size,
        lambda size: measure(work.with_batches_of(size), compared.forms, setting),
    )
    return line_of(measured, peak, pairs) | {
        "asked_batch_size": work.stage.batch_size,
        "loading": compared.loading,
    }


def fitting(pairs: int, measured: Callable[[int], Result]) -> tuple[int, Result]:
    """Returns ``measured(pairs)`` with the first of ``pairs``, half of them and so on that fits the
    memory.

    Raises OutOfMemoryError if not even a single pair does.
    """
    while True:
        try:
            return pairs, measured(pairs)
        except torch.OutOfMemoryError:
            if pairs == 1:
                raise
        # Behind the handler, whose traceback holds the tensors of what did not fit.
        torch.cuda.empty_cache()
        pairs //= 2


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Holds the forms' results on the same batches, which take ``operations`` useful ones
    together.
    """

    forms: dict[str, dict[str, Any]]
    operations: int
    samples: int
    padding: float


def measure(work: Work, forms: Sequence[Form], setting: Setting) -> Measured:
    """Measures all forms on the same batches, with the same model: making one takes seconds."""
    batches = real_batches(work, TINY_BATCHES if setting.tiny else BATCHES, setting.device)
    accelerator = make_accelerator(work.recipe, setting.device)
    model = new_model(work.recipe)
    operations = count_useful(work, batches)
    return Measured(
        forms={
            form.name: measure_form(form, work, model, batches, accelerator, setting)
            for form in forms
        },
        operations=operations,
        samples=sum(len(batch.pair_ids) for batch in batches),
        padding=padding_share(batches),
    )


def real_batches(work: Work, number: int, device: torch.device) -> list[HostBatch]:
    """Returns the stage's first batches, in memory that the device can read by itself."""
    regions, pin = work.batches.regions, device.type == "cuda"
    return [read_features(work.batches[at], regions, pin_memory=pin) for at in range(number)]


def count_useful(work: Work, batches: Sequence[HostBatch]) -> int:
    """Returns useful operations of a step on each of the batches, together.

    Counted without values: that takes no memory, and needs no kernel that the counter may not know.
    """
    with torch.device("meta"):
        model = new_model(work.recipe)
    step = make_step(model, work.stage.objectives, pack=True).train()
    return sum(
        useful_operations(
            partial(run_without_values, step, batch), batch, work.recipe.variant, work.recipe.model
        )
        for batch in batches
    )


def measure_form(
    form: Form,
    work: Work,
    model: nn.Module,
    batches: Sequence[HostBatch],
    accelerator: Accelerator,
    setting: Setting,
) -> dict[str, Any]:
    """Measures the times, memory, waits and recompilations of a form; the first round is its
    warm-up.
    """
    device = setting.device
    torch._dynamo.reset()
    counters.clear()
    training = training_of(model, work.recipe, accelerator, pack=form.pack)
    if form.compile:
        training = compiled(training, tiny=setting.tiny)
    step = stepper(training)
    started = time.perf_counter()
    step(batches[0])
    wait_for(device)
    first_s, first_graphs = time.perf_counter() - started, graphs()
    for batch in batches:
        step(batch)
    reset_peak_memory(device)
    rounds = TINY_ROUNDS if setting.tiny else ROUNDS
    times = timed_rounds(step, batches, rounds, device)
    memory = peak_memory_gb(device)
    waits = places_of_waits(partial(step, batches[0]))
    result: dict[str, Any] = {
        "round_s": times.round_s,
        "step_ms": round(1000 * times.step_s, 2),
        "peak_memory_gb": memory and round(memory, 2),
        "waits_of_host": None if waits is None else len(waits),
        "waits_at": None if waits is None else sorted(set(waits))[:PLACES_NAMED],
        "parameters_m": round(number_of_parameters(training.step_module) / 1e6, 1),
    }
    if form.compile:
        result |= {
            "first_step_s": round(first_s, 1),
            "graphs": first_graphs,
            "recompilations": graphs() - first_graphs,
            "graph_breaks": sum(counters["graph_break"].values()),
        }
    return result


def stepper(training: Training) -> Callable[[HostBatch], dict[str, float]]:
    """Takes a batch and trains on it, each time as the next step of a run."""
    numbers = count(1)
    return lambda batch: train_step(next(numbers), [batch], training)


def timed_rounds(
    step: Callable[[HostBatch], object],
    batches: Sequence[HostBatch],
    rounds: int,
    device: torch.device,
) -> Times:
    """Returns the seconds by the clock. The device is waited for at the ends of rounds, not between
    steps: so the host may run ahead, as in a run.
    """
    every = []
    for _ in range(rounds):
        wait_for(device)
        ends = [time.perf_counter()]
        for batch in batches:
            step(batch)
            ends.append(time.perf_counter())
        wait_for(device)
        ends[-1] = time.perf_counter()
        every.append(tuple(end - begun for begun, end in pairwise(ends)))
    return Times(rounds=tuple(every))


def graphs() -> int:
    """Counts graphs that were compiled since the counters were cleared."""
    return int(counters["stats"]["unique_graphs"])


def number_of_parameters(module: nn.Module) -> int:
    """Counts the numbers that are trained."""
    return sum(parameter.numel() for parameter in module.parameters())


def line_of(measured: Measured, peak: float, batch_size: int) -> dict[str, object]:
    """Returns the fields of a part's result. ``limit`` are samples per second at the card's own
    peak.
    """
    forms = {
        name: {**{k: v for k, v in form.items() if k != "round_s"}, **rates}
        for name, form in measured.forms.items()
        for rates in [rates_of(measured, form["round_s"], peak)]
    }
    first, *_ = forms
    best = max(forms, key=lambda name: forms[name]["samples_per_second"])
    value, share = forms[best]["samples_per_second"], forms[best]["mfu"]
    peer = None if len(forms) == 1 else forms[first]["samples_per_second"]
    return {
        "value": value,
        "unit": "samples/s",
        "peer": peer,
        "ratio": peer and round(value / peer, 3),
        "limit": round(measured.samples * peak / measured.operations, 2),
        "fraction_of_limit": share,
        "best": best,
        "goal": GOAL,
        "next_goal": NEXT_GOAL,
        "reached": [goal for goal in (GOAL, NEXT_GOAL) if share >= goal],
        "forms": forms,
        "batch_size": batch_size,
        "padding": round(measured.padding, 3),
        "gflop_per_sample": round(measured.operations / measured.samples / 1e9, 3),
        "peak_tflops": round(peak / 1e12, 2),
    }


def rates_of(measured: Measured, round_s: float, peak: float) -> dict[str, float]:
    """Returns the samples per second and utilisation of a round over all batches."""
    return {
        "samples_per_second": round(measured.samples / round_s, 2),
        "mfu": round(utilisation(measured.operations, round_s, peak), 4),
    }


def parts_of(variant: str) -> tuple[Callable[[Setting], dict[str, object]], ...]:
    """Returns a variant's parts; compiling takes so long that each compiled form is a part."""
    return tuple(partial(run_steps, variant, forms) for forms in (EAGER, COMPILED, COMPILED_PACKED))


# Named by `parts.PARTS`.
vilbert, vilbert_compiled, vilbert_compiled_packed = parts_of("vilbert")
vl_bert, vl_bert_compiled, vl_bert_compiled_packed = parts_of("vl-bert")
interbert, interbert_compiled, interbert_compiled_packed = parts_of("interbert")
imagebert, imagebert_compiled, imagebert_compiled_packed = parts_of("imagebert")
vlmo, vlmo_compiled, vlmo_compiled_packed = parts_of("vlmo")
