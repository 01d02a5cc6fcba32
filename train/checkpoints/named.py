"""Resolves checkpoints by name: ``hf://OWNER/NAME`` or ``https://HOST/FOLDER/`` to a local folder.

The files of an untrusted repository are listed first: a folder with a pickle is refused, and only
files of known names and bounded sizes are fetched. Weights are safetensors, which hold numbers
alone. Nothing here loads torch.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.checkpoints import TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.weights.download import download_recorded
from vlmill.runtime.weights.hub import fetch_files, select_below
from vlmill.runtime.weights.names import HubLocation, is_named, parse_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, TOKENIZER, VOCABULARY

CARD, RECIPE, DETECTOR = "README.md", "recipe.yaml", "detector.safetensors"
MB = 1 << 20
# The files that are fetched and sent, with the largest size of each.
FILES: dict[str, int] = {
    MODEL: 20_000 * MB,
    DETECTOR: 4_000 * MB,
    TRAINED_PAIRS: 16_000 * MB,
    TRAINED_IMAGES: 16_000 * MB,
    VOCABULARY: 64 * MB,
    TOKENIZER: 64 * MB,
    SETTINGS: 64 * MB,
    RECIPE: 4 * MB,
    CARD: 4 * MB,
}
CHECKPOINT_HELP = (
    "a run's output or a converted checkpoint, hf://OWNER/NAME[@REVISION], or https://HOST/FOLDER/"
)
# Names under which pickles are published; reading one may run code.
PICKLES = frozenset({".bin", ".ckpt", ".joblib", ".model", ".pickle", ".pkl", ".pt", ".pth"})


def resolve_checkpoint(
    argument: str | Path,
    *,
    allow_addresses: Sequence[str] = (),
    warn: Callable[[str], None] = print_status,
) -> str | Path:
    """Returns the local folder of a checkpoint that is given by name, or the argument itself.

    Without a network the folder is that of an earlier call, and ``warn`` is called. Raises
    InputError for a malformed name, for a repository that does not exist, has no checkpoint, or
    holds a pickle or a file that is too large, and without a network and an earlier call.
    """
    if not is_named(argument):
        return argument
    location = parse_name(str(argument))
    if not isinstance(location, HubLocation):
        allowed = parse_networks("--allow-address", allow_addresses)
        return download_recorded(location, SETTINGS, FILES, allowed=allowed)

    def choose(sizes: Mapping[str, int | None]) -> list[str]:
        inside = select_below(folder, sizes)
        require_safe(location, inside)
        return [inside.full_names[name] for name in FILES if name in inside]

    path = PurePosixPath(location.path)  # for a file, its folder is the checkpoint
    parent = path.parent.as_posix().strip(".") if path.name in FILES else location.path
    folder = dataclasses.replace(location, path=parent)
    return fetch_files(location, choose, allow_addresses=allow_addresses, warn=warn) / parent


def resolve_arguments(args: argparse.Namespace) -> None:
    """Replaces the names of checkpoints among a command's arguments by local folders.

    Raises what :func:`resolve_checkpoint` does.
    """
    for flag in ("init", "checkpoint", "first_stage", "folder"):
        value = getattr(args, flag, None)
        if value is not None and is_named(value):
            folder = resolve_checkpoint(value, allow_addresses=args.allow_address)
            setattr(args, flag, folder if flag in ("checkpoint", "folder") else str(folder))


def require_safe(location: HubLocation, sizes: Mapping[str, int | None]) -> None:
    """Raises InputError for a repository with a pickle, with a file that is too large, or without a
    checkpoint.
    """
    if pickles := find_pickles(sizes):
        raise InputError(
            f"{location} holds {', '.join(pickles[:3])}, a pickle, which may run code when it is "
            "read; give a repository of safetensors, or convert this one first: train-vl convert "
            f"--family FAMILY --checkpoint {location} --output DIR"
        )
    if missing := [name for name in (SETTINGS, MODEL, VOCABULARY) if name not in sizes]:
        raise InputError(
            f"{location} has no {missing[0]}: it is not a checkpoint of vlmill; give one that "
            "`train-vl push` has sent, or convert this one first: train-vl convert --family FAMILY "
            f"--checkpoint {location} --output DIR"
        )
    for name, max_bytes in FILES.items():
        size = sizes.get(name, 0)
        if size is None or size > max_bytes:
            size_text = "of unknown size" if size is None else f"of {size} bytes"
            raise InputError(
                f"{location}: {name} is {size_text}, more than {max_bytes} are not fetched"
            )


def find_pickles(names: Iterable[str]) -> list[str]:
    """Returns the names of pickles, sorted."""
    return sorted(name for name in names if PurePosixPath(name).suffix.lower() in PICKLES)
