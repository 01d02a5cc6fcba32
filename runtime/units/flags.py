"""Declares the flags of jobs with units in processes. Help texts load it, so it imports little."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vlmill.runtime.console.command import (
    add_count,
    add_fresh,
    add_lock_seconds,
    non_negative_float,
)
from vlmill.runtime.console.cost import add_dry_run
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.units.launch.loading import require_flags
from vlmill.runtime.units.share import START_S, parse_share
from vlmill.schemas.errors import InputError


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds ``--workers``, for jobs whose units are done in processes."""
    add_count(
        parser,
        "--workers",
        "number of processes on this machine, without --runner; the output stays the same "
        "(default: one per core)",
    )


def add_run_flags(parser: argparse.ArgumentParser, *, dry_run: bool = True) -> None:
    """Adds the flags of :func:`lock_job` and of jobs that continue an earlier run."""
    parser.add_argument(
        "--part",
        type=parse_share,
        metavar="i/n",
        help="do only every n-th unit of each step, from the i-th on; start all n parts at the "
        "same time with the same flags, on machines that see one --output: they wait for each "
        "other, and part 1 writes the manifest",
    )
    parser.add_argument(
        "--part-wait",
        type=non_negative_float,
        metavar="S",
        help="with --part: wait S seconds for parts that have not started or were killed (default: "
        f"{START_S:.0f}); an array job starts its tasks at different times",
    )
    add_fresh(parser)
    if dry_run:
        add_dry_run(parser)
    add_lock_seconds(parser)


@contextmanager
def lock_job(args: argparse.Namespace, beam_flags: Sequence[str] = ()) -> Iterator[None]:
    """Holds the lock of a job's ``--output``, or of its part; a dry run, which writes nothing, has
    none. Raises InputError as `require_part` and `lock_output` do.
    """
    require_part(args, beam_flags)
    dry_run = getattr(args, "dry_run", False)
    part = None if args.part is None else args.part.name
    with lock_output(None if dry_run else args.output, part=part, seconds=args.lock_seconds):
        yield


def require_part(args: argparse.Namespace, beam_flags: Sequence[str] = ()) -> None:
    """Adds ``--part-wait`` to the part. Raises InputError for flags that do not go together."""
    if args.part is None:
        if args.part_wait is not None:
            raise InputError(f"--part-wait {args.part_wait:g}: give --part i/n, which waits")
        return
    if args.part_wait is not None:
        args.part = replace(args.part, wait_s=args.part_wait)
    if beam_flags:
        raise InputError(f"--part is for a job without Beam, and {beam_flags[0]} goes to Beam")
    if args.fresh:
        raise InputError(
            "--fresh would delete the output of the other parts; remove it, and delete "
            f"{args.output} before all parts"
        )


def local_workers(workers: int | None, beam_flags: Sequence[str]) -> int:
    """Returns the number of processes of a job on this machine: ``--workers``, else one per core.

    Raises InputError for ``--workers`` in addition to flags for Beam, which would ignore it.
    """
    require_flags(beam_flags)
    if workers is not None and beam_flags:
        raise InputError(
            f"--workers {workers} is for a job without Beam, and {beam_flags[0]} goes to Beam; "
            "give the runner's own flag (--parallelism, --num_workers, --direct_num_workers)"
        )
    return workers or all_cores()
