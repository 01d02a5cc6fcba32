"""Defines vlmill-flink-worker, the command with which a Flink task manager starts a Python worker.

Beam's own is a program in its container image and not part of the package. Pass its path with
``--environment_type=PROCESS --environment_config='{"command": "/venv/bin/vlmill-flink-worker"}'``
(docs/clusters.md). It downloads no files: vlmill must be installed where it runs, in the version of
the process that starts the job. A worker that cannot do the job reports this in response to its
first work.
"""

import argparse
import importlib
import os
import queue
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from vlmill import __version__
from vlmill.runtime.console.command import run_command
from vlmill.runtime.units.launch.failures import format_refusal
from vlmill.runtime.units.stored import python_version

LOGS = "VLMILL_WORKER_LOGS"
"""Names a folder in which each worker writes its errors, because a task manager discards them."""
DATA = ("beam:runner:source:v1", "beam:runner:sink:v1")
WAIT_S = 60  # for the task manager to describe the work


def main(argv: Sequence[str] | None = None) -> int:
    """Does the work of a task manager until that ends it; returns the exit status."""
    return run_command(work, argv)


def work(argv: Sequence[str]) -> int:
    """Does the work for the task manager that the arguments name."""
    parser = argparse.ArgumentParser(
        prog="vlmill-flink-worker",
        description="Starts a Python worker. Only Flink's task managers call it: give "
        'its path to a job with --environment_type=PROCESS --environment_config=\'{"command": '
        '"/venv/bin/vlmill-flink-worker"}\'.',
        allow_abbrev=False,
    )
    parser.add_argument("--id", required=True, help="name of the worker")
    parser.add_argument(
        "--provision_endpoint",
        required=True,
        metavar="HOST:PORT",
        help="address that describes the work",
    )
    args, _ = parser.parse_known_args(argv)
    if folder := os.environ.get(LOGS):
        log_into(folder)
    from google.protobuf import json_format

    info = provision(args.provision_endpoint, args.id)
    os.environ.update(worker_environment(info, args.id))
    if (lacks := find_missing(json_format.MessageToDict(info.pipeline_options))) is not None:
        print(lacks, file=sys.stderr, flush=True)
        refuse(info.control_endpoint.url, args.id, lacks)
        return 0
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main([])
    return 0


def log_into(folder: str) -> None:
    """Redirects the standard outputs of this process to its own file."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"worker-{os.uname().nodename}-{os.getpid()}.log")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def provision(endpoint: str, worker_id: str) -> Any:
    """Requests the information for this worker from the task manager: a ``ProvisionInfo``."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(endpoint) as channel:
        worker_channel = grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(worker_channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return service.GetProvisionInfo(request, timeout=WAIT_S).info


def worker_environment(info: Any, worker_id: str) -> Mapping[str, str]:
    """Returns the variables that Beam's worker reads, from a ``ProvisionInfo``."""
    from apache_beam.portability.api import endpoints_pb2
    from google.protobuf import json_format, text_format

    environment = {
        "WORKER_ID": worker_id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    for name in ("logging", "control", "status"):
        url = getattr(info, f"{name}_endpoint").url
        if url:
            service = text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))
            environment[f"{name.upper()}_API_SERVICE_DESCRIPTOR"] = service
    return environment


def find_missing(options: Mapping[str, Any]) -> str | None:
    """Returns why this worker cannot do a job with these Beam options, or None.

    A job of another program has no requirements.
    """
    names = ("version", "python", "module")
    version, python, module = (options.get(f"beam:option:vlmill_{name}:v1") for name in names)
    remedy = f"install vlmill {version} with its dependencies on every host of a task manager"
    where = f"on {os.uname().nodename} {sys.prefix}"
    if version not in (None, __version__):
        return f"{where} has vlmill {__version__}, the job is of {version}: {remedy}"
    if python not in (None, python_version()):
        return (
            f"{where} has Python {python_version()}, the job was started with Python {python}: "
            "use the same version on every host of a task manager and where the job is started"
        )
    if module is not None:
        try:
            importlib.import_module(module)
        except Exception as error:  # any exception: no step of the job can be loaded
            kind = type(error).__name__
            return f"{where} cannot import {module} ({kind}: {error}): {remedy}"
    return None


def refuse(endpoint: str, worker_id: str, message: str) -> None:
    """Answers every request to the worker with an error, until there are no more."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetching = []  # a call without a reference is cancelled
    with ExitStack() as channels:

        def channel_to(url: str) -> Any:
            channel = channels.enter_context(grpc.insecure_channel(url))
            return grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))

        control = beam_fn_api_pb2_grpc.BeamFnControlStub(channel_to(endpoint))
        for instruction in control.Control(iter(answers.get, None)):
            # A task manager receives no response before a worker has fetched the data: it would
            # wait three minutes, each time that it starts the task again.
            for url in data_endpoints(control, instruction.process_bundle):
                stub = beam_fn_api_pb2_grpc.BeamFnDataStub(channel_to(url))
                fetching.append(stub.Data(iter(queue.SimpleQueue[Any]().get, None)))
            answers.put(
                beam_fn_api_pb2.InstructionResponse(
                    instruction_id=instruction.instruction_id, error=format_refusal(message)
                )
            )


def data_endpoints(control: Any, bundle: Any) -> set[str]:
    """Returns the endpoints of a bundle's data; other instructions have none."""
    from apache_beam.portability.api import beam_fn_api_pb2

    name = bundle.process_bundle_descriptor_id
    if not name:
        return set()
    request = beam_fn_api_pb2.GetProcessBundleDescriptorRequest(process_bundle_descriptor_id=name)
    transforms = control.GetProcessBundleDescriptor(request, timeout=WAIT_S).transforms.values()
    ports = (each.spec.payload for each in transforms if each.spec.urn in DATA)
    return {beam_fn_api_pb2.RemoteGrpcPort.FromString(p).api_service_descriptor.url for p in ports}


if __name__ == "__main__":
    sys.exit(main())
