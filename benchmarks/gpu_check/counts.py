"""Counts on a CPU what a GPU's step consists of: operators, casts, the optimizer's calls, shapes.

    python -m benchmarks.gpu_check.counts [MODEL...]

Models have the published numbers of layers and tiny widths: an operator launches one kernel or
more, whatever its size. Milliseconds are the processor's, for a step of 8 pairs. Prints a line of
JSON for each model and form of its step, then one for each kind of batches.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.gpu_check.minutes_steps import host_seconds
from benchmarks.gpu_check.steps import stepper
from benchmarks.gpu_check.tables import TableSizes
from benchmarks.gpu_check.training import (
    CASES,
    PAIRS,
    Work,
    make_accelerator,
    new_model,
    prepared,
    recipe_of,
    table_sizes,
    training_of,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vlmill.models.layers.operators import LayerNorm
from vlmill.train.devices.setup import use_half_norms
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.budgets import Budget, find_budget
from vlmill.train.run.graphs import KEPT
from vlmill.train.run.step import Training, with_uploads

CPU = torch.device("cpu")
WIDTH = 96  # 8 for each of 12 heads
STEPS = 5  # that are timed
BATCHES = 1000  # whose shapes are counted
PRODUCTS = ("addmm", "baddbmm", "bmm", "convolution", "linear", "mm")
NO_KERNEL = ("_reshape_alias", "_unsafe_view", "detach", "empty", "lift_fresh", "new_empty")
# The changes of a step's form, the first as it was before any of them.
FORMS: dict[str, dict[str, bool]] = {
    "autocast": {"casts": False},
    "cast once": {},
    "half_norms": {"half_norms": True},
    "run_ahead": {"ahead": True},
}


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by kind, those that only make views aside. Casts of tensors of ``weights``'
    shapes are those of weights and of their gradients.
    """

    def __init__(self, weights: frozenset[torch.Size] = frozenset()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.counts = weights, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kind := self._kind(func, args):
            self.counts[kind] += 1
        return func(*args, **(kwargs or {}))

    def _kind(self, func: Any, args: Any) -> str:
        name = func.overloadpacket.__name__
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
        if is_view or name.startswith(NO_KERNEL):
            return ""
        if name == "_to_copy":
            return "weight_casts" if args[0].shape in self.weights else "other_casts"
        if "attention" in name:
            return "attention"
        return "products" if any(part in name for part in PRODUCTS) else "others"


def deep_work(variant: str, folder: Path) -> Work:
    """Returns a case's batches of 8 pairs, for a model with all layers of the published one."""
    case = CASES[variant]
    published = recipe_of(case, tiny=False).model
    names = [name for name in vars(published) if name.endswith("width") and name != "region_width"]
    image = {} if case.regions is not None else {"image_size": 32}
    model = dataclasses.replace(published, **dict.fromkeys(names, WIDTH), **image)
    recipe = dataclasses.replace(recipe_of(case, tiny=True), model=model)
    return prepared(recipe, table_sizes(case, tiny=True), folder)


def training_in(form: dict[str, bool], work: Work) -> Training:
    """Returns the training of a new model whose steps have this form."""
    model = new_model(work.recipe)
    if form.get("half_norms"):
        use_half_norms(model)
    accelerator = make_accelerator(work.recipe, CPU)
    casts = form.get("casts", True)
    training = training_of(model, work.recipe, accelerator, pack=True, casts=casts)
    return with_uploads(training) if form.get("ahead") else training


def cast_shapes(module: nn.Module) -> frozenset[torch.Size]:
    """Returns the shapes of parameters that are cast where they are used."""
    parts = [p for p in module.modules() if isinstance(p, nn.Linear | nn.Conv2d | LayerNorm)]
    return frozenset(p.shape for part in parts for p in part.parameters(recurse=False))


def count_step(training: Training, batch: HostBatch) -> dict[str, Any]:
    """Counts the operators of a step's forward and backward passes, and the optimizer's."""
    step, optimizer = stepper(training), training.optimizer
    step(batch)  # makes the optimizer's state
    whole, update = Operators(cast_shapes(training.step_module)), Operators()
    original = optimizer.step

    def counted_update(*arguments: Any) -> Any:
        with update:
            return original(*arguments)

    with patch.object(optimizer, "step", counted_update), whole:
        step(batch)
    # The outer mode sees the optimizer's operators, too.
    return {
        "operators": whole.counts.total() - update.counts.total(),
        **{kind: n - update.counts[kind] for kind, n in sorted(whole.counts.items())},
        "optimizer": update.counts.total(),
    }


def step_milliseconds(training: Training, batch: HostBatch) -> dict[str, float]:
    """Returns the median milliseconds of processor time of each part of a step."""
    parts: dict[str, tuple[object, str]] = {
        "forward_ms": (training.step_module, "forward"),
        "backward_ms": (training.accelerator, "backward"),
        "optimizer_ms": (training.optimizer, "step"),
    }
    step = stepper(training)
    with host_seconds(parts) as seconds:
        for _ in range(STEPS):
            step(batch)
    return {name: round(1e3 * median(values), 1) for name, values in seconds.items()}


def padded_shapes(variant: str, folder: Path) -> dict[str, float]:
    """Counts the shapes of a stage's first batches of the case's size."""
    case = CASES[variant]
    sizes = TableSizes(pairs=PAIRS, regions=case.regions, feature_dim=4, classes=8)
    work = prepared(recipe_of(case, tiny=False), sizes, folder)
    batches = (with_features(work.batches[number]) for number in range(BATCHES))
    return {"batches": BATCHES, **count_shapes(batches)}


def count_shapes(batches: Iterable[HostBatch]) -> dict[str, float]:
    """Counts the shapes of batches, the batches whose graph is not among those that are kept, and
    the share of positions that are padding.
    """
    budget: Budget | None = None
    kept: list[Budget] = []  # the last one used comes last
    budgets, lengths, misses = set[Budget](), set[tuple[int, ...]](), 0
    real = padded = 0
    for batch in batches:
        budget = find_budget(batch, budget)
        misses += budget not in kept
        kept = [*(other for other in kept if other != budget), budget][-KEPT:]
        budgets.add(budget)
        numbers = tuple(len(batch.tensors[f"real_{kind}"]) for kind in ("tokens", "regions"))
        lengths.add(numbers)
        real += sum(numbers)
        padded += budget.real_tokens + budget.real_regions
    return {
        "shapes_without_padding": len(lengths),
        "shapes": len(budgets),
        "without_graph": misses,
        "padding": round(1 - real / padded, 4),
    }


def with_features(batch: HostBatch) -> HostBatch:
    """Returns a planned batch with the shapes of features that have not been read."""
    shape = (*batch.tensors["hidden"].shape, 1)
    features = torch.empty(shape, device="meta")
    return dataclasses.replace(batch, tensors={**batch.tensors, "features": features})


def lines(variants: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the results of these variants."""
    for variant in variants:
        case = CASES[variant]
        (folder / variant).mkdir()
        work = deep_work(variant, folder / variant)
        batch = work.batches.assembled(0)
        for name, form in FORMS.items():
            training = training_in(form, work)
            tensors = sum(p.requires_grad for p in training.step_module.parameters())
            counts = count_step(training, batch)
            times = step_milliseconds(training, batch)
            yield {"model": variant, "form": name, "tensors": tensors, **counts, **times}
        if case.regions is not None:
            (folder / f"{variant}-shapes").mkdir()
            yield {"model": variant, **padded_shapes(variant, folder / f"{variant}-shapes")}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check.counts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", help=f"{', '.join(CASES)} (default: all)")
    models = parser.parse_args(argv).models
    if unknown := [name for name in models if name not in CASES]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(models or list(CASES), Path(folder)):
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
