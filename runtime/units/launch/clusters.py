"""Checks the requirements of a job on a cluster before it starts."""

import os
from collections.abc import Mapping

from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from vlmill.schemas.errors import InputError

RUNNERS = ("dataflowrunner", "apache_beam.runners.dataflow.dataflow_runner.dataflowrunner")


def runs_on_dataflow(options: PipelineOptions) -> bool:
    """Returns whether the options name Dataflow's runner."""
    return str(options.view_as(StandardOptions).runner).lower() in RUNNERS


def require_for_cluster(options: PipelineOptions, paths: Mapping[str, str | None]) -> None:
    """Raises InputError for a job whose workers would find neither vlmill nor its files.

    ``paths`` are flags with their paths. Whether remote workers share a file system with this
    process cannot be checked here. But they run in other folders, so a relative path would refer to
    another file on each, and Flink would restart the failing tasks for hours.
    """
    local_paths = {flag: path for flag, path in paths.items() if path and "://" not in path}
    if runs_on_dataflow(options):
        _require_for_dataflow(options, local_paths)
    elif options.view_as(PortableOptions).environment_type not in (None, "LOOPBACK"):
        for flag, path in local_paths.items():
            if not os.path.isabs(path):
                raise InputError(
                    f"{flag} {path} is a relative path, which the workers cannot resolve; "
                    f"give {os.path.abspath(path)} (docs/clusters.md)"
                )


def _require_for_dataflow(options: PipelineOptions, local: Mapping[str, str]) -> None:
    for flag, path in local.items():
        raise InputError(
            f"{flag} {path} is on this machine, which Dataflow's workers cannot read; "
            "give gs://... (docs/clusters.md)"
        )
    if not (get_container_image(options) or options.view_as(SetupOptions).setup_file):
        raise InputError(
            "--runner DataflowRunner: its workers do not have vlmill; give --sdk_container_image "
            "IMAGE (docker/worker.Dockerfile) or --setup_file ./setup.py"
        )


def get_container_image(options: PipelineOptions) -> str | None:
    """Returns the container image of the workers, if it is not Beam's own."""
    image: str | None = options.view_as(WorkerOptions).sdk_container_image
    return image
