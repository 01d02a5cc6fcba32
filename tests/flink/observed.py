"""What a Flink cluster has done: who worked, what failed, what was counted."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import beam_job_api_pb2
from flink_cluster import Cluster
from google.protobuf import json_format

from vlmill.runtime.units.launch import flink_worker

BEAMS = "__metricscontainers"  # all that Beam counts is one accumulator of Flink's
WAIT_S = 600  # a busy machine; an idle one takes 20


def process_environment(cluster: Cluster, package: Path) -> list[str]:
    """The flags, for workers that find vlmill in the folder ``package``."""
    config = {
        "command": str(worker_command(cluster.folder, package)),
        # Float sums depend on the threads; the local runs have one, too.
        "env": {flink_worker.LOGS: str(cluster.logs), "OMP_NUM_THREADS": "1"},
    }
    return [
        # 0 is Beam's default: a cached environment outlives its worker, and is used again.
        *("--parallelism=2", "--environment_type=PROCESS", "--environment_cache_millis=0"),
        f"--environment_config={json.dumps(config)}",
    ]


def worker_command(folder: Path, package: Path) -> Path:
    """What ``vlmill-flink-worker`` is, for a package that is not installed."""
    command = folder / f"worker-{package.name}"
    command.write_text(
        f"#!/bin/sh\nPYTHONPATH='{package}' exec '{sys.executable}' -m {flink_worker.__name__} "
        '"$@"\n'
    )
    command.chmod(0o755)
    return command


def processes_of(cluster: Cluster) -> list[str]:
    """The command lines of processes that have to do with the cluster's folder."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            words = [*process.cmdline(), process.environ().get(flink_worker.LOGS, "")]
            if any(str(cluster.folder) in word for word in words):
                lines.append(" ".join(words))
    return lines


def workers_of(cluster: Cluster) -> Iterator[psutil.Process]:
    """The Python processes that the task managers have started."""
    for parent in cluster.processes.values():
        for process in psutil.Process(parent.pid).children(recursive=True):
            if flink_worker.__name__ in " ".join(process.cmdline()):
                yield process


def busiest_worker(cluster: Cluster, seconds: float = 0.2) -> psutil.Process:
    """The Python process that takes the most CPU time in some seconds."""
    before = {worker: cpu_seconds(worker) for worker in workers_of(cluster)}
    time.sleep(seconds)
    return max(before, key=lambda worker: cpu_seconds(worker) - before[worker])


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has taken so far; nothing where it has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def jobs_of(cluster: Cluster) -> list[dict[str, Any]]:
    """The jobs that the cluster has had, the last first."""
    jobs: list[dict[str, Any]] = cluster.ask("/jobs/overview")["jobs"]
    return sorted(jobs, key=lambda job: -job["start-time"])


def failures_of(cluster: Cluster, last: int = 1) -> int:
    """How many failures the last jobs have been through."""
    answers = [cluster.ask(f"/jobs/{job['jid']}/exceptions") for job in jobs_of(cluster)[:last]]
    return sum(len(answer["exceptionHistory"]["entries"]) for answer in answers)


def task_managers_of(cluster: Cluster, step: str) -> set[str]:
    """The task managers that have written elements of a step, in the last job that has it."""
    for job in jobs_of(cluster):
        for vertex in cluster.ask(f"/jobs/{job['jid']}")["vertices"]:
            if re.search(rf"[\]\s]{step}[)}}]", vertex["name"]):
                answer = cluster.ask(f"/jobs/{job['jid']}/vertices/{vertex['id']}/taskmanagers")
                return {
                    each["taskmanager-id"]
                    for each in answer["taskmanagers"]
                    if each["metrics"]["read-records"] > 0
                }
    raise AssertionError(f"no job with a step {step}")


def await_some(count: Callable[[], int], process: "subprocess.Popen[str]") -> None:
    """Waits until a job has done the first of its work."""
    deadline = time.monotonic() + WAIT_S
    while not count():
        assert process.poll() is None and time.monotonic() < deadline, "the job does not work"
        time.sleep(0.02)


def numbers_of(cluster: Cluster, step: str = "") -> Counter[tuple[str, str]]:
    """The numbers of the last job by step and name, as its job manager has them; with ``step``
    those of the last job that has numbers of it.

    Of a distribution it is the sum.
    """
    for job in jobs_of(cluster):
        numbers = numbers_of_job(cluster, job["jid"])
        if not step or any(name == step for name, _ in numbers):
            return numbers
    raise AssertionError(f"no job has numbers of {step}")


def numbers_of_job(cluster: Cluster, job: str) -> Counter[tuple[str, str]]:
    """The numbers of a job by step and name."""
    numbers = Counter[tuple[str, str]]()
    for each in cluster.ask(f"/jobs/{job}/accumulators")["user-task-accumulators"]:
        if each["name"] != BEAMS:
            continue
        answer = json_format.Parse(each["value"], beam_job_api_pb2.GetJobMetricsResponse())
        for info in answer.metrics.attempted:
            if not monitoring_infos.is_user_monitoring_info(info):
                continue
            step = info.labels["NAMESPACE"], info.labels["NAME"]
            if monitoring_infos.is_counter(info):
                numbers[step] += monitoring_infos.extract_counter_value(info)
            elif monitoring_infos.is_distribution(info):
                numbers[step] += monitoring_infos.extract_distribution(info)[1]
    return numbers
