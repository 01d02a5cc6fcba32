"""A set's network, opened as a user opens published weights, and its recorded cases."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.parity.golden import GoldenSet, NotComparable, expect, read_tensors
from tests.parity.results import Results
from tests.parity.ties import settle
from torch import Tensor, nn

from vlmill.models.convert.keymap import Link, export_state
from vlmill.models.published import export_reference, load_reference


@dataclass(frozen=True)
class Case:
    """One batch of a set, with the model in the published layout's weights."""

    name: str
    golden: GoldenSet
    results: Results
    model: Any

    def __contains__(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.golden.tensors

    def __getitem__(self, key: str) -> Tensor:
        """A recorded tensor; integers of any size as int64, which our networks take."""
        tensor = self.golden.tensors[f"{self.name}.{key}"]
        is_integer = not tensor.is_floating_point() and tensor.dtype != torch.bool
        return tensor.long() if is_integer else tensor

    def optional(self, key: str) -> Tensor | None:
        """A recorded tensor, or None where there is none."""
        is_recorded = key in self
        return self[key] if is_recorded else None

    def check(self, **outputs: Tensor) -> None:
        """Compares outputs by their recorded names."""
        for key, ours in outputs.items():
            self.results.check(f"{self.name}.out.{key}", ours)

    def mask(self, key: str, like: Tensor) -> Tensor:
        """A recorded mask as booleans."""
        return self[key].bool() if key in self else torch.ones(like.shape, dtype=torch.bool)

    def settle(
        self,
        decision: str,
        mine: Tensor,
        scores: str,
        view: Callable[[Tensor], Tensor] = lambda recorded: recorded,
        *,
        is_choice: bool = True,
    ) -> Tensor:
        """Our choices ``mine`` [...] with near ties as recorded: see :func:`ties.settle`.

        ``view`` brings the recorded output ``scores`` to [..., C]. Where ``decision`` is no choice
        but a sum over choices, ``is_choice`` is False and the recorded scores tell them.
        """
        scores_key, key = f"{self.name}.out.{scores}", f"{self.name}.out.{decision}"
        if scores_key not in self.golden.tensors:
            return mine
        recorded = view(self.golden.tensors[scores_key])
        choice = self.golden.tensors.get(key) if is_choice else None
        return settle(self.results, key, mine, scores_key, recorded, choice)


def open_model(
    golden: GoldenSet, weights: Path | None = None, config: Mapping[str, Any] | None = None
) -> nn.Module:
    """The network of a set; ``weights``: of another file than its own, ``config`` likewise.

    Raises NotComparable with what the importer says of configuration or weights.
    """
    path = weights or golden.weights
    expect(path.is_file(), f"{path}: no such file, which holds the network's weights")
    try:
        return load_reference(golden.family, path, golden.config if config is None else config)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise NotComparable(f"{golden.folder / 'config.json'} and {path}: {said}") from None


def open_cases(
    golden: GoldenSet, results: Results, config: Mapping[str, Any] | None = None
) -> list[Case]:
    """The cases of a set whose weights come out again as they came in."""
    model = open_model(golden, config=config)
    expect_round_trip(golden, export_reference(golden.family, model), read_tensors(golden.weights))
    return [Case(name, golden, results, model) for name in golden.cases]


def expect_round_trip(
    golden: GoldenSet, exported: dict[str, Tensor], recorded: dict[str, Tensor]
) -> None:
    """Exported again, the weights are those of the file, name for name and bit for bit."""
    names = sorted(exported.keys() ^ recorded.keys())
    expect(not names, f"{golden.weights}: in the file or in our export alone: {', '.join(names)}")
    changed = [name for name in recorded if not torch.equal(recorded[name], exported[name])]
    expect(not changed, f"{golden.weights}: exported with other values: {', '.join(changed)}")


def compare_gradients(
    golden: GoldenSet, results: Results, model: nn.Module, links: Iterable[Link]
) -> None:
    """Under the reference's names; no gradient where none was recorded."""
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    exported = export_state(ours, links)
    names = sorted(exported.keys() ^ golden.gradients.keys())
    expect(not names, f"{golden.folder}: a gradient here or there alone: {', '.join(names)}")
    for name, key in golden.gradients.items():
        results.check(key, exported[name])


def check_gradients(case: Case, loss: Tensor, links: Iterable[Link]) -> dict[str, Tensor]:
    """Compares every recorded gradient of ``loss``, and returns all by the reference's names."""
    model: nn.Module = case.model
    model.zero_grad()
    loss.sum().backward()  # type: ignore[no-untyped-call]
    ours = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    exported = export_state(ours, links)
    without = sorted(case.golden.gradients.keys() - exported.keys())
    expect(not without, f"{case.golden.folder}: gradients of {', '.join(without)}: we have none")
    for name, key in case.golden.gradients.items():
        case.results.check(key, exported[name])
    return exported
