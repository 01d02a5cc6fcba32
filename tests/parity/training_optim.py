"""Optimisers with their schedules and clips, and the moving average."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tests.parity.golden import GoldenSet, NotComparable, expect, naming
from tests.parity.results import Results
from torch import Tensor, nn

from vlmill.models import preset
from vlmill.models.published import FAMILIES
from vlmill.models.vlmo.config import VlmoNlvr2Config, VlmoVqaConfig
from vlmill.models.vlmo.model import Vlmo
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


def bert_factor(schedule: str, done: int, settings: Mapping[str, Any]) -> float:
    """The rate's factor after ``done`` updates, by the schedule of a run."""
    expect(
        schedule in BERT_SCHEDULES,
        f"config.json: schedule {schedule!r}: a run has {', '.join(BERT_SCHEDULES)}",
    )
    ours = Optimizer(
        kind="bert-adam",
        lr=1.0,
        schedule=BERT_SCHEDULES[schedule],
        warmup=settings["warmup"],
    )
    return learning_rate(done + 1, steps=settings["t_total"], settings=ours)


def trained(start: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(value.clone()) for name, value in start.items()}


def set_gradients(parameters: Mapping[str, nn.Parameter], grads: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.grad = grads[name].clone()


def vilbert(golden: GoldenSet, results: Results) -> None:
    """BertAdam under schedules, which config.json names, with a group for each tensor."""
    recorded = golden.tensors
    results.given("*.init.*", "*.grad*")
    for name, settings in golden.config.items():
        groups = settings["groups"]
        parameters = trained({key: recorded[f"{name}.init.{key}"] for key in groups})
        optimizer = bert_adam(settings, [{"params": [parameters[k]], **groups[k]} for k in groups])
        some = next(iter(groups))
        steps = sum(key.startswith(f"{name}.grad") and key.endswith(f".{some}") for key in recorded)
        for step in range(steps):
            set_gradients(parameters, {key: recorded[f"{name}.grad{step}.{key}"] for key in groups})
            factor = bert_factor(name, step, settings)
            for group, key in zip(optimizer.param_groups, groups, strict=True):
                group["lr"] = factor * groups[key]["lr"]
            optimizer.step()
            for key, parameter in parameters.items():
                results.check(f"{name}.param{step}.{key}", parameter)


def bert_adam(settings: Mapping[str, Any], groups: list[dict[str, Any]]) -> BertAdam:
    return BertAdam(
        groups,
        lr=0.0,
        betas=(settings["b1"], settings["b2"]),
        eps=settings["e"],
        clip=settings["max_grad_norm"],
    )


def interbert(golden: GoldenSet, results: Results) -> None:
    """BertAdam under each run of config.json, some with drops of the rate; the average."""
    for name, settings in golden.config.items():
        if isinstance(settings, Mapping) and "schedule" in settings:
            with naming(name):
                interbert_run(golden, results, name, settings)
    if "ema_rate" in golden.config:
        moving_average(golden, results)


def interbert_run(
    golden: GoldenSet, results: Results, name: str, settings: Mapping[str, Any]
) -> None:
    """A parameter a group, each with its rate and decay."""
    recorded = golden.tensors
    numbers = range(len(recorded[f"{name}.in.lr"]))
    parameters = trained({str(i): recorded[f"{name}.in.param{i}.init"] for i in numbers})
    decays = recorded[f"{name}.in.weight_decay"].tolist()
    groups = [
        {"params": [parameters[str(i)]], "weight_decay": decays[i], "lr": 0.0} for i in numbers
    ]
    optimizer = bert_adam(settings, groups)
    steps = sum(key.startswith(f"{name}.out.lr_used.") for key in recorded)
    for step in range(steps):
        rates = recorded[f"{name}.in.lr"].double() * interbert_factor(step, settings)
        for group, rate in zip(optimizer.param_groups, rates.tolist(), strict=True):
            group["lr"] = rate
        grads = {str(i): recorded[f"{name}.in.grad{i}.step{step}"] for i in numbers}
        set_gradients(parameters, grads)
        optimizer.step()
        used = torch.tensor([group["lr"] for group in optimizer.param_groups])
        results.check(f"{name}.out.lr_used.step{step}", used.double())
        for i in numbers:
            results.check(f"{name}.out.param{i}.after_step{step}", parameters[str(i)])


def interbert_factor(step: int, settings: Mapping[str, Any]) -> float:
    """The rate's factor; fine-tuning multiplies it by the same number at each of some steps."""
    factors = {int(at): value for at, value in settings.get("lr_factor_from_step", {}).items()}
    drops = sorted(at for at in factors if at)
    if not drops:
        return bert_factor(settings["schedule"], step, settings)
    factor = factors[drops[0]] / factors.get(0, 1.0)
    for number, at in enumerate(drops, start=1):
        expect(
            math.isclose(factors[at], factors.get(0, 1.0) * factor**number),
            "config.json: lr_factor_from_step: a run drops the rate by the same factor each time",
        )
    expect(
        settings["schedule"] == "warmup_constant",
        f"config.json: schedule {settings['schedule']!r} with drops: a run has warmup_constant",
    )
    warmup = settings["warmup"] * settings["t_total"]
    begin: float = factors.get(0, 1.0)
    return begin * milestones(step, warmup=warmup, drops=drops, factor=factor)


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
    """AdamW with a triangle, SGD with milestones, as config.json says for each case."""
    for case in golden.cases:
        with naming(case):
            vlbert_run(golden, results, case, golden.config[case])


def vlbert_run(golden: GoldenSet, results: Results, case: str, settings: Mapping[str, Any]) -> None:
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
        results.check(f"{case}.out.{key}", torch.stack(values))


def vlbert_optimizer(
    settings: Mapping[str, Any], parameters: list[Tensor]
) -> torch.optim.Optimizer:
    decay, name = settings["weight_decay"], settings["optimizer"]
    if name == "SGD":
        return torch.optim.SGD(
            parameters, lr=0.0, momentum=settings["momentum"], weight_decay=decay
        )
    expect(name.startswith("AdamW"), f"config.json: optimizer {name!r}: expected SGD or AdamW")
    return TransformersAdamW(
        parameters,
        lr=0.0,
        betas=(settings["betas"][0], settings["betas"][1]),
        eps=settings["eps"],
        weight_decay=decay,
        correct_bias=settings["correct_bias"],
    )


def vlbert_factor(update: int, settings: Mapping[str, Any]) -> float:
    """Of an update counted from 1."""
    if settings["schedule"] == "triangle":
        ours = Optimizer(lr=1.0, warmup_steps=settings["warmup_steps"], first_step=1)
        return learning_rate(update, steps=settings["t_total"], settings=ours)
    expect(
        settings["schedule"] == "step" and settings.get("warmup_factor", 0.0) == 0.0,
        f"config.json: schedule {settings['schedule']!r}: expected triangle, or step "
        "from a rate of 0",
    )
    return milestones(
        update,
        warmup=settings["warmup_iters"],
        drops=settings["milestones"],
        factor=settings["gamma"],
    )


VLMO_GROUPS = ((True, False), (False, False), (True, True), (False, True))  # decayed, head
STEM = "groups_and_schedule"
DECAY = r"weight decay (\d[\d.]*)"
PARAMETERS = r"parameters (.*?) \(weight decay ([\d.]+)\) and (\S+)"
ADAMW = r"rate ([\d.e-]+), betas ([\d.]+)/([\d.]+), eps ([\d.]+e-\d+)"


@dataclass(frozen=True, kw_only=True)
class VlmoRun:
    """A run's line up and down: peak rate, updates up to it, and all updates."""

    peak: float
    warmup: int
    total: int


def vlmo(golden: GoldenSet, results: Results) -> None:
    """Groups by name, schedules, AdamW.

    Nothing tells the runs' peaks and warm-ups but their rates; cosine and powers share those of
    the runs whose first rate they have.
    """
    keys = [key for key in golden.values if key.startswith(f"{STEM}:")]
    names = {key.removeprefix(f"{STEM}:").split(".")[0]: None for key in keys}
    with_groups = [name for name in names if f"{STEM}:{name}.groups.0.params" in golden.values]
    runs = {name: vlmo_run(golden, f"{STEM}:{name}.lr_at_step") for name in with_groups}
    for name, run in runs.items():
        first = recorded_rates(golden, f"{STEM}:{name}.lr_at_step")[0][1]
        vlmo_groups(golden, results, f"{STEM}:{name}", run, first[2] / first[0])
        check_rates(golden, results, f"{STEM}:{name}.lr_at_step", run, "linear")
    for name in names:
        if name not in runs:
            prefix = f"{STEM}:{name}"
            check_rates(golden, results, prefix, run_like(golden, prefix, [*runs.values()]), name)
    if any(key.startswith("adamw:") for key in golden.tensors):
        vlmo_adamw(golden, results)


def recorded_rates(golden: GoldenSet, prefix: str) -> list[tuple[int, list[float]]]:
    """The groups' recorded rates above 0, by step in order; at least two steps."""
    steps = [
        (int(key.rpartition(".")[2]), rates)
        for key, rates in golden.values.items()
        if key.rpartition(".")[0] == prefix and rates[0] > 0
    ]
    expect(len(steps) > 1, f"{golden.folder}: {prefix}: too few rates to tell the schedule")
    return sorted(steps)


def vlmo_run(golden: GoldenSet, prefix: str) -> VlmoRun:
    """Where the line through the first rate meets the line from the last one to the end."""
    total = int(golden.words(r"(\d+)-step run")[0])
    (first, up), *_, (last, down) = recorded_rates(golden, prefix)
    rise, fall = up[0] / first, down[0] / (total - last)
    warmup = round(fall * total / (rise + fall))
    return VlmoRun(peak=rise * warmup, warmup=warmup, total=total)


def run_like(golden: GoldenSet, prefix: str, runs: Sequence[VlmoRun]) -> VlmoRun:
    """The run with the same rate at the first step."""
    first, rates = recorded_rates(golden, prefix)[0]
    for run in runs:
        if math.isclose(run.peak * first / run.warmup, rates[0], rel_tol=1e-6):
            return run
    raise NotComparable(f"{golden.folder}: {prefix}: no run has the rate of its step {first}")


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
        theirs: link.name
        for link in FAMILIES["vlmo"].links(model)
        for theirs in (*link.references, *link.also)
    }


