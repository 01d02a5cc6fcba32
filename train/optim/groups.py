"""A recipe's optimiser is made here, with the groups of parameters that decay alike."""

from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW

from vlmill.train.optim.adam import BertAdam, TransformersAdamW
from vlmill.train.recipes.spec import Optimizer


def make_optimizer(
    named: Iterable[tuple[str, Tensor]],
    settings: Optimizer,
    from_bert: Container[str] = frozenset(),
) -> torch.optim.Optimizer:
    """The stage's optimiser over named parameters; ``from_bert`` are trained at ``bert_rate``."""

    def rule(name: str, parameter: Tensor) -> Treatment:
        rate = settings.bert_rate if name in from_bert else 1.0
        return Treatment(is_decayed(name, parameter, settings.decay), rate)

    groups = parameter_groups(named, rule, lr=settings.lr, weight_decay=settings.weight_decay)
    betas = (settings.beta1, settings.beta2)
    match settings.kind:
        case "bert-adam":
            return BertAdam(groups, settings.lr, betas=betas, eps=settings.eps, clip=settings.clip)
        case "transformers-adamw":
            return TransformersAdamW(groups, settings.lr, betas=betas, eps=settings.eps)
    # One pass over the weights instead of a dozen: 5 times as fast on a CPU.
    return AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


def is_decayed(name: str, parameter: Tensor, decay: str) -> bool:
    """Whether a parameter of ours is decayed; what ``decay`` means is said at `Optimizer`."""
    match decay:
        case "everything":
            return True
        case "inverted":
            return parameter.ndim <= 1
        case "vlmo":
            exempt = "bias" in name or "relative." in name or name.endswith("norm.weight")
            return not exempt
        case "beit":
            return parameter.ndim > 1 and not name.endswith(("position", "class_token"))
    return parameter.ndim > 1


class Treatment(NamedTuple):
    """How a parameter is trained: with weight decay or not, and at which factor of the rate.

    A ``head`` is in groups of its own, whatever its rate.
    """

    decayed: bool
    rate: float = 1.0
    head: bool = False


Rule = Callable[[str, Tensor], Treatment]


def vectors_rule(name: str, parameter: Tensor) -> Treatment:
    """No decay on vectors, which are the biases and layer norms: the papers' usual split."""
    return Treatment(parameter.ndim > 1)


def everything_rule(name: str, parameter: Tensor) -> Treatment:
    """Decay on everything (VL-BERT)."""
    return Treatment(True)


def bert_rule(
    name: str,
    parameter: Tensor,
    *,
    inverted: bool = False,
    from_bert: Callable[[str], bool] = lambda name: False,
    bert_rate: float = 0.1,
) -> Treatment:
    """ViLBERT's and InterBERT's released scripts, on their names of parameters.

    ``inverted``: decay on biases and layer norms alone, as these scripts have it by mistake when
    they start from a checkpoint; there "LayerNorm1.weight" counts as no layer norm. ``from_bert``
    names what starts from BERT, which is trained at ``bert_rate`` of the rate.
    """
    exempt = any(part in name for part in ("bias", "LayerNorm.weight"))
    return Treatment(exempt == inverted, bert_rate if from_bert(name) else 1.0)


VLMO_EXEMPT = ("bias", "LayerNorm.weight", "norm.weight", "norm1.weight", "norm2.weight")
VLMO_CLASSIFIERS = ("vqa_classifier", "nlvr2_classifier")


def vlmo_rule(name: str, parameter: Tensor, *, classifier_rate: float = 1.0) -> Treatment:
    """VLMo's code, on its names: parts of names decide, with side effects that it has.

    The table of relative positions ("bias") is exempt from decay; the experts' norms
    ("norm2_text.weight") and the scales of layers are not.
    """
    head = any(part in name for part in VLMO_CLASSIFIERS)
    exempt = any(part in name for part in VLMO_EXEMPT)
    return Treatment(not exempt, classifier_rate if head else 1.0, head)


def beit_rule(name: str, parameter: Tensor) -> Treatment:
    """BEiT's code, on its names: no decay on vectors, positions and the class token."""
    kept = parameter.ndim > 1 and not name.endswith((".bias", "pos_embed", "cls_token"))
    return Treatment(kept)


def parameter_groups(
    named: Iterable[tuple[str, Tensor]], rule: Rule, *, lr: float, weight_decay: float
) -> list[dict[str, Any]]:
    """The groups of an optimiser: ``params``, ``lr``, ``weight_decay`` and ``names``.

    Parameters that are not trained are left out. Heads come last, full rates before other ones,
    and of those decayed parameters before the others. ``rate`` is the factor of ``lr``.
    """
    groups: dict[Treatment, dict[str, Any]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            treatment = rule(name, parameter)
            group = groups.setdefault(treatment, {"params": [], "names": []})
            group["params"].append(parameter)
            group["names"].append(name)
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
