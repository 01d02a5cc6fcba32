"""Defines a share of a run: the shards that one of several processes writes, on any machine.

Each process plans all images in the same manner, and writes every n-th shard. The process that
finds all shards written after its own writes the manifest.
"""

import argparse
import re
from dataclasses import dataclass

MOST_PARTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ``number``-th, from 1, of ``count`` shares."""

    number: int
    count: int

    @property
    def name(self) -> str:
        """Returns the name of its lock."""
        return f"{self.number}-of-{self.count}"

    def select_shards(self, num_shards: int) -> range:
        """Returns its own shards."""
        return range(self.number - 1, num_shards, self.count)


def share(text: str) -> Share:
    """Parses ``--part``. Raises argparse's error for an invalid value."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= MOST_PARTS:
        raise argparse.ArgumentTypeError(f"{text!r}: give i/n with i from 1 to n, as 3/8")
    return Share(number=int(match[1]), count=int(match[2]))
