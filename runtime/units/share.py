"""Defines a share of a job: the units of one of several processes, on any number of machines.

Each process does every n-th unit of every step, and before the next step it waits for the units of
the others as long as these are running. The first one ends the job when all others have ended.
"""

import argparse
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.lock import parts_at_work, wait_for_turn

MOST_PARTS = 100_000
POLL_S = 1.0
START_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """Identifies share ``number``, from 1, of ``count`` shares.

    ``wait_s`` is how long other shares may take to start, or to start again, in seconds.
    """

    number: int
    count: int
    wait_s: float = START_S

    @property
    def name(self) -> str:
        """Returns the name of its lock."""
        return f"{self.number}-of-{self.count}"

    def select_shards(self, num_shards: int) -> range:
        """Returns the numbers of its shards, or units."""
        return range(self.number - 1, num_shards, self.count)

    def select_others(self) -> "list[Share]":
        """Returns the other shares."""
        return [replace(self, number=n) for n in range(1, self.count + 1) if n != self.number]


def parse_share(text: str) -> Share:
    """Reads ``--part``. Raises argparse's error for an invalid one."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= MOST_PARTS:
        raise argparse.ArgumentTypeError(f"{text!r}: give i/n with i from 1 to n, as 3/8")
    return Share(number=int(match[1]), count=int(match[2]))


@contextmanager
def end_job(output: str | Path, share: Share | None) -> Iterator[bool]:
    """Yields whether this process ends the job: without parts, or as the first part.

    The first part waits until the others have ended, so that no process needs the removed files.
    """
    if share is None:
        yield True
        return
    if share.number > 1:
        print_status(f"--part {share.number}/{share.count} is done; part 1 writes the manifest")
        yield False
        return
    other_parts = {other.name for other in share.select_others()}
    while True:
        while parts_at_work(output, other_parts):
            time.sleep(POLL_S)
        with wait_for_turn(output):
            if not parts_at_work(output, other_parts):
                yield True
                return
