"""Recordings of published systems, and the comparison with them.

A set is a folder with config.json, cases.safetensors and, where there is a network, its weights;
index.json says what each set is and how far a number may be off.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WEIGHTS = "weights.safetensors"


class NotComparable(Exception):
    """A set that these tests cannot handle."""


@dataclass(frozen=True)
class GoldenSet:
    """A set of recorded tensors: ``FAMILY/NAME`` and its entry in index.json."""

    root: Path
    name: str
    entry: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def part(self) -> str:
        return str(self.entry["part"])

    @property
    def family(self) -> str:
        """Whose conventions; index.json's word counts, not config.json's."""
        return str(self.entry["family"])

    @property
    def weights(self) -> Path:
        """This set's weights, or those of the set that it names."""
        return self.root / str(self.entry.get("weights", self.name)) / WEIGHTS

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return config

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Everything recorded; tensors of other files than cases.safetensors as ``STEM:key``."""
        recorded: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name == WEIGHTS:
                continue
            prefix = "" if path.stem == "cases" else f"{path.stem}:"
            recorded |= {prefix + key: value for key, value in load_file(path).items()}
        if not recorded:
            raise NotComparable(f"{self.folder} has no recorded tensors")
        return recorded

    @property
    def cases(self) -> list[str]:
        """``case0``, ``case1``, ..."""
        names = {key.split(".")[0] for key in self.tensors}
        return sorted(name for name in names if name.startswith("case"))

    def outputs(self) -> Iterator[str]:
        """What has to be compared."""
        spared = {*self.entry.get("optional", ()), *self.entry.get("except", ())}
        for key in self.tensors:
            if is_output(bare(key)) and not any(fnmatchcase(bare(key), p) for p in spared):
                yield key

    def allowed(self, key: str, recorded: Tensor) -> Tensor:
        """How far each number of a tensor may be off, by the first pattern that fits its key."""
        if not recorded.is_floating_point() and self.entry.get("integers") != "tolerance":
            return torch.zeros(recorded.shape, dtype=torch.float64)
        values = recorded.double().abs()
        for pattern, bounds in self.entry["tolerance"]:
            if fnmatchcase(bare(key), pattern):
                largest = float(values.max()) if values.numel() else 0.0
                fixed = bounds.get("abs", 0.0) + bounds.get("of_max", 0.0) * largest
                return values * float(bounds.get("rel", 0.0)) + float(fixed)
        raise NotComparable(f"{self.name}: no tolerance for {key}")


def bare(key: str) -> str:
    """A key as it stands in its file."""
    return key.partition(":")[2] if ":" in key else key


def is_output(key: str) -> bool:
    return ".out." in key or key.startswith(("out.", "caffe.")) or ".caffe." in key


@dataclass
class Results:
    """Deviations of one set, by recorded tensor; of several comparisons the worst counts."""

    golden: GoldenSet
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def check(self, key: str, ours: Tensor) -> None:
        """Compares with the recorded tensor ``key``."""
        recorded = self.golden.tensors[key]
        result = self.deviation(key, recorded, ours.detach().cpu())
        before = self.tensors.get(key)
        if before is None or badness(result) > badness(before):
            self.tensors[key] = result
        if not result["ok"]:
            what = result["max_abs"]
            if what is None:
                what = f"{tuple(ours.shape)} {ours.dtype}, not {tuple(recorded.shape)}"
            self.complaints.append(f"{key}: {what} (allowed {result['allowed']:.3g})")

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
        """Complains of what stopped the comparison."""
        first = next(iter(str(error).splitlines()), "")
        self.complaints.append(f"{type(error).__name__}: {first}")

    def finish(self) -> None:
        """Complains of everything recorded that was not compared."""
        missed = [key for key in self.golden.outputs() if key not in self.tensors]
        for key in missed:
            allowed = self.golden.allowed(key, self.golden.tensors[key])
            most = float(allowed.max()) if allowed.numel() else 0.0
            self.tensors[key] = {"max_abs": None, "allowed": most, "ok": False}
        if missed:
            self.complaints.append(f"not compared: {', '.join(missed)}")


def badness(result: dict[str, Any]) -> tuple[bool, float]:
    """Orders two results of the same tensor."""
    off, bound = result["max_abs"], result["allowed"]
    return not result["ok"], float("inf") if off is None else off / max(bound, 1e-300)


def read_index(root: Path, part: str | None = None) -> list[GoldenSet]:
    """The sets of ``root``, all or of one part."""
    entries = json.loads((root / "index.json").read_text())["sets"]
    return [
        GoldenSet(root, name, entry)
        for name, entry in entries.items()
        if part is None or entry["part"] == part
    ]
