"""The shards of the regions job by Apache Beam: one detector in each worker process."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.utils.shared import Shared

from vlmill.extract.from_flags import make_config, make_detector
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.units.launch.clusters import require_for_cluster
from vlmill.runtime.units.launch.metrics import count_in_beam
from vlmill.runtime.units.launch.options import beam_options, run_pipeline
from vlmill.runtime.units.numbers import Numbers, count_rejects, timed

if TYPE_CHECKING:  # torch takes seconds to load: not before the arguments are known to be good
    from vlmill.extract.detect.detector import Detector
    from vlmill.extract.run.job import Job, Part


class ExtractPart(beam.DoFn):
    """Part -> (rows of regions, rows of rejects) of the two shards that it has written.

    Memory: one detector a process, whatever the number of threads; the images among which batches
    are formed and the rows that wait to be written a thread.
    """

    def __init__(self, arguments: argparse.Namespace, identity: tuple[str, ...]) -> None:
        self.arguments, self.identity = arguments, identity
        self.shared = Shared()

    def setup(self) -> None:
        self.detector: Detector = self.shared.acquire(self._open)
        identity = self.detector.identity
        if identity != self.identity:
            raise OSError(
                f"the worker's networks have the fingerprints {', '.join(identity)}, those of the "
                f"process which planned the job {', '.join(self.identity)}: both need the same "
                "vlmill, --weights and --global-weights"
            )

    def _open(self) -> "Detector":
        return make_detector(self.arguments)

    def process(self, part: "Part") -> Iterator[tuple[int, int]]:
        from vlmill.extract.run.job import Job, make_shards

        config, output = make_config(self.arguments), to_path(self.arguments.output)
        job = Job(plan=(), output=output, detector=self.detector, config=config)
        numbers = Numbers(images=len(part.images))
        progress = Progress(total=len(part.images), unit="image", label=f"regions {part.index}")
        with progress, timed(numbers):
            regions, rejects = make_shards(job, part, progress)
        numbers.update(rows=regions.rows, bytes=regions.bytes + rejects.bytes)
        numbers.update(count_rejects(reject_counts(output / rejects.name)))
        count_in_beam("regions", numbers)
        yield regions.rows, rejects.rows


def make_parts_on_beam(
    args: argparse.Namespace, beam_flags: Sequence[str]
) -> "Callable[[Job, Sequence[Part]], None]":
    """Returns what makes parts on the runner that the flags name. Raises InputError."""
    options = beam_options(beam_flags, __name__)
    require_for_cluster(options, {"--images": args.images, "--output": str(args.output)})

    def make_parts(job: "Job", parts: Sequence["Part"]) -> None:
        step = ExtractPart(args, job.detector.identity)
        # A worker inside this process takes the detector that is here already.
        step.shared.acquire(lambda: job.detector)
        with run_pipeline(options) as pipeline:
            _ = pipeline | "Parts" >> beam.Create(parts) | "Extract" >> beam.ParDo(step)

    return make_parts
