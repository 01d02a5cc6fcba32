"""Defines the flags of every command that fetches."""

import argparse
import dataclasses
from collections.abc import Iterable

from vlmill.pipelines.web.fetching.hosts import MOST_BUCKETS
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.runtime.console.command import Flags, add_count
from vlmill.runtime.net.addresses import parse_networks
from vlmill.schemas.errors import InputError

FLAGS: dict[str, tuple[str, str, str]] = {
    "delay_s": (
        "--delay",
        "S",
        "pause in seconds between two requests to a host, unless its robots.txt asks for more",
    ),
    "per_host": ("--per-host", "N", "number of simultaneous requests to a host"),
    "hosts_at_once": (
        "--hosts-at-once",
        "N",
        "number of hosts that a worker downloads from at the same time",
    ),
    "response_s": ("--timeout", "S", "time limit of a complete response in seconds"),
    "max_bytes": ("--max-bytes", "N", "largest body in bytes, as received and as decoded"),
    "max_redirects": ("--max-redirects", "N", "largest number of consecutive redirects"),
    "retries": ("--retries", "N", "number of retry rounds for transient failures, at the end"),
    "retry_wait_s": ("--retry-wait", "S", "pause in seconds before such a round"),
    "max_wait_s": (
        "--max-wait",
        "S",
        "longest pause in seconds that a host may ask for before it is set aside",
    ),
    "max_failures": (
        "--max-failures",
        "N",
        "number of consecutive failures after which a host is set aside",
    ),
    "max_host_s": ("--max-host-time", "S", "largest total response time of one host in seconds"),
    "max_host_bytes": (
        "--max-host-bytes",
        "N",
        "largest total size of one host's responses in bytes",
    ),
}
"""The flag, metavar and help of each field of the politeness policy"""


def add_policy_flags(p: Flags, names: Iterable[str] = FLAGS) -> None:
    """Declares the flags that change how hosts are treated."""
    defaults = {field.name: field.default for field in dataclasses.fields(PolitenessPolicy)}
    for name in names:
        flag, metavar, text = FLAGS[name]
        default = defaults[name]
        help_text = (
            f"{text} (default: {default:g})"
            if isinstance(default, float)
            else f"{text} (default: {default})"
        )
        p.add_argument(flag, dest=name, type=type(default), metavar=metavar, help=help_text)


def add_buckets(p: Flags) -> None:
    """Declares the number of buckets."""
    add_count(
        p,
        "--buckets",
        "number of buckets that the hosts are distributed to; each bucket is processed by one "
        "worker at a time (default: one per core; with --runner 64; with --part 8 per part)",
    )


def build_policy(args: argparse.Namespace) -> PolitenessPolicy:
    """Builds the politeness policy from the flags. Raises InputError for invalid values."""
    buckets = getattr(args, "buckets", None)
    if buckets is not None and buckets > MOST_BUCKETS:
        raise InputError(f"--buckets {buckets}: must be at most {MOST_BUCKETS}")
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(PolitenessPolicy)
        if getattr(args, field.name, None) is not None
    }
    try:
        parse_networks("--allow-address", args.allow_address)
        return PolitenessPolicy(**values, allow_addresses=tuple(args.allow_address))
    except ValueError as error:
        message = str(error)
        for name, (flag, *_) in FLAGS.items():
            message = message.replace(name, flag)
        raise InputError(message) from None
