"""Defines the options of all Beam jobs (the job's own first, the others go to Beam) and errors."""

import argparse
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, TypeOptions

from vlmill import __version__
from vlmill.runtime.units.launch.failures import without_step, worker_error
from vlmill.runtime.units.launch.flink_watch import watching
from vlmill.runtime.units.launch.loading import unknown_flag
from vlmill.runtime.units.stored import python_version
from vlmill.schemas.errors import InputError, StoreFailed

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
    """Returns an empty parser for the declarations of Beam's options: Beam's, a private class, or
    a plain one.
    """
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
