"""The flags of jobs whose units are done in processes: loaded with a help text, so light."""

import argparse
from collections.abc import Sequence

from vlmill.runtime.console.command import int_at_least
from vlmill.runtime.processes import all_cores
from vlmill.runtime.units.launch.loading import require_flags
from vlmill.schemas.errors import InputError


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds ``--workers``, for jobs whose units are done in processes."""
    parser.add_argument(
        "--workers",
        type=int_at_least(1),
        metavar="N",
        help="number of processes on this machine, without --runner; the bytes stay the "
        "same (default: one per core)",
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
