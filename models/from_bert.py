"""Initialises a variant from BERT, and reports the origin of each parameter.

Each variant takes exactly the tensors that its paper or released code takes; the others are new.
The ``from_bert`` of its folder links its tensors to BERT's, and defines how new weights are drawn
if not from BERT's normal distribution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.models.config_checks import INIT_STD
from vlmill.models.convert.files import read_state, unwrap_network, unwrap_state
from vlmill.models.convert.keymap import CheckpointMismatch, Link, LoadTable, import_state
from vlmill.models.convert.names import KNOWN, canonical
from vlmill.models.registry import PAPERS

_NETWORKS = [paper.networks() for paper in PAPERS]
BERT_SOURCES: dict[type[nn.Module], Callable[[Any, Mapping[str, Tensor]], list[Link]]] = {
    kind: links for networks in _NETWORKS for kind, links in networks.from_bert.items()
}
NEW_WEIGHTS: dict[type[nn.Module], Sequence[tuple[str, str]]] = {
    kind: rules for networks in _NETWORKS for kind, rules in networks.new_weights.items()
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Records the origin of a parameter's values.

    names: the checkpoint's tensors, concatenated along the first axis; empty if the values are new.
    rows: the number of leading rows that they fill, if ours has more. rule: the other values,
    ``N(0, 0.02^2)`` or a constant; empty without other values. missing: names that the checkpoint
    lacks.
    """

    names: tuple[str, ...] = ()
    rows: int | None = None
    rule: str = ""
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.names:
            lacking = f" (the checkpoint has no {' + '.join(self.missing)})" if self.missing else ""
            return f"new: {self.rule}{lacking}"
        sources = " + ".join(self.names)
        return (
            sources if self.rows is None else f"{sources} in rows 0 to {self.rows - 1}, {self.rule}"
        )


def initialise_from_bert(
    model: nn.Module, source: Mapping[str, Any] | str | Path
) -> dict[str, Origin]:
    """Copies BERT's weights into a new model; returns the origin of each parameter.

    model: one of `BERT_SOURCES`, or a module that holds one (for example with a task's head).
    source: a state dict in any layout of `canonical`, or the path of such a file; nothing in it is
    executed. Parameters that the variant does not take from BERT keep their values.

    Raises CheckpointMismatch (a ValueError) if a shape differs or no tensor matches, ValueError for
    a model that does not start from BERT or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    tensors = canonical(unwrap_network(state, canonical, KNOWN))
    for networks in _NETWORKS:
        tensors |= networks.derive(tensors)
    links = _links(model, tensors)
    table = import_state(model, links, tensors)
    if table.mismatched:
        raise CheckpointMismatch(
            f"{len(table.mismatched)} of BERT's tensors have other shapes than the model's; build "
            "it with the sizes of that BERT",
            table,
        )
    if not table.loaded:
        raise CheckpointMismatch("the checkpoint has no tensor of BERT", table)
    return loaded_origins(model, links, table)


def loaded_origins(model: nn.Module, links: Sequence[Link], table: LoadTable) -> dict[str, Origin]:
    """Returns the origin of each parameter of a model that was loaded with these links."""
    rules = _rules(model)
    rows = {link.name: link.rows for link in links if link.name in table.loaded}
    origins = {}
    for name, parameter in model.named_parameters():
        names, filled = table.loaded.get(name, ()), rows.get(name)
        origins[name] = Origin(
            names=names,
            rows=filled,
            rule="" if names and not filled else _rule(name, parameter, filled or 0, rules),
            missing=table.missing.get(name, ()),
        )
    return origins


def _links(model: nn.Module, state: Mapping[str, Tensor]) -> list[Link]:
    """Returns the links of every part of ``model`` that starts from BERT."""
    links = [
        replace(link, name=_join_name(name, link.name))
        for name, part in model.named_modules()
        if type(part) in BERT_SOURCES
        for link in BERT_SOURCES[type(part)](part, state)
    ]
    if not links:
        known = ", ".join(kind.__name__ for kind in BERT_SOURCES)
        raise ValueError(f"{type(model).__name__} does not start from BERT; these do: {known}")
    return links


def _rules(model: nn.Module) -> list[tuple[str, str]]:
    """Returns the rules for new weights by name patterns, with the rules of inner parts first."""
    rules: list[tuple[str, str]] = [("*", f"N(0, {INIT_STD:g}^2)")]
    for name, part in model.named_modules():
        rules_of_part = list(NEW_WEIGHTS.get(type(part), ()))
        std = getattr(getattr(part, "config", None), "init_std", None)
        if std is not None and (part is model or type(part) in BERT_SOURCES):
            rules_of_part.append(("*", f"N(0, {std:g}^2)"))
        rules = [*((_join_name(name, pattern), rule) for pattern, rule in rules_of_part), *rules]
    return rules


def _join_name(part: str, name: str) -> str:
    return f"{part}.{name}" if part else name


def _rule(name: str, parameter: Tensor, start: int, rules: Sequence[tuple[str, str]]) -> str:
    """Returns the rule of the rows from ``start``: a constant, or the first rule that matches."""
    values = parameter.detach()[start:] if start else parameter.detach()
    if values.numel() and bool(torch.all(values == values.flatten()[0])):
        return f"{float(values.flatten()[0]):g}"
    return next(rule for pattern, rule in rules if fnmatchcase(name, pattern))
