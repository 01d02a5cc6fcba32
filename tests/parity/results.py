"""What a comparison found: deviations by recorded tensor, exchanged ties, and complaints."""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from tests.parity.golden import GoldenSet, NotComparable, numbers
from torch import Tensor


@dataclass
class Results:
    """Deviations of one set, by recorded tensor; of several comparisons the worst counts."""

    golden: GoldenSet
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    exchanges: dict[str, dict[str, Any]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def given(self, *patterns: str) -> None:
        """What the comparison was fed: keys (globs, with the stem) that need not be compared."""
        self.inputs.extend(patterns)

    def leaves_out(self, reason: str, *patterns: str) -> None:
        """What was recorded and no run of ours has, and why: keys as in :meth:`given`."""
        self.left_out |= dict.fromkeys(patterns, reason)

    def check(self, key: str, ours: Any) -> None:
        """Compares with what was recorded as ``key``: a tensor, or a value of a JSON file.

        What a set does not record is not compared; :meth:`finish` finds what it does record and
        nobody compared.
        """
        if key in self.golden.tensors:
            result = self.deviation(key, self.golden.tensors[key], ours.detach().cpu())
            shape = f"{tuple(ours.shape)} {ours.dtype}, not {tuple(self.golden.tensors[key].shape)}"
        elif key in self.golden.values:
            result = self.difference(key, self.golden.values[key], ours)
            shape = f"{ours!r}, not {self.golden.values[key]!r}"[:200]
        else:
            return
        before = self.tensors.get(key)
        if before is None or badness(result) > badness(before):
            self.tensors[key] = result
        if not result["ok"]:
            what = shape if result["max_abs"] is None else result["max_abs"]
            self.complaints.append(f"{key}: {what} (allowed {result['allowed']:.3g})")

    def check_all(self, ours: Mapping[str, Any]) -> None:
        """Several at once."""
        for key, value in ours.items():
            self.check(key, value)

    def exchange(self, key: str, margins: Sequence[float]) -> None:
        """Notes near ties of ``key`` that fell the other way: how many, and the widest margin."""
        if margins:
            noted = self.exchanges.setdefault(key, {"count": 0, "margin": 0.0})
            noted["count"] += len(margins)
            noted["margin"] = max(noted["margin"], *margins)

    def difference(self, key: str, recorded: Any, ours: Any) -> dict[str, Any]:
        """Of JSON values: numbers by their tolerance, everything else has to be the same."""
        numeric = numbers(recorded), numbers(ours)
        if numeric[0] is not None and numeric[1] is not None and numeric[0].numel():
            return self.deviation(key, numeric[0], numeric[1])
        same = bool(recorded == ours)
        return {"max_abs": 0.0 if same else None, "allowed": 0.0, "ok": same}

    def deviation(self, key: str, recorded: Tensor, ours: Tensor) -> dict[str, Any]:
        """The number that is furthest off for what it is allowed."""
        allowed = self.golden.allowed(key, recorded)
        most = float(allowed.max()) if allowed.numel() else 0.0
        same_kind = recorded.is_floating_point() or not ours.is_floating_point()
        if recorded.shape != ours.shape or not same_kind:
            return {"max_abs": None, "allowed": most, "ok": False}
        if not recorded.numel():
            return {"max_abs": 0.0, "allowed": 0.0, "ok": True}
        difference = (ours.double() - recorded.double()).abs()
        difference[(ours == recorded) | (ours.isnan() & recorded.isnan())] = 0.0
        difference = difference.nan_to_num(nan=torch.finfo(torch.float64).max)
        worst = (difference - allowed).argmax()
        off, bound = float(difference.flatten()[worst]), float(allowed.flatten()[worst])
        return {"max_abs": off, "allowed": bound, "ok": off <= bound}

    def fail(self, error: Exception) -> None:
        """Complains of what stopped the comparison, in a sentence that names file and key."""
        message = next(iter(str(error).splitlines()), "")
        if not isinstance(error, NotComparable):
            innermost = traceback.extract_tb(error.__traceback__)[-1]
            message = (
                f"{self.golden.folder}: cannot be compared, "
                f"{Path(innermost.filename).name} line {innermost.lineno} raised "
                f"{type(error).__name__}: {message or innermost.line}"
            )
        self.complaints.append(message)

    def finish(self) -> None:
        """Complains of everything recorded that was not compared."""
        missed = [key for key in self.golden.outputs() if self.is_missed(key)]
        for key in missed:
            self.tensors[key] = {"max_abs": None, "allowed": self.most_allowed(key), "ok": False}
        for pattern, reason in self.left_out.items():
            keys = [key for key in self.golden.outputs() if fnmatchcase(key, pattern)]
            if keys and all(key in self.tensors for key in keys):
                self.complaints.append(f"{pattern} is left out ({reason}), but is compared")
        if missed:
            self.complaints.append(f"not compared: {', '.join(missed)}")

    def is_missed(self, key: str) -> bool:
        """Not compared, no input of the comparison, and not left out with a reason."""
        spared = (*self.inputs, *self.left_out)
        return key not in self.tensors and not any(fnmatchcase(key, p) for p in spared)

    def most_allowed(self, key: str) -> float:
        """The largest deviation that any number of ``key`` may have."""
        recorded = self.golden.tensors.get(key, numbers(self.golden.values.get(key)))
        if recorded is None or not recorded.numel():
            return 0.0
        return float(self.golden.allowed(key, recorded).max())


def badness(result: dict[str, Any]) -> tuple[bool, float]:
    """Orders two results of the same tensor."""
    off, bound = result["max_abs"], result["allowed"]
    return not result["ok"], float("inf") if off is None else off / max(bound, 1e-300)
