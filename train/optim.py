"""Groups of parameters, the optimiser of a recipe, and the state that continuing needs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from vlmill.train.recipes.base import Optimizer


def make_optimizer(model: nn.Module, settings: Optimizer) -> AdamW:
    """AdamW without weight decay on biases and layer norms, which are the vectors."""
    groups = parameter_groups(
        model.named_parameters(), vectors_rule, lr=settings.lr, weight_decay=settings.weight_decay
    )
    return AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)


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


def learning_rate(step: int, *, steps: int, peak: float, warmup: float) -> float:
    """The rate of step 1..``steps``: a line up to ``peak`` over the share ``warmup``, then down.

    It would reach 0 at the step after the last.
    """
    rising = int(warmup * steps)
    if step <= rising:
        return peak * step / rising
    return peak * (steps - step + 1) / (steps - rising)


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An Adam's moments by parameter name, and the state of the random numbers of dropout."""
    state = {
        f"optimizer.{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    state["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        state["rng.cuda"] = torch.cuda.get_rng_state()
    return state


def restore_training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]
) -> None:
    """Put back what :func:`training_state` gave."""
    for name, parameter in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
            if (value := state.get(f"optimizer.{key}.{name}")) is not None:
                # Adam counts steps on the CPU, whatever the device.
                device = "cpu" if key == "step" else parameter.device
                optimizer.state[parameter][key] = value.to(device)
    torch.set_rng_state(state["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in state:
        torch.cuda.set_rng_state(state["rng.cuda"])
