"""Prints the address of a job on Flink, and ends the job at the first failure that no worker can
fix.

Flink restarts a failed task regardless of the cause, as often as its restart strategy allows: a job
whose workers lack a library would seem to wait forever. Its REST interface reports the failures. A
job that needs more slots than exist waits too; more may be added, so this is only reported.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import Request, urlopen

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
)

from vlmill.runtime.units.launch.failures import useless_worker

EVERY_S = 5.0
ANSWER_S = 30.0
AT_WORK = ("INITIALIZING", "CREATED", "RUNNING", "RESTARTING", "FAILING")


@contextmanager
def watching(options: PipelineOptions) -> Iterator[list[OSError]]:
    """Watches the job of these options while the block runs; yields the error that ended it, if
    any.

    Only ``--flink_master=HOST:PORT`` gives the address; without it nothing is watched. Ctrl-C ends
    the job as well: on the cluster it would keep its slots and write at the same time as the next
    run.
    """
    errors: list[OSError] = []
    master = str(options.view_as(FlinkRunnerOptions).flink_master).removeprefix("http://")
    if ":" not in master:  # [local], [auto]
        yield errors
        return
    name, ended = str(options.view_as(GoogleCloudOptions).job_name), threading.Event()
    parallelism = int(options.view_as(FlinkRunnerOptions).parallelism)
    words = (f"http://{master}", name, parallelism, ended, errors)
    watch = threading.Thread(target=_watch, args=words)
    watch.start()
    try:
        yield errors
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            for job in _find_running_jobs(f"http://{master}", name):
                _cancel(f"http://{master}/jobs/{job}")
        raise
    finally:
        ended.set()
        watch.join()


def _watch(
    master: str, name: str, parallelism: int, ended: threading.Event, errors: list[OSError]
) -> None:
    announced = False
    while not ended.wait(EVERY_S):
        # A job manager that does not respond now may be busy: the job itself reports its loss.
        with suppress(OSError, ValueError):
            for job in _find_running_jobs(master, name):
                if not announced:
                    announced = True
                    _print_status(master, job, parallelism)
                url = f"{master}/jobs/{job}"
                if problems := _find_fatal_errors(url):
                    errors += problems
                    _cancel(url)
                    return


def _find_running_jobs(master: str, name: str) -> list[str]:
    """Returns the ids of the running jobs of this name."""
    jobs = _fetch_json(f"{master}/jobs/overview")["jobs"]
    return [job["jid"] for job in jobs if job["name"] == name and job["state"] in AT_WORK]


def _print_status(master: str, job: str, parallelism: int) -> None:
    """Prints the address of the job's progress, and a lack of slots if the cluster has too few."""
    print(f"Flink has the job; its progress: {master}/#/job/{job}", file=sys.stderr, flush=True)
    slots = int(_fetch_json(f"{master}/overview")["slots-total"])
    if slots < parallelism:
        less = f"stop it and give --parallelism={slots}, or " if slots else ""
        print(
            f"WARNING: --parallelism={parallelism}, and the cluster has {slots} slots: the job "
            f"waits until it has more; {less}start task managers",
            file=sys.stderr,
            flush=True,
        )


def _find_fatal_errors(job: str) -> list[OSError]:
    """Returns the failures of a job that no worker can fix."""
    failures = _fetch_json(f"{job}/exceptions")["exceptionHistory"]["entries"]
    worker_errors = (useless_worker(failure["stacktrace"]) for failure in failures)
    return [error for error in worker_errors if error is not None]


def _fetch_json(url: str) -> Any:
    with urlopen(url, timeout=ANSWER_S) as answer:
        return json.load(answer)


def _cancel(job: str) -> None:
    with urlopen(Request(f"{job}?mode=cancel", method="PATCH"), timeout=ANSWER_S):
        pass
