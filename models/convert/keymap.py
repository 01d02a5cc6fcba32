"""Matches names and layouts of published checkpoints with the models', in both directions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Link:
    """Maps a tensor of a model to tensors in a reference's layout.

    ours: a name in the model's state dict. theirs: the reference's tensors, of equal size, that the
    model concatenates along the first axis (query, key, value). also: names under which the
    reference stores the whole tensor again (tied weights). rows: the leading rows that the
    reference has, if the model has more (None: all).
    """

    name: str
    references: tuple[str, ...]
    also: tuple[str, ...] = ()
    rows: int | None = None


def link_module(
    module: str, *references: str, parts: Sequence[str] = ("weight", "bias")
) -> list[Link]:
    """Links a module's tensors: ``linked("out", "output.dense")`` for weight and bias."""
    return [Link(f"{module}.{p}", tuple(f"{name}.{p}" for name in references)) for p in parts]


def list_references(links: Iterable[Link]) -> set[str]:
    """Returns all names of the reference's tensors that ``links`` read."""
    return {name for link in links for name in (*link.references, *link.also)}


@dataclass(frozen=True)
class LoadTable:
    """Lists how the tensors of a checkpoint and of a model were matched.

    loaded: the model's name to the reference's names. missing: the model's tensors that stay as
    initialised, with the names that were looked for. unexpected: the reference's tensors without a
    match. mismatched: the model's name, the model's shape, the reference's shape.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unexpected: tuple[str, ...] = ()
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"loaded      {len(self.loaded)} tensors"]
        for parameter, references in sorted(self.missing.items()):
            lines.append(
                f"missing     {' + '.join(references)} (stays as initialised: {parameter})"
            )
        lines += [f"unexpected  {name} (ignored)" for name in self.unexpected]
        for parameter, (want, actual) in sorted(self.mismatched.items()):
            lines.append(
                f"shape       {parameter} is {list(want)} here, {list(actual)} in the checkpoint"
            )
        return "\n".join(lines)


class CheckpointMismatch(ValueError):
    """Raised if a checkpoint does not fit the model; the message ends with the table."""

    def __init__(self, reason: str, table: LoadTable) -> None:
        super().__init__(f"{reason}\n{table}")
        self.table = table


@torch.no_grad()
def import_state(
    model: nn.Module,
    links: Iterable[Link],
    state: Mapping[str, Tensor],
    *,
    ignored: Sequence[str] = (),
) -> LoadTable:
    """Copies a reference's tensors into ``model`` and returns a table of the matches.

    Nothing is copied if any shape differs. Names that match an ``ignored`` pattern are not reported
    as unexpected (index buffers that the model builds).
    """
    targets = dict(model.state_dict(keep_vars=True))
    loaded: dict[str, tuple[str, ...]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    used: set[str] = set()
    for link in links:
        names = _present(link, state)
        used |= {*link.references, *link.also}
        if names is None:
            missing[link.name] = link.references
            continue
        target = targets[link.name]
        part = target if link.rows is None else target[: link.rows]
        source = _joined([state[name] for name in names])
        if source is None or part.shape != source.shape:
            shapes = [tuple(state[name].shape) for name in names]
            mismatched[link.name] = (
                tuple(part.shape),
                shapes[0] if source is None else tuple(source.shape),
            )
            continue
        part.copy_(source)
        loaded[link.name] = names
    left = sorted(set(state) - used)
    return LoadTable(
        loaded=loaded,
        missing=missing,
        unexpected=tuple(n for n in left if not any(fnmatchcase(n, p) for p in ignored)),
        mismatched=mismatched,
    )


def _present(link: Link, state: Mapping[str, Tensor]) -> tuple[str, ...] | None:
    if all(name in state for name in link.references):
        return link.references
    tied = [name for name in link.also if name in state]
    return (tied[0],) if tied else None


def _joined(parts: list[Tensor]) -> Tensor | None:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if len({part.shape for part in parts}) == 1 else None


def export_state(tensors: Mapping[str, Tensor], links: Iterable[Link]) -> dict[str, Tensor]:
    """Returns a model's tensors, or others of their shapes (gradients), under a reference's names.

    Tensors that ``tensors`` lacks are omitted.
    """
    exported: dict[str, Tensor] = {}
    for link in links:
        if link.name not in tensors:
            continue
        tensor = tensors[link.name] if link.rows is None else tensors[link.name][: link.rows]
        # A scalar cannot be split, not even into one part.
        parts = tensor.chunk(len(link.references)) if len(link.references) > 1 else (tensor,)
        exported |= dict(zip(link.references, parts, strict=True))
        exported |= dict.fromkeys(link.also, tensor)
    return exported


class Family(NamedTuple):
    """Describes how to convert one repository's checkpoints to vlmill models, and back.

    configs: the configuration classes of the models. configure: converts the repository's
    configuration (a mapping with its keys). build: builds a model from such a configuration. links:
    matches the model's tensors with the repository's. prepare: renames tensors of other layouts in
    use. ignored: patterns of names that are not loaded. fit: converts tensors of another resolution
    or length to the model's; raises ValueError if that is impossible. build_buffers: tensors that
    the repository stores and the model does not, because they follow from its sizes (position ids);
    they are exported with the weights. sizes: the configuration inferred from a state dict, if the
    state dict determines all of it.
    """

    configs: tuple[type[Any], ...]
    configure: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    links: Callable[[nn.Module], list[Link]]
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    ignored: tuple[str, ...] = ()
    fit: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] = lambda state, model: state
    build_buffers: Callable[[nn.Module], dict[str, Tensor]] = lambda model: {}
    sizes: Callable[[Mapping[str, Tensor]], Any] | None = None
