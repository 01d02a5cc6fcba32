"""Defines the flags of every ``manifest`` subcommand."""

import argparse

from vlmill.runtime.console.command import add_fresh, add_lock_seconds, int_at_least
from vlmill.runtime.console.cost import add_dry_run
from vlmill.runtime.cores import all_cores
from vlmill.runtime.units.flags import add_part

MANY_WORKERS = 8


def add_run_arguments(p: argparse.ArgumentParser, *, rows_per_shard: int) -> None:
    """Adds the flags for shards, threads, a dry run and the output of an earlier run."""
    p.add_argument(
        "--rows-per-shard",
        type=int_at_least(1),
        default=rows_per_shard,
        metavar="N",
        help="number of rows per shard (default: %(default)s)",
    )
    p.add_argument(
        "--workers",
        type=int_at_least(1),
        default=min(MANY_WORKERS, all_cores()),
        metavar="N",
        help="number of threads that read images and of processes that decode them; the "
        "rows stay the same (default: %(default)s)",
    )
    add_part(p)
    add_fresh(p)
    add_dry_run(p)
    add_lock_seconds(p)
