"""Describes a worker process of ``train-vl serve`` without loading torch."""

import functools

from vlmill.inference.service.questions import ModelOptions
from vlmill.runtime.service.workers import Plan, WorkerContext

MODULE = "vlmill.inference.service.computing"  # what workers are forked from


def model_plan(options: ModelOptions, device: str) -> Plan:
    """Plans the worker of a device."""
    opener = functools.partial(open_there, options, device)
    return Plan(name=device, module=MODULE, open=opener)


def open_there(options: ModelOptions, device: str) -> WorkerContext:
    """Loads the checkpoint in the worker."""
    from vlmill.inference.service.computing import open_model

    return open_model(options, device)
