"""Says where a job on Flink is seen, and ends it at the first failure that no worker can mend.

Flink starts a failed task again whatever it failed of, as often as its restart strategy says: a job
whose workers lack a library seemed to wait for ever. Its REST interface tells what failed. A job
that wants more slots than there are waits, too; more may come, so that it is only told.
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
    """Watches the job of these options while the block runs; gives what has ended it, if anything.

    Only ``--flink_master=HOST:PORT`` says whom to ask; without it nothing is watched. Ctrl-C ends
    the job, too: on the cluster it would hold its slots and write beside the next run.
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
        # A job manager that does not answer now may be busy: the job itself tells of its loss.
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
    """The ids of the jobs of this name that have not ended."""
    jobs = _fetch_json(f"{master}/jobs/overview")["jobs"]
    return [job["jid"] for job in jobs if job["name"] == name and job["state"] in AT_WORK]


def _print_status(master: str, job: str, parallelism: int) -> None:
    """Prints where the job's progress is, and what it waits for if the cluster is too small."""
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
    """What no worker can mend among the failures that a job has been through."""
    failures = _fetch_json(f"{job}/exceptions")["exceptionHistory"]["entries"]
    worker_errors = (useless_worker(failure["stacktrace"]) for failure in failures)
    return [error for error in worker_errors if error is not None]


def _fetch_json(url: str) -> Any:
    with urlopen(url, timeout=ANSWER_S) as answer:
        return json.load(answer)


def _cancel(job: str) -> None:
    with urlopen(Request(f"{job}?mode=cancel", method="PATCH"), timeout=ANSWER_S):
        pass
