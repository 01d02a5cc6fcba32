"""What the command of Flink's task managers hands on to Beam's worker."""

import os
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

from vlmill import __version__
from vlmill.runtime.units.launch.failures import useless_worker
from vlmill.runtime.units.launch.flink_worker import (
    LOGS,
    find_missing,
    provision,
    refuse,
    worker_environment,
)
from vlmill.runtime.units.launch.options import beam_options

ROOT = Path(__file__).parents[4]


def info_of(**endpoints: str) -> Any:
    info = beam_provision_api_pb2.ProvisionInfo(runner_capabilities=["a", "b"])
    json_format.ParseDict({"beam:option:job_name:v1": "job"}, info.pipeline_options)
    for name, url in endpoints.items():
        getattr(info, f"{name}_endpoint").url = url
    return info


class Provision(beam_provision_api_pb2_grpc.ProvisionServiceServicer):
    """Answers with the caller's name as a capability."""

    def GetProvisionInfo(self, request: Any, context: Any) -> Any:
        info = info_of(control="localhost:1")
        info.runner_capabilities.append(dict(context.invocation_metadata())["worker_id"])
        return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)


class Runner(beam_fn_api_pb2_grpc.BeamFnControlServicer, beam_fn_api_pb2_grpc.BeamFnDataServicer):
    """Asks for two bundles, and as Flink's does hears no answer before somebody fetches data."""

    def __init__(self) -> None:
        self.url, self.is_fetched = "", threading.Event()
        self.answers: list[tuple[str, str]] = []

    def Control(self, answers: Any, context: Any) -> Any:
        for instruction in ("a", "b"):
            asked = beam_fn_api_pb2.InstructionRequest(instruction_id=instruction)
            asked.process_bundle.process_bundle_descriptor_id = "bundle"
            yield asked
            assert self.is_fetched.wait(60)
            answer = next(answers)
            self.answers.append((answer.instruction_id, answer.error))

    def GetProcessBundleDescriptor(self, request: Any, context: Any) -> Any:
        bundle = beam_fn_api_pb2.ProcessBundleDescriptor(id="bundle")
        port = beam_fn_api_pb2.RemoteGrpcPort()
        port.api_service_descriptor.url = self.url
        bundle.transforms["read"].spec.urn = "beam:runner:source:v1"
        bundle.transforms["read"].spec.payload = port.SerializeToString()
        return bundle

    def Data(self, elements: Any, context: Any) -> Any:
        self.is_fetched.set()
        yield from ()


def test_a_worker_that_cannot_work_answers_so() -> None:
    server, runner = grpc.server(futures.ThreadPoolExecutor(4)), Runner()
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(runner, server)
    beam_fn_api_pb2_grpc.add_BeamFnDataServicer_to_server(runner, server)
    runner.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        refuse(runner.url, "1-1", "no torch here")
    finally:
        server.stop(None)
    assert [name for name, _ in runner.answers] == ["a", "b"]
    assert {str(useless_worker(error)) for _, error in runner.answers} == {"no torch here"}


def asked_for(module: str) -> dict[str, Any]:
    """The options of a job as a worker gets them."""
    options = beam_options([], module).get_all_options(drop_default=True)
    return {f"beam:option:{name}:v1": value for name, value in options.items()}


def test_a_worker_is_asked_for_version_and_module() -> None:
    assert find_missing({}) is None
    asked = asked_for("vlmill.runtime.units.numbers")
    assert find_missing(asked) is None
    other = find_missing({**asked, "beam:option:vlmill_version:v1": "9.9"})
    assert other is not None
    assert f"has vlmill {__version__}, the job is of 9.9: install vlmill 9.9" in other
    newer = find_missing({**asked, "beam:option:vlmill_python:v1": "3.99"})
    assert newer is not None and "the job was started with Python 3.99" in newer
    lacking = find_missing(asked_for("vlmill.pipelines.no_such_job"))
    assert lacking is not None and "cannot import vlmill.pipelines.no_such_job (Mod" in lacking


def test_the_environment_names_options_and_the_endpoints_that_there_are() -> None:
    environment = worker_environment(info_of(control="host:1", logging="host:2"), "1-1")
    services = {
        name: text_format.Parse(value, endpoints_pb2.ApiServiceDescriptor()).url
        for name, value in environment.items()
        if name.endswith("_DESCRIPTOR")
    }
    assert services == {
        "CONTROL_API_SERVICE_DESCRIPTOR": "host:1",
        "LOGGING_API_SERVICE_DESCRIPTOR": "host:2",
    }
    assert environment["WORKER_ID"] == "1-1"
    assert environment["RUNNER_CAPABILITIES"] == "a b"
    assert '"beam:option:job_name:v1": "job"' in environment["PIPELINE_OPTIONS"]


def test_the_task_manager_is_asked_under_the_workers_name() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(Provision(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert list(provision(f"127.0.0.1:{port}", "3-1").runner_capabilities) == ["a", "b", "3-1"]
    finally:
        server.stop(None)


def test_errors_go_into_a_file(tmp_path: Path) -> None:
    """Nobody reads what a worker prints: a task manager throws it away."""
    program = (
        "from vlmill.runtime.units.launch import flink_worker as w; "
        "w.main(['--id=1-1', '--provision_endpoint=127.0.0.1:1'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), LOGS: str(tmp_path / "logs")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr == ""
    (log,) = (tmp_path / "logs").iterdir()
    assert "127.0.0.1:1" in log.read_text(encoding="utf-8")
