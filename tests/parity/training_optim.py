"""Optimisers with their schedules and clips, and the moving average."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from tests.parity.golden import GoldenSet
from tests.parity.results import Results
from torch import Tensor, nn

from vlmill.models import Vlmo, preset
from vlmill.models.published import FAMILIES
from vlmill.models.vlmo.config import VlmoNlvr2Config, VlmoVqaConfig
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa
from vlmill.train.optim.adam import BertAdam, TransformersAdamW
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import Treatment, is_decayed, parameter_groups
from vlmill.train.optim.schedule import learning_rate, milestones, polynomial
from vlmill.train.recipes import Optimizer

BERT_SCHEDULES: dict[str, Literal["linear", "constant"]] = {
    "warmup_linear": "linear",
    "warmup_constant": "constant",
}


def bert_factor(schedule: str, done: int, settings: dict[str, Any]) -> float:
    """The rate's factor after ``done`` updates, by the schedule of a run."""
    ours = Optimizer(lr=1.0, schedule=BERT_SCHEDULES[schedule], warmup=settings["warmup"])
    return learning_rate(done + 1, steps=settings["t_total"], settings=ours)


def trained(start: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(value.clone()) for name, value in start.items()}


def set_gradients(parameters: Mapping[str, nn.Parameter], grads: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.grad = grads[name].clone()


def vilbert(golden: GoldenSet, results: Results) -> None:
    """``vilbert/optimizer_bertadam``: two schedules, a group for each tensor."""
    recorded = golden.tensors
    results.given("*.init.*", "*.grad*")
    for name, settings in golden.config.items():
        groups = settings["groups"]
        parameters = trained({key: recorded[f"{name}.init.{key}"] for key in groups})
        optimizer = bert_adam(settings, [{"params": [parameters[k]], **groups[k]} for k in groups])
        for step in range(settings["t_total"]):
            set_gradients(parameters, {key: recorded[f"{name}.grad{step}.{key}"] for key in groups})
            factor = bert_factor(name, step, settings)
            for group, key in zip(optimizer.param_groups, groups, strict=True):
                group["lr"] = factor * groups[key]["lr"]
            optimizer.step()
            for key, parameter in parameters.items():
                results.check(f"{name}.param{step}.{key}", parameter)


def bert_adam(settings: dict[str, Any], groups: list[dict[str, Any]]) -> BertAdam:
    return BertAdam(
        groups,
        lr=0.0,
        betas=(settings["b1"], settings["b2"]),
        eps=settings["e"],
        clip=settings["max_grad_norm"],
    )


def interbert(golden: GoldenSet, results: Results) -> None:
    """``interbert/optim``: pretraining, fine-tuning with drops of the rate, the average."""
    recorded = golden.tensors
    for name in ("pretrain_linear", "finetune_constant"):
        settings = golden.config[name]
        numbers = range(len(recorded[f"{name}.in.lr"]))
        parameters = trained({str(i): recorded[f"{name}.in.param{i}.init"] for i in numbers})
        decays = recorded[f"{name}.in.weight_decay"].tolist()
        groups = [
            {"params": [parameters[str(i)]], "weight_decay": decays[i], "lr": 0.0} for i in numbers
        ]
        optimizer = bert_adam(settings, groups)
        steps = sum(key.startswith(f"{name}.out.lr_used.") for key in recorded)
        for step in range(steps):
            rates = recorded[f"{name}.in.lr"].double() * interbert_factor(name, step, settings)
            for group, rate in zip(optimizer.param_groups, rates.tolist(), strict=True):
                group["lr"] = rate
            grads = {str(i): recorded[f"{name}.in.grad{i}.step{step}"] for i in numbers}
            set_gradients(parameters, grads)
            optimizer.step()
            used = torch.tensor([group["lr"] for group in optimizer.param_groups])
            results.check(f"{name}.out.lr_used.step{step}", used.double())
            for i in numbers:
                results.check(f"{name}.out.param{i}.after_step{step}", parameters[str(i)])
    moving_average(golden, results)


def interbert_factor(name: str, step: int, settings: dict[str, Any]) -> float:
    """The rate's factor; fine-tuning drops it to a tenth at some steps."""
    drops = [int(at) for at in settings.get("lr_factor_from_step", {}) if int(at)]
    warmup = settings["warmup"] * settings["t_total"]
    if drops:
        return milestones(step, warmup=warmup, drops=drops)
    return bert_factor(settings["schedule"], step, settings)


def moving_average(golden: GoldenSet, results: Results) -> None:
    recorded = golden.tensors
    model = nn.ParameterDict(trained({"p": recorded["ema.in.init"]}))
    average = MovingAverage(model, golden.config["ema_rate"])
    for step in range(sum(key.startswith("ema.out.") for key in recorded)):
        with torch.no_grad():
            model["p"].copy_(recorded[f"ema.in.param{step}"])
        average.update(model)
        results.check(f"ema.out.after{step}", average.state_dict()["p"])


def vlbert(golden: GoldenSet, results: Results) -> None:
    """``vlbert/optimizer``: AdamW with a triangle, SGD with milestones."""
    for case in golden.cases:
        settings = golden.config[case]
        names = sorted(
            key.rpartition(".")[2] for key in golden.tensors if key.startswith(f"{case}.in.p")
        )
        parameters = trained({name: golden.tensors[f"{case}.in.{name}"] for name in names})
        optimizer = vlbert_optimizer(settings, list(parameters.values()))
        ours: dict[str, list[Tensor]] = {"lr": [], "grad_norm_before_clip": []}
        for step in range(len(golden.tensors[f"{case}.out.lr"])):
            grads = {n: golden.tensors[f"{case}.in.{n.replace('p', 'g')}"][step] for n in names}
            set_gradients(parameters, grads)
            rate = settings["lr"] * vlbert_factor(step + 1, settings)
            optimizer.param_groups[0]["lr"] = rate
            largest = settings.get("clip_grad_norm", float("inf"))
            norm = nn.utils.clip_grad_norm_(parameters.values(), largest)
            optimizer.step()
            ours["lr"].append(torch.tensor(rate, dtype=torch.float64))
            ours["grad_norm_before_clip"].append(norm)
            for name in names:
                ours.setdefault(name, []).append(parameters[name].detach().clone())
        for key, values in ours.items():
            if f"{case}.out.{key}" in golden.tensors:
                results.check(f"{case}.out.{key}", torch.stack(values))


def vlbert_optimizer(settings: dict[str, Any], parameters: list[Tensor]) -> torch.optim.Optimizer:
    decay = settings["weight_decay"]
    if settings["optimizer"] == "SGD":
        return torch.optim.SGD(
            parameters, lr=0.0, momentum=settings["momentum"], weight_decay=decay
        )
    return TransformersAdamW(
        parameters,
        lr=0.0,
        betas=(settings["betas"][0], settings["betas"][1]),
        eps=settings["eps"],
        weight_decay=decay,
        correct_bias=settings["correct_bias"],
    )


def vlbert_factor(update: int, settings: dict[str, Any]) -> float:
    """Of an update counted from 1."""
    if settings["schedule"] == "triangle":
        ours = Optimizer(lr=1.0, warmup_steps=settings["warmup_steps"], first_step=1)
        return learning_rate(update, steps=settings["t_total"], settings=ours)
    return milestones(
        update,
        warmup=settings["warmup_iters"],
        drops=settings["milestones"],
        factor=settings["gamma"],
    )


# The task's peak rate and the factor of its classifier (spec, sec. 8 and 10).
VLMO_RUNS = {"pretraining": (2e-4, 1.0), "vqa": (3e-5, 20.0), "nlvr2_abs": (5e-5, 1.0)}
VLMO_GROUPS = ((True, False), (False, False), (True, True), (False, True))  # decayed, head
VLMO_WARMUP, VLMO_STEPS = 200, 2000


def vlmo(golden: GoldenSet, results: Results) -> None:
    """``vlmo/optimiser``: groups by name, three schedules, AdamW."""
    stem = "groups_and_schedule"
    for run, (peak, classifier_rate) in VLMO_RUNS.items():
        vlmo_groups(golden, results, f"{stem}:{run}", peak, classifier_rate)
        rates = partial(vlmo_rate, schedule="linear", peak=peak)
        check_rates(golden, results, f"{stem}:{run}.lr_at_step", rates, classifier_rate)
    check_rates(golden, results, f"{stem}:power2", vlmo_power2, 1.0)
    rates = partial(vlmo_rate, schedule="cosine", peak=3e-5)
    check_rates(golden, results, f"{stem}:cosine", rates, 1.0)
    vlmo_adamw(golden, results)


def our_names(names: list[str]) -> dict[str, str]:
    """Our name of each parameter of the published model that has these."""
    layers = 1 + max(int(name.split(".")[2]) for name in names if ".blocks." in name)
    with_pairs = [int(name.split(".")[2]) for name in names if ".mlp_vl." in name]
    relative = "relative_position_bias_table" in names
    task = next((n.split("_")[0] for n in names if "_classifier." in n), "")
    encoder = preset(
        "vlmo-base",
        width=8,
        num_layers=layers,
        num_heads=2,
        intermediate_width=8,
        vocab_size=9,
        image_size=32,
        first_vl_layer=min(with_pairs, default=layers),
        relative_positions=relative,
        absolute_positions=not relative,
        num_images=2 if task == "nlvr2" else 1,
    )
    model: nn.Module = Vlmo(encoder)
    if task == "vqa":
        model = VlmoForVqa(VlmoVqaConfig(encoder=encoder))
    elif task == "nlvr2":
        model = VlmoForNlvr2(VlmoNlvr2Config(encoder=encoder))
    return {
        theirs: link.ours
        for link in FAMILIES["vlmo"].links(model)
        for theirs in (*link.theirs, *link.also)
    }


def vlmo_groups(
    golden: GoldenSet, results: Results, prefix: str, peak: float, classifier_rate: float
) -> None:
    """Every name of the run, sorted into the four groups again."""
    keys = [f"{prefix}.groups.{i}" for i in range(len(VLMO_GROUPS))]
    names = [name for key in keys for name in golden.values[f"{key}.params"]]
    of_ours = our_names(names)

    def rule(name: str, parameter: Tensor) -> Treatment:
        head = name.split(".")[0].endswith("_classifier")
        rate = classifier_rate if head else 1.0
        return Treatment(is_decayed(of_ours[name], parameter, "vlmo"), rate, head)

    named = [(name, nn.Parameter(torch.zeros(1))) for name in names]
    groups = parameter_groups(named, rule, lr=peak, weight_decay=0.01)
    for key, (decayed, head) in zip(keys, VLMO_GROUPS, strict=True):
        decay, rate = 0.01 * decayed, peak * (classifier_rate if head else 1.0)
        ours = [
            group
            for group in groups
            if group["weight_decay"] == decay and rule(group["names"][0], named[0][1]).head == head
        ]
        results.check(f"{key}.params", ours[0]["names"] if ours else [])
        results.check(f"{key}.weight_decay", ours[0]["weight_decay"] if ours else decay)
        results.check(f"{key}.initial_lr", ours[0]["lr"] if ours else rate)


def vlmo_rate(done: int, *, schedule: Literal["linear", "cosine"], peak: float) -> float:
    """The rate after ``done`` updates, by the schedule of a run."""
    ours = Optimizer(lr=peak, warmup_steps=VLMO_WARMUP, schedule=schedule)
    return learning_rate(done + 1, steps=VLMO_STEPS, settings=ours)


def vlmo_power2(done: int) -> float:
    """A square of what is left, down to 1e-6: an option that no recipe uses."""
    end = 1e-6 / 3e-5
    return 3e-5 * polynomial(done, warmup=VLMO_WARMUP, total=VLMO_STEPS, power=2.0, end=end)


def check_rates(
    golden: GoldenSet,
    results: Results,
    prefix: str,
    rate: Callable[[int], float],
    classifier_rate: float,
) -> None:
    """The four groups' rates at the recorded steps."""
    for key in golden.values:
        if key.startswith(f"{prefix}."):
            peak = rate(int(key.rpartition(".")[2]))
            rates = [peak * (classifier_rate if head else 1) for _, head in VLMO_GROUPS]
            results.check(key, rates)


def vlmo_adamw(golden: GoldenSet, results: Results) -> None:
    """Gradients down to 1e-10, so that the place of eps decides."""
    decayed, names = {"p": 0.01, "tiny": 0.01, "q": 0.0}, ("p", "tiny", "q")
    parameters = trained({name: golden.tensors[f"adamw:in.{name}"] for name in names})
    groups = [{"params": [parameters[name]], "weight_decay": decayed[name]} for name in names]
    optimizer = TransformersAdamW(groups, lr=2e-3, betas=(0.9, 0.98), eps=1e-8)
    for step in range(sum(key.startswith("adamw:out.p.") for key in golden.tensors)):
        set_gradients(
            parameters, {name: golden.tensors[f"adamw:in.grad_{name}.{step}"] for name in names}
        )
        optimizer.step()
        for name in names:
            results.check(f"adamw:out.{name}.{step}", parameters[name])
