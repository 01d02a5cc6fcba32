"""Selects the parameters that a stage trains, and makes its optimiser of groups of them.

Parts of a model are named with numbers of layers: ``layers.0-5``.
"""

import dataclasses
import re
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from vlmill.models.from_bert import BERT_SOURCES
from vlmill.runtime.console.merged_names import merge_names
from vlmill.schemas.errors import InputError
from vlmill.train.optim.adam import BertAdam, TransformersAdamW
from vlmill.train.settings.parts import Optimizer

NUMBERS = re.compile(r"(\d+)-(\d+)")
BERT_BODY = ("bert.embeddings.", "bert.encoder.layer.")
# Query, key and value are one tensor here and three in the code of BERT and of its successors.
QUERY_KEY_VALUE = re.compile(r"(^|[._])qkv\.(weight|bias)$")


def is_trained(name: str, stage: Any) -> bool:
    """Returns whether a stage trains the parameter: its name contains one of ``trained``, if that
    is not empty, and it is in no part of ``freeze`` (`TrainingStage`).
    """
    named = not stage.trained or any(part in name for part in stage.trained)
    return named and not is_frozen(name, getattr(stage, "freeze", ()))


def is_frozen(name: str, parts: Sequence[str]) -> bool:
    """Returns whether a parameter is in one of ``parts``: successive parts of its dotted name, of
    which a number may be a range (``layers.0-5``, ``text_embedding``, ``layers.3.attention``).
    """
    path = name.split(".")
    return any(_matches(path, part.split(".")) for part in parts)


def _matches(path: Sequence[str], part: Sequence[str]) -> bool:
    return any(
        all(map(_is_same, path[start : start + len(part)], part))
        for start in range(len(path) - len(part) + 1)
    )


def _is_same(actual: str, expected: str) -> bool:
    if match := NUMBERS.fullmatch(expected):
        return actual.isdigit() and int(match[1]) <= int(actual) <= int(match[2])
    return actual == expected


def require_parts(names: Iterable[str], parts: Sequence[str]) -> None:
    """Raises InputError for a part that no parameter is in, and if all parameters are frozen."""
    names = list(names)
    for part in parts:
        if not any(is_frozen(name, [part]) for name in names):
            known = merge_names(dict.fromkeys(_module(name) for name in names))
            raise InputError(
                f"freeze: {part} is not a part of the model; it has {', '.join(known)}"
            )
    if parts and all(is_frozen(name, parts) for name in names):
        raise InputError(f"freeze={list(parts)} leaves nothing to train; omit a part")


def _module(name: str) -> str:
    """Returns the part that a user would freeze: up to the number of a layer, or the module."""
    path = name.split(".")
    number = next((i for i, part in enumerate(path) if part.isdigit()), None)
    return ".".join(path[:-1] or path if number is None else path[: number + 1])


def settings_of_start(settings: Optimizer, *, from_checkpoint: bool) -> Optimizer:
    """Returns the settings; without ``--init``, no BERT rate factor or inverted weight decay."""
    if from_checkpoint:
        return settings
    decay = "matrices" if settings.decay == "inverted" else settings.decay
    return dataclasses.replace(settings, bert_rate=1.0, decay=decay)


def names_from_bert(model: nn.Module) -> set[str]:
    """Returns the parameters in BERT's embeddings and layers, which the scripts train at a share of
    the rate.

    BERT's pooler and heads, where a variant uses them, have the full rate: the scripts' lists of
    names end before them. Raises InputError for a variant without parameters from BERT.
    """
    links = BERT_SOURCES.get(type(model))
    if links is None:
        raise InputError(f"optimizer.bert_rate: {type(model).__name__} loads no weights from BERT")
    return {link.name for link in links(model, {}) if link.references[0].startswith(BERT_BODY)}


def make_optimizer(
    named_parameters: Iterable[tuple[str, Tensor]],
    settings: Optimizer,
    from_bert: Container[str] = frozenset(),
) -> torch.optim.Optimizer:
    """Makes the stage's optimiser over named parameters. ``from_bert`` are trained at
    ``bert_rate``, parameters of ``settings.heads`` at ``head_rate``.
    """

    def rule(name: str, parameter: Tensor) -> Treatment:
        head = any(part in name for part in settings.heads)
        rate = settings.head_rate if head else settings.bert_rate if name in from_bert else 1.0
        return Treatment(is_decayed(name, parameter, settings.decay), rate, head)

    groups = parameter_groups(
        named_parameters, rule, lr=settings.lr, weight_decay=settings.weight_decay
    )
    betas = (settings.beta1, settings.beta2)
    match settings.kind:
        case "bert-adam":
            return BertAdam(groups, settings.lr, betas=betas, eps=settings.eps, clip=settings.clip)
        case "transformers-adamw":
            return TransformersAdamW(groups, settings.lr, betas=betas, eps=settings.eps)
        case "sgd":
            return SGD(groups, settings.lr, momentum=settings.momentum)
    # One pass over the weights instead of a dozen: 5 times as fast on a CPU.
    return AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


def is_decayed(name: str, parameter: Tensor, decay: str) -> bool:
    """Returns whether a parameter is decayed; `Optimizer` defines the values of ``decay``."""
    match decay:
        case "everything":
            return True
        case "inverted":  # co-attention's norms have other names there, except their biases
            return name.endswith(("bias", "norm.weight"))
        case "vlmo":
            exempt = "bias" in name or "relative." in name or name.endswith("norm.weight")
            return not exempt
        case "beit":
            return parameter.ndim > 1 and not name.endswith(("position", "class_token"))
    return parameter.ndim > 1


class Treatment(NamedTuple):
    """Describes how a parameter is trained: with or without decay, and its factor of the rate.

    A ``head`` is in a separate group, regardless of its rate.
    """

    decayed: bool
    rate: float = 1.0
    head: bool = False


Rule = Callable[[str, Tensor], Treatment]


def parameter_groups(
    named_parameters: Iterable[tuple[str, Tensor]], rule: Rule, *, lr: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Returns the groups of an optimiser: ``params``, ``lr``, ``weight_decay`` and ``names``.

    ``joins`` holds the number of tensors of the published code in each parameter (`BertAdam`).

    Parameters that are not trained are omitted. Heads come last, full rates before other ones, and
    within these decayed parameters before the others. ``rate`` is the factor of ``lr``.
    """
    groups: dict[Treatment, dict[str, Any]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            treatment = rule(name, parameter)
            group = groups.setdefault(treatment, {"params": [], "names": [], "joins": []})
            group["params"].append(parameter)
            group["names"].append(name)
            group["joins"].append(3 if QUERY_KEY_VALUE.search(name) else 1)
    order = sorted(groups, key=lambda t: (t.head, t.rate != 1, t.rate, not t.decayed))
    return [
        groups[treatment]
        | {
            "lr": lr * treatment.rate,
            "rate": treatment.rate,
            "weight_decay": weight_decay if treatment.decayed else 0.0,
        }
        for treatment in order
    ]