def vlmo_groups(
    golden: GoldenSet, results: Results, prefix: str, run: VlmoRun, classifier_rate: float
) -> None:
    """Every name of the run, sorted into the four groups again."""
    keys = [f"{prefix}.groups.{i}" for i in range(len(VLMO_GROUPS))]
    names = [name for key in keys for name in golden.values[f"{key}.params"]]
    of_ours, weight_decay = our_names(names), float(golden.words(DECAY)[0])

    def rule(name: str, parameter: Tensor) -> Treatment:
        head = name.split(".")[0].endswith("_classifier")
        rate = classifier_rate if head else 1.0
        return Treatment(is_decayed(of_ours[name], parameter, "vlmo"), rate, head)

    named = [(name, nn.Parameter(torch.zeros(1))) for name in names]
    groups = parameter_groups(named, rule, lr=run.peak, weight_decay=weight_decay)
    for key, (decayed, head) in zip(keys, VLMO_GROUPS, strict=True):
        decay = weight_decay * decayed
        rate = run.peak * (classifier_rate if head else 1.0)
        ours = [
            group
            for group in groups
            if group["weight_decay"] == decay and rule(group["names"][0], named[0][1]).head == head
        ]
        results.check(f"{key}.params", ours[0]["names"] if ours else [])
        results.check(f"{key}.weight_decay", ours[0]["weight_decay"] if ours else decay)
        results.check(f"{key}.initial_lr", ours[0]["lr"] if ours else rate)


