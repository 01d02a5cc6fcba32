"""Which runner does a job's steps: ``--workers`` processes of this machine, or Apache Beam's."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from vlmill.runtime.console.command import int_at_least
from vlmill.runtime.processes import all_cores
from vlmill.runtime.units.launch.loading import quiet_beam_import, require_flags
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob
from vlmill.schemas.errors import InputError


class RunSteps(Protocol):
    """Does steps of a job, one after the other."""

    def __call__(self, job: AnyJob, steps: Sequence[Step[AnyJob]], /) -> None:
        """Returns when all units are done."""


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds ``--workers``, for jobs whose units are done in processes."""
    parser.add_argument(
        "--workers",
        type=int_at_least(1),
        metavar="N",
        help="processes on this machine, without --runner; the bytes stay the same (all cores)",
    )


def local_workers(workers: int | None, beam_flags: Sequence[str]) -> int:
    """Returns the processes of a job on this machine: ``--workers``, by default one a core.

    Raises InputError for ``--workers`` in addition to flags for Beam, which would not hear of it.
    """
    require_flags(beam_flags)
    if workers is not None and beam_flags:
        raise InputError(
            f"--workers {workers} is for a job without Beam, and {beam_flags[0]} goes to Beam; "
            "give the runner's own flag (--parallelism, --num_workers, --direct_num_workers)"
        )
    return workers or all_cores()


def select_runner(
    beam_flags: Sequence[str], *, workers: int, module: str, paths: Mapping[str, str | None]
) -> RunSteps:
    """Returns what does steps: ``workers`` processes, or the Beam runner that flags name.

    ``module`` is the job's, whose imports its steps need; ``paths`` are the flags that name files,
    with what they name. Raises InputError for flags that no runner takes, and for paths that the
    workers of a cluster would not find.
    """
    if not beam_flags:
        return partial(run_here, workers=workers, module=module)
    with quiet_beam_import():  # it takes seconds to load
        from vlmill.runtime.units.launch.clusters import require_for_cluster
        from vlmill.runtime.units.launch.options import beam_options
        from vlmill.runtime.units.run_beam import run_beam

    options = beam_options(beam_flags, module)
    require_for_cluster(options, paths)
    return partial(run_beam, options=options)
