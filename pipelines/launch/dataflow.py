"""What a job on Google Cloud Dataflow needs is asked for before anything starts there."""

from collections.abc import Mapping

from apache_beam.options.pipeline_options import (
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from vlmill.schemas.errors import InputError

RUNNERS = ("dataflowrunner", "apache_beam.runners.dataflow.dataflow_runner.dataflowrunner")


def runs_there(options: PipelineOptions) -> bool:
    """Whether the options name Dataflow's runner."""
    return str(options.view_as(StandardOptions).runner).lower() in RUNNERS


def require_for_dataflow(options: PipelineOptions, places: Mapping[str, str | None]) -> None:
    """Raises InputError for a job whose workers would find neither vlmill nor its places.

    ``places`` are flags and what they name. Other runners pass: whether their workers share a file
    system with this process, nobody can tell from here.
    """
    if not runs_there(options):
        return
    for flag, place in places.items():
        if place is not None and "://" not in place:
            raise InputError(
                f"{flag} {place} lies on this machine, where Dataflow's workers do not see it; "
                "give gs://... (docs/clusters.md)"
            )
    if not (image_of(options) or options.view_as(SetupOptions).setup_file):
        raise InputError(
            "--runner DataflowRunner: its workers do not have vlmill; give --sdk_container_image "
            "IMAGE (docker/worker.Dockerfile) or --setup_file ./setup.py"
        )


def image_of(options: PipelineOptions) -> str | None:
    """The container image that workers start from, if it is not Beam's own."""
    image: str | None = options.view_as(WorkerOptions).sdk_container_image
    return image