def vlmo_rate(golden: GoldenSet, done: int, run: VlmoRun, schedule: str) -> float:
    """The rate after ``done`` updates; a power of what is left is an option of no recipe."""
    power = re.fullmatch(r"power([\d.]+)", schedule)
    if power:
        (end,) = golden.words(r"end rate (\d[\d.e-]*\d)")
        return run.peak * polynomial(
            done,
            warmup=run.warmup,
            total=run.total,
            power=float(power[1]),
            end=float(end) / run.peak,
        )
    if schedule not in ("linear", "cosine"):
        raise NotComparable(
            f"{golden.folder}: {STEM}:{schedule}: expected linear, cosine or a power"
        )
    down: Literal["linear", "cosine"] = "linear" if schedule == "linear" else "cosine"
    ours = Optimizer(lr=run.peak, warmup_steps=run.warmup, schedule=down)
    return learning_rate(done + 1, steps=run.total, settings=ours)


def check_rates(
    golden: GoldenSet, results: Results, prefix: str, run: VlmoRun, schedule: str
) -> None:
    """The groups' rates at the recorded steps; heads have theirs by a factor."""
    first = recorded_rates(golden, prefix)[0][1]
    factors = [1.0, 1.0, *[first[2] / first[0]] * 2]
    for key in golden.values:
        if key.rpartition(".")[0] == prefix:
            rate = vlmo_rate(golden, int(key.rpartition(".")[2]), run, schedule)
            results.check(key, [rate * factor for factor in factors])


def vlmo_adamw(golden: GoldenSet, results: Results) -> None:
    """Gradients so small that the place of eps decides; settings are told in README.md."""
    rate, *betas, eps = map(float, golden.words(ADAMW))
    decaying, decay, constant = golden.words(
        r"parameters (.*?) \(weight decay ([\d.]+)\) and (\S+)"
    )
    decays = dict.fromkeys(re.findall(r"`(\w+)`", decaying), float(decay))
    decays |= dict.fromkeys(re.findall(r"`(\w+)`", constant), 0.0)
    parameters = trained({name: golden.tensors[f"adamw:in.{name}"] for name in decays})
    groups = [{"params": [parameters[n]], "weight_decay": decay} for n, decay in decays.items()]
    optimizer = TransformersAdamW(groups, lr=rate, betas=(betas[0], betas[1]), eps=eps)
    first = next(iter(decays))
    for step in range(sum(key.startswith(f"adamw:out.{first}.") for key in golden.tensors)):
        set_gradients(
            parameters, {name: golden.tensors[f"adamw:in.grad_{name}.{step}"] for name in decays}
        )
        optimizer.step()
        for name in decays:
            results.check(f"adamw:out.{name}.{step}", parameters[name])
