"""Defines the options of all Beam jobs (the job's own first, the others go to Beam) and errors.

Flink restarts a failed task regardless of the cause, as often as its restart strategy allows: a job
whose workers lack a library would seem to wait forever. Its REST interface reports the failures: a
job is ended at the first failure that no worker can fix. A job that needs more slots than exist
waits too; more may be added, so this is only reported.
"""

import argparse
import json
import logging
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import Request, urlopen

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    TypeOptions,
)

from vlmill import __version__
from vlmill.runtime.units.launch.failures import useless_worker, without_step, worker_error
from vlmill.runtime.units.launch.loading import unknown_flag
from vlmill.runtime.units.stored import python_version
from vlmill.schemas.errors import InputError, StoreFailed

WATCH_EVERY_S = 5.0
ANSWER_S = 30.0
AT_WORK = ("INITIALIZING", "CREATED", "RUNNING", "RESTARTING", "FAILING")
# Beam's own default tries to download another runner first; this one is inside the package.
LOCAL_RUNNER = "FnApiRunner"
# The errors for which `vlmill.runtime.console.command.run_command` prints one line.
ANSWERED = (OSError, InputError, StoreFailed)


class WorkerOptions(PipelineOptions):
    """Declares the requirements of a worker, which are not flags for users."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--vlmill_version", help="version of vlmill in the process that starts the job"
        )
        parser.add_argument(
            "--vlmill_python", help="version of Python in the process that starts the job: 3.11"
        )
        parser.add_argument(
            "--vlmill_module", help="module that every worker must be able to import"
        )


class _PlainParser(argparse.ArgumentParser):
    """Accepts the declarations of Beam's options if Beam's parser is missing."""

    def add_value_provider_argument(self, *args: Any, **kwargs: Any) -> None:
        """Adds an argument whose value pipeline templates get later: here a plain argument."""
        self.add_argument(*args, **kwargs)


def make_parser() -> Any:
    """Returns an empty parser for Beam's options: Beam's private class, or a plain one."""
    try:
        from apache_beam.options.pipeline_options import _BeamArgumentParser
    except ImportError:
        return _PlainParser(add_help=False, allow_abbrev=False)
    return _BeamArgumentParser(add_help=False, allow_abbrev=False)


def beam_options(flags: Sequence[str], module: str = "vlmill") -> PipelineOptions:
    """Returns Beam's options from the flags that a job does not define.

    The runner is the local one unless ``--runner`` is given. ``module`` contains or imports the
    steps of the job: a worker must be able to import it. Raises InputError for a flag that Beam
    does not define either; Beam itself would ignore it.
    """
    parser = make_parser()
    for group in PipelineOptions.__subclasses__():
        if group is not WorkerOptions:
            group._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(flags))
    if unknown:
        raise unknown_flag(unknown[0])
    chosen = any(f == "--runner" or f.startswith("--runner=") for f in flags)
    options = PipelineOptions([*flags] if chosen else [*flags, f"--runner={LOCAL_RUNNER}"])
    if not chosen:
        # Inferring the types of steps is a quarter of a small job's cost; mypy checks them. A
        # cluster's runner derives coders from them.
        options.view_as(TypeOptions).pipeline_type_check = False
    worker = options.view_as(WorkerOptions)
    worker.vlmill_version, worker.vlmill_module = __version__, module
    worker.vlmill_python = python_version()
    cloud_options = options.view_as(GoogleCloudOptions)
    if cloud_options.job_name is None:
        job = module.split(".")[2:3] or ["job"]
        cloud_options.job_name = f"vlmill-{job[0].replace('_', '-')}-{secrets.token_hex(4)}"
    return options


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
    while not ended.wait(WATCH_EVERY_S):
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


@contextmanager
def run_pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Yields a pipeline that runs at the end of the block.

    Errors of the operating system or of a user's input in a step are raised unchanged, not as
    Beam's RuntimeError: a full disk gives one line instead of a hundred. The traceback that Beam
    logs first is dropped. For a remote worker the error is the runner's report.
    """
    log = logging.getLogger("apache_beam.runners.common")
    log.addFilter(_is_no_answered_error)
    useless: list[OSError] = []
    try:
        with watching(options) as useless, beam.Pipeline(options=options) as pipeline:
            yield pipeline
    except ANSWERED as error:
        raise without_step(error) from None
    except RuntimeError as error:
        if useless:
            raise useless[0] from None
        cause = error.__cause__ or error.__context__
        if isinstance(cause, ANSWERED):
            raise without_step(cause) from None
        if (remote_error := worker_error(str(error))) is not None:
            raise remote_error from None
        raise
    finally:
        log.removeFilter(_is_no_answered_error)


def _is_no_answered_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], ANSWERED))
