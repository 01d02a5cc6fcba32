"""Defines the arguments of ``extract-rois serve`` and runs the service."""

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from vlmill.extract.config import ExtractConfig
from vlmill.runtime.console.command import add_count
from vlmill.runtime.extras import require_extra
from vlmill.runtime.service.settings import (
    add_name_arguments,
    add_service_arguments,
    read_name_lists,
    read_service_settings,
)
from vlmill.schemas.errors import InputError

if TYPE_CHECKING:
    from vlmill.extract.detect.detector import Detector
    from vlmill.runtime.service.workers import WorkerContext

MODULE = "vlmill.extract.service.computing"  # the module from which workers are forked
EXAMPLES = """examples:
  extract-rois serve --weights detector.pth --port 8080 --class-probs topk:10 \\
      --classes objects_vocab.txt --attributes attributes_vocab.txt
  extract-rois serve --arch tiny --short-side 240 --long-side 400 --port 0
  extract-rois serve --weights detector.pth --device cuda:0,cuda:1 --token-file token --host 0.0.0.0
  curl --data-binary @a.jpg --header 'content-type: image/jpeg' http://127.0.0.1:8080/v1/regions

The address is printed as soon as requests can be computed; / is a page to try the service. The rows
equal those of `run` with the same flags. One process accepts requests, and one process per device
computes; requests are combined into batches. SIGTERM ends the service after all accepted requests
have a response. The log is lines of JSON on standard error. Memory: that of the networks, 16 times
--max-bytes, and 96 MiB for texts. See docs/serving.md."""


def add_serve(serve: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois serve`` and of its detector."""
    serve.description = "Answers requests for the regions of images, over HTTP."
    add_service_arguments(serve)
    add_count(
        serve,
        "--workers",
        "number of decoding processes per device (default: %(default)s); a fast GPU needs several",
        default=1,
    )
    add_name_arguments(serve)


def serve_regions(
    arguments: argparse.Namespace, config: ExtractConfig, open_detector: "Callable[[str], Detector]"
) -> int:
    """Serves until a stop is requested; returns the exit status. Raises InputError."""
    settings = read_service_settings(arguments, batch=config.batch_size)
    require_extra("service")
    devices = [name.strip() for name in arguments.device.split(",")]
    if len(set(devices)) < len(devices) and any(name != "cpu" for name in devices):
        raise InputError(f"--device {arguments.device}: names a device twice")
    # The service and the reader of names load slowly: import them only after the arguments are
    # checked.
    from vlmill.extract.service.app import regions_service
    from vlmill.runtime.readers.class_names import require_names
    from vlmill.runtime.service.server import run_service
    from vlmill.runtime.service.workers import Plan

    names = read_name_lists(arguments)
    shell, application = regions_service(settings, **names)

    def check() -> None:
        require_names(names, shell.about["producer"], "--weights")

    workers: int = arguments.workers
    plans = [
        Plan(
            name=name,
            module=MODULE,
            open=functools.partial(open_in_worker, open_detector, name, config, workers),
        )
        for name in devices
    ]
    return run_service(shell, application, plans, "extract-rois serve", check=check)


def open_in_worker(
    open_detector: "Callable[[str], Detector]", device: str, config: ExtractConfig, workers: int
) -> "WorkerContext":
    """Opens the detector of a device in its worker process, which has ``workers`` that decode."""
    from vlmill.extract.service.computing import open_engine

    return open_engine(open_detector, device, config, workers)
