"""Recorded cases of the families that read text and regions, and their gradients.

B pairs, T tokens, R regions. The recorded names of inputs are those of ViLBERT's code.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from tests.parity.golden import GoldenSet, Results
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models import VLInputs
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
        return self.golden.tensors[f"{self.name}.{key}"]

    def check(self, **outputs: Tensor) -> None:
        """Compares outputs by their recorded names."""
        for key, ours in outputs.items():
            self.results.check(f"{self.name}.out.{key}", ours)

    def pairs(self) -> VLInputs:
        """The recorded inputs; masks that were not given are all ones."""
        tokens, features = self["in.input_ids"], self["in.image_feat"]
        return VLInputs(
            tokens=tokens,
            token_mask=self.mask("in.attention_mask", tokens),
            region_features=features,
            region_locations=self["in.image_loc"],
            region_mask=self.mask("in.image_attention_mask", features[..., 0]),
            segments=self.golden.tensors.get(f"{self.name}.in.token_type_ids"),
        )

    def mask(self, key: str, like: Tensor) -> Tensor:
        """A recorded mask as booleans."""
        return self[key].bool() if key in self else torch.ones(like.shape, dtype=torch.bool)


def open_cases(golden: GoldenSet, results: Results) -> list[Case]:
    """The cases of a set, its model opened as a user opens published weights."""
    model = load_reference(golden.family, golden.weights, golden.config)
    expect_round_trip(golden, model)
    return [Case(name, golden, results, model) for name in golden.cases]


def expect_round_trip(golden: GoldenSet, model: nn.Module) -> None:
    """Exported again, the weights are those of the file, name for name and bit for bit."""
    exported, recorded = export_reference(golden.family, model), load_file(golden.weights)
    assert exported.keys() == recorded.keys(), exported.keys() ^ recorded.keys()
    changed = [name for name in recorded if not torch.equal(recorded[name], exported[name])]
    assert not changed, f"exported with other values: {', '.join(changed)}"


def on_grid(head: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """A head that takes rows, applied to every row of [B, N, H]."""
    return head(hidden.flatten(0, 1)).reshape(*hidden.shape[:2], -1)


def masked_word_loss(case: Case, scores: Tensor) -> Tensor:
    """Mean cross-entropy of all labelled positions, [1]."""
    labels = case["in.masked_lm_labels"]
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-1).reshape(1)


def divergence(scores: Tensor, target: Tensor) -> Tensor:
    """KL divergence of each row's softmax from a distribution; 0 log 0 is 0."""
    return F.kl_div(scores.log_softmax(-1), target, reduction="none").sum(-1)


def check_gradients(case: Case, loss: Tensor, links: Iterable[Link]) -> dict[str, Tensor]:
    """Compares every recorded gradient of ``loss``, and returns all by the reference's names."""
    model: nn.Module = case.model
    model.zero_grad()
    loss.sum().backward()  # type: ignore[no-untyped-call]
    ours = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    exported = export_state(ours, links)
    for name, key in case.golden.gradients.items():
        case.results.check(key, exported[name])
    return exported
