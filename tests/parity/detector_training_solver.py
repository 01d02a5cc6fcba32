"""The optimiser and the rate of the detectors' training, on given gradients and iterations."""

import torch
from tests.parity.detector_training import cases
from tests.parity.detector_training_keys import keys_of, solver_of
from tests.parity.golden import GoldenSet
from tests.parity.results import Results
from torch import nn

from vlmill.train.detector.learning import clip_gradients, parameter_groups, rate_factor


def optimiser(golden: GoldenSet, results: Results) -> None:
    """Groups, clips and SGD over several steps of given gradients."""
    for case in cases(golden, results):
        keys, number = keys_of(golden, case.name), int(case.name.removeprefix("case"))
        about, solver = golden.config["cases"][number], solver_of(keys)
        prefix = f"{case.name}.in.init."
        start = {
            k.removeprefix(prefix): v for k, v in golden.tensors.items() if k.startswith(prefix)
        }
        given = {name for name in start if f"in.grad0.{name}" in case}
        parameters = {
            name: nn.Parameter(value.clone(), name in given) for name, value in start.items()
        }
        groups = parameter_groups(parameters.items(), set(about["norm"]), solver)
        optimizer = torch.optim.SGD(
            groups, lr=solver.lr, momentum=solver.momentum, nesterov=solver.nesterov
        )
        for step in range(about["steps"]):
            for name in given:
                parameters[name].grad = case[f"in.grad{step}.{name}"].clone()
            clip_gradients([parameters[name] for name in sorted(given)], solver)
            optimizer.step()
            for name, parameter in parameters.items():
                case.check(f"out.param{step}.{name}", parameter)


def schedule(golden: GoldenSet, results: Results) -> None:
    """The rate at given iterations."""
    for case in cases(golden, results):
        keys = keys_of(golden, case.name)
        solver, steps = solver_of(keys), keys["SOLVER.MAX_ITER"]
        iterations = case["in.iteration"].tolist()
        rates = [solver.lr * rate_factor(at, steps, solver) for at in iterations]
        case.check("out.rate", torch.tensor(rates, dtype=case["out.rate"].dtype))
