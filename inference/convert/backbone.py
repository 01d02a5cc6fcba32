"""Runs ``train-vl convert --backbone``: starts VL-BERT's region network from other weights."""

import argparse
import os
from pathlib import Path
from typing import Any

from torch import nn

from vlmill.models.convert.files import Unreadable
from vlmill.models.convert.keymap import CheckpointMismatch, LoadTable
from vlmill.models.from_bert import Origin, loaded_origins
from vlmill.models.vlbert.backbone import load_backbone
from vlmill.models.vlbert.config import VlBertEndToEndConfig
from vlmill.schemas.errors import InputError


def check_backbone(args: argparse.Namespace, config: Any) -> None:
    """Raises InputError for a new model without the ``--backbone`` that it needs, or with another.

    Stages that are never trained must not hold random weights.
    """
    if not isinstance(config, VlBertEndToEndConfig):
        if args.backbone is not None:
            raise InputError(
                f"--backbone {args.backbone}: {args.preset} has no region network; give it with "
                "--as vl-bert-base-end-to-end or vl-bert-large-end-to-end"
            )
    elif args.backbone is None and config.cnn.frozen_stages:
        raise InputError(
            f"--as {args.preset}: the first {config.cnn.frozen_stages} stages of its region "
            "network are never trained; give --backbone FILE (a ResNet or a detector), or "
            "cnn.frozen_stages=0 to train all of it from random weights"
        )
    if args.backbone is None and args.backbone_conventions is not None:
        raise InputError("--backbone-conventions: needs --backbone FILE")


def start_region_network(
    args: argparse.Namespace, model: Any
) -> tuple[dict[str, Origin], list[str]]:
    """Loads ``--backbone``; returns the parameters' origins and the file's unused tensors.

    Raises InputError for a file that does not match, with the fields to change.
    """
    network: nn.Module = model.cnn
    table = _loaded(args, network)
    origins = loaded_origins(network, [], table)
    unused = [name for name in table.unexpected if not name.endswith("num_batches_tracked")]
    return {f"cnn.{name}": origin for name, origin in origins.items()}, unused


def _loaded(args: argparse.Namespace, network: Any) -> LoadTable:
    path = args.backbone
    if not path.is_file():
        raise InputError(f"--backbone {path}: no such file; give a ResNet's or a detector's")
    try:
        return load_backbone(network, Path(os.fspath(path)), args.backbone_conventions)
    except CheckpointMismatch as error:
        if args.explain:
            print(error.table)
        raise InputError(
            f"--backbone {path}: {_what_differs(error.table)}; give a complete ResNet"
        ) from None
    except Unreadable as error:
        raise InputError(f"--backbone {path} cannot be read ({error}); give another file") from None
    except ValueError as error:
        raise InputError(f"--backbone {path}: {error}") from None


def _what_differs(table: LoadTable) -> str:
    """Describes the first tensor of another shape, or else the first missing ones."""
    for name, (here, there) in sorted(table.mismatched.items())[:1]:
        return f"{name} is {list(here)} here, {list(there)} in the file"
    names = [n[0] for n in table.missing.values() if not n[0].endswith("num_batches_tracked")]
    more = f" and {len(names) - 1} tensors more" if len(names) > 1 else ""
    return f"it lacks {names[0]}{more}"
