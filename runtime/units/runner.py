"""Selects the runner of a job's steps: ``--workers`` processes on this machine, or Apache Beam."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from vlmill.runtime.units.launch.loading import quiet_beam_import
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.share import Share
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob


class RunSteps(Protocol):
    """Runs steps of a job, one after the other."""

    def __call__(self, job: AnyJob, steps: Sequence[Step[AnyJob]], /) -> None:
        """Returns when all units are done."""


def select_runner(
    beam_flags: Sequence[str],
    *,
    workers: int,
    module: str,
    paths: Mapping[str, str | None],
    share: Share | None = None,
) -> RunSteps:
    """Returns the runner of steps: ``workers`` processes, or the Beam runner of the flags.

    ``share``: the processes do only its units. ``module`` is the job's module, which imports the
    modules of its steps; ``paths`` are the flags that name files, with their paths. Raises
    InputError for unknown flags, and for paths that the workers of a cluster would not find.
    """
    if not beam_flags:
        return partial(run_here, workers=workers, module=module, share=share)
    with quiet_beam_import():  # it takes seconds to load
        from vlmill.runtime.units.launch.clusters import require_for_cluster
        from vlmill.runtime.units.launch.options import beam_options
        from vlmill.runtime.units.run_beam import run_beam

    options = beam_options(beam_flags, module)
    require_for_cluster(options, paths)
    return partial(run_beam, options=options)
