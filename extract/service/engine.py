"""Describes a worker process of ``extract-rois serve`` without loading torch."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from vlmill.extract.config import ExtractConfig
from vlmill.runtime.service.workers import Plan, WorkerContext

if TYPE_CHECKING:
    from vlmill.extract.detect.detector import Detector

MODULE = "vlmill.extract.service.computing"  # the module from which workers are forked


def engine_plan(
    open_detector: "Callable[[str], Detector]", device: str, config: ExtractConfig, workers: int
) -> Plan:
    """Plans the worker of a device; ``open_detector`` must be picklable.

    ``workers`` are its processes that decode.
    """
    opener = functools.partial(open_there, open_detector, device, config, workers)
    return Plan(name=device, module=MODULE, open=opener)


def open_there(
    open_detector: "Callable[[str], Detector]", device: str, config: ExtractConfig, workers: int
) -> WorkerContext:
    """Opens the detector in the worker."""
    from vlmill.extract.service.computing import open_engine

    return open_engine(open_detector, device, config, workers)
