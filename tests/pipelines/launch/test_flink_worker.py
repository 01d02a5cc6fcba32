"""What the command of Flink's task managers hands on to Beam's worker."""

import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

from vlmill.pipelines.launch.flink_worker import LOGS, provision, worker_environment

ROOT = Path(__file__).parents[3]


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
        "from vlmill.pipelines.launch import flink_worker as w; w.WAIT_S = 0.1; "
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
