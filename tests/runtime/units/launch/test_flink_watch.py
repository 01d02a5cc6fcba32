"""A job on Flink whose workers cannot work is ended, through a job manager's REST interface."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from vlmill.runtime.units.launch import options
from vlmill.runtime.units.launch.failures import format_refusal
from vlmill.runtime.units.launch.options import beam_options, watching

USELESS = (
    f"java.lang.RuntimeException: Error received from SDK harness: {format_refusal('on a: no x')}\n"
)
KILLED = "org.apache.flink.runtime.JobException: Process died with exit code 137"


class JobManager(BaseHTTPRequestHandler):
    """Has a job that restarts after the failures of its server."""

    server: "Served"

    def do_GET(self) -> None:
        told = {
            "/jobs/overview": {"jobs": [{"jid": "7", "name": self.server.job, "state": "RUNNING"}]},
            "/overview": {"slots-total": self.server.slots},
            "/jobs/7/exceptions": {"exceptionHistory": {"entries": self.server.failures}},
        }
        self.server.asked += 1
        self.answer(told[self.path])

    def do_PATCH(self) -> None:
        self.server.ended.append(self.path)
        self.answer({})

    def answer(self, told: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests ask the server itself."""


class Served(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), JobManager)
        self.job, self.asked, self.slots = "", 0, 2
        self.failures: list[dict[str, str]] = []
        self.ended: list[str] = []


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(options, "WATCH_EVERY_S", 0.01)
    with Served() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def flags(server: Served) -> list[str]:
    return [f"--flink_master=127.0.0.1:{server.server_port}", "--job_name=ours"]


def watched(server: Served, job: str, failure: str, *more: str) -> list[OSError]:
    """What ends the job "ours" while the cluster has a job that failed so."""
    server.job, server.failures = job, [{"stacktrace": failure}]
    deadline = time.monotonic() + 60
    with watching(beam_options([*flags(server), *more])) as errors:
        while not errors and server.asked < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert server.asked
    return errors


def test_a_job_that_can_never_be_done_is_ended(served: Served) -> None:
    (error,) = watched(served, "ours", USELESS)
    assert str(error) == "on a: no x"
    assert served.ended == ["/jobs/7?mode=cancel"]


@pytest.mark.parametrize(("job", "failure"), [("ours", KILLED), ("another", USELESS)])
def test_a_kill_and_another_job_are_left_alone(job: str, failure: str, served: Served) -> None:
    assert watched(served, job, failure) == [] and served.ended == []


@pytest.mark.parametrize(("parallelism", "waits"), [(2, False), (64, True)])
def test_a_job_is_told_where_it_is_seen_and_what_it_waits_for(
    parallelism: int, waits: bool, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    watched(served, "ours", KILLED, f"--parallelism={parallelism}")
    told = capsys.readouterr().err
    assert told.count(f"http://127.0.0.1:{served.server_port}/#/job/7") == 1
    assert ("the cluster has 2 slots" in told and "give --parallelism=2" in told) == waits


def test_an_interrupted_command_leaves_no_job_behind(served: Served) -> None:
    served.job = "ours"
    with pytest.raises(KeyboardInterrupt), watching(beam_options(flags(served))):
        raise KeyboardInterrupt
    assert served.ended == ["/jobs/7?mode=cancel"]


@pytest.mark.parametrize("flag", ["--flink_master=[local]", "--flink_master=127.0.0.1:9"])
def test_where_nobody_answers_the_job_goes_on(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WATCH_EVERY_S", 0.01)
    with watching(beam_options([flag])) as errors:
        pass
    assert errors == []


def test_a_cluster_without_task_managers_wants_some(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.slots = 0
    watched(served, "ours", KILLED, "--parallelism=1")
    told = capsys.readouterr().err
    assert "the cluster has 0 slots: the job waits until it has more; start task managers" in told
