"""Finds published checkpoints by name: the files in a hub repository that a conversion reads."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlmill.extract.weights import resolve_weights, select_shards, select_weights
from vlmill.inference.convert.arguments import CONFIGS, SUFFIXES, VOCABULARIES
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.weights.download import download_file
from vlmill.runtime.weights.hub import fetch_files, select_below
from vlmill.runtime.weights.names import HubLocation, WebLocation, is_named, parse_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import SETTINGS
from vlmill.train.checkpoints.named import resolve_checkpoint

# Files that are read alongside the weights: configurations, vocabularies, tokenizer settings.
COMPANIONS = (*CONFIGS, *VOCABULARIES, "tokenizer_config.json", "added_tokens.json")
MAX_BYTES = 20_000 << 20  # of one file


def resolve_sources(args: argparse.Namespace) -> None:
    """Replaces names in ``--checkpoint``, ``--backbone`` and ``--vocab`` by local files.

    Raises InputError if a download fails.
    """
    addresses: Sequence[str] = args.allow_address
    if args.backbone is not None and is_named(args.backbone):
        args.backbone = resolve_weights(
            args.backbone, allow_addresses=addresses, flag="--backbone"
        ).weights
    if args.vocab is not None and is_named(args.vocab):
        args.vocab = fetch_vocabulary(parse_name(str(args.vocab)), addresses)
    if not is_named(args.checkpoint):
        return
    location = parse_name(str(args.checkpoint))
    if isinstance(location, HubLocation):
        args.checkpoint = fetch_published(location, addresses)
    elif location.url.endswith(("/", f"/{SETTINGS}")):
        args.checkpoint = resolve_checkpoint(args.checkpoint, allow_addresses=addresses)
    else:
        allowed = parse_networks("--allow-address", addresses)
        args.checkpoint = download_file(location, allowed=allowed)


def fetch_vocabulary(location: HubLocation | WebLocation, addresses: Sequence[str]) -> Path:
    """Returns the local file of a vocabulary; of a repository of the hub its ``vocab.txt`` or
    ``tokenizer.json``, with the tokenizer's settings next to it.
    """
    if not isinstance(location, HubLocation):
        return download_file(location, allowed=parse_networks("--allow-address", addresses))
    vocabulary: list[str] = []

    def choose(sizes: Mapping[str, int | None]) -> list[str]:
        if location.path in sizes:
            vocabulary[:] = [location.path]
            return [location.path]
        below = select_below(location, sizes)
        names = [name for name in VOCABULARIES if name in below]
        if not names:
            raise InputError(
                f"--vocab {location} has no {' or '.join(VOCABULARIES)}; it has "
                f"{', '.join(sorted(below)[:8])}"
            )
        vocabulary[:] = [below.full_names[names[0]]]
        settings = [name for name in COMPANIONS if name in below and name not in CONFIGS]
        return [below.full_names[name] for name in settings]

    return fetch_files(location, choose, allow_addresses=addresses) / vocabulary[0]


def fetch_published(location: HubLocation, addresses: Sequence[str]) -> Path:
    """Returns the local file or folder of a published checkpoint, or of one of vlmill's."""
    weights: list[str] = []

    def choose(sizes: Mapping[str, int | None]) -> list[str]:
        if location.path in sizes:
            folder, _, name = location.path.rpartition("/")
            below = select_below(HubLocation(repo=location.repo, path=folder), sizes)
        else:
            below = select_below(location, sizes)
            if SETTINGS in below:
                raise _OwnCheckpoint
            top = [name for name in below if "/" not in name]
            name = select_weights(top, str(location), SUFFIXES) or ""
            if not name:
                raise InputError(
                    f"{location} holds no weights ({', '.join(SUFFIXES)}); it has "
                    f"{', '.join(sorted(below)[:8])}"
                )
        chosen = [name, *select_shards(name, below), *(c for c in COMPANIONS if c in below)]
        for chosen_name in chosen:
            size = below[chosen_name]
            if size is None or size > MAX_BYTES:
                raise InputError(
                    f"{location}: {chosen_name} has {size or 'an unknown number of'} bytes, "
                    f"expected at most {MAX_BYTES}"
                )
        weights[:] = [below.full_names[name]]
        return [below.full_names[name] for name in chosen]

    try:
        folder = fetch_files(location, choose, allow_addresses=addresses)
    except _OwnCheckpoint:
        return Path(resolve_checkpoint(str(location), allow_addresses=addresses))
    return folder / weights[0]


class _OwnCheckpoint(Exception):
    """Signals that a repository holds a checkpoint of vlmill."""
