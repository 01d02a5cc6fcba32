"""The flags of every command that fetches."""

import argparse
import dataclasses
from collections.abc import Iterable

from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.runtime.net.addresses import parse_networks
from vlmill.schemas.errors import InputError

FLAGS: dict[str, tuple[str, str, str]] = {
    "delay_s": ("--delay", "S", "between two requests to a host, if robots.txt asks for no more"),
    "per_host": ("--per-host", "N", "requests at once to a host"),
    "hosts_at_once": ("--hosts-at-once", "N", "hosts that a worker fetches from at once"),
    "response_s": ("--timeout", "S", "for a whole response"),
    "max_bytes": ("--max-bytes", "N", "of a body, as sent and as decoded"),
    "max_redirects": ("--max-redirects", "N", "in a row"),
    "retries": ("--retries", "N", "passes at the end over failures that may be over"),
    "retry_wait_s": ("--retry-wait", "S", "before such a pass"),
    "max_wait_s": ("--max-wait", "S", "a host that wants to be left alone longer is set aside"),
    "max_failures": ("--max-failures", "N", "failures in a row that set a host aside"),
    "max_host_s": ("--max-host-time", "S", "of answers of one host together"),
    "max_host_bytes": ("--max-host-bytes", "N", "of answers of one host together"),
}
"""Which flag sets which of the manners, and what its help says"""


def add_policy_flags(p: argparse.ArgumentParser, names: Iterable[str] = FLAGS) -> None:
    """Declares the flags that change how hosts are treated."""
    defaults = {field.name: field.default for field in dataclasses.fields(PolitenessPolicy)}
    for name in names:
        flag, metavar, text = FLAGS[name]
        default = defaults[name]
        help_text = f"{text} ({default:g})" if isinstance(default, float) else f"{text} ({default})"
        p.add_argument(flag, dest=name, type=type(default), metavar=metavar, help=help_text)


def build_policy(args: argparse.Namespace) -> PolitenessPolicy:
    """Builds the manners that the flags change. Raises InputError for values that make none."""
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
