"""Defines the flags for downloads, and formats their counts."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from vlmill.pipelines.web.fetching.flags import add_policy_flags
from vlmill.runtime.net.flags import add_allow_address


def add_fetch(p: argparse.ArgumentParser) -> None:
    """Adds the flags that download images."""
    p.add_argument(
        "--fetch",
        action="store_true",
        help="download missing images politely, into DIR/work/fetched",
    )
    p.add_argument(
        "--contact",
        metavar="ADDRESS",
        help="with --fetch: e-mail address or page where site owners can reach you",
    )
    p.add_argument(
        "--retry-failed", action="store_true", help="with --fetch: repeat transient failures"
    )
    add_policy_flags(p, ["delay_s", "max_bytes", "retries"])
    add_allow_address(p)


def format_fetch_counts(counts: Mapping[str, Any], published: int) -> str:
    """Returns a line with the number of downloads and the published number of rows."""
    failed = counts["failed"]
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in failed.items())
    summary = f"fetched: {counts['fetched']:,} images of {counts['urls']:,} URLs"
    published_note = f" ({published:,} rows are published)" if published else ""
    failures = f"{sum(failed.values()):,} failed{f': {reasons}' if reasons else ''}"
    return f"{summary}{published_note}; {failures}"


def make_fetch_rows(counts: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """Returns the outcomes of the URLs as rows of a table."""
    numbers = {"URLs": counts["urls"], "fetched": counts["fetched"], **counts["failed"]}
    return [[name, f"{number:,}"] for name, number in numbers.items()]
