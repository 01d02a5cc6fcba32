"""Translates pipelines for Dataflow as its client does, without a network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

IMAGE = "europe-docker.pkg.dev/project/vlmill/worker:1"


class Translation:
    """Takes the place of ``run_pipeline``: leaves what Dataflow would get, and runs nothing."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        self.folder, self.flags = folder, flags
        self.jobs: list[Path] = []

    @contextmanager
    def __call__(self, _: PipelineOptions) -> Iterator[beam.Pipeline]:
        """Gives a pipeline; leaves ``job.json`` and ``pipeline.pb`` in a folder of its own."""
        pipeline = beam.Pipeline()
        yield pipeline
        folder = self.folder / f"{len(self.jobs):02d}"
        folder.mkdir()
        DataflowRunner().run_pipeline(pipeline, PipelineOptions([*self._flags(folder)]))
        self.jobs.append(folder)

    def _flags(self, folder: Path) -> Iterator[str]:
        """Local folders for what would be uploaded, and no call of a service."""
        yield from ("--runner=DataflowRunner", "--project=project", "--region=europe-west4")
        yield from ("--no_auth", "--temp_location=gs://bucket/temporary")
        yield from (f"--staging_location={folder}", f"--template_location={folder}/job.json")
        yield from self.flags or (f"--sdk_container_image={IMAGE}", "--max_num_workers=20")
