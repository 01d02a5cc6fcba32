"""Finds the checkpoint that a path means from names alone: nothing here loads torch.

A finished run has the files that evaluation needs at its top, too.
"""

from pathlib import Path
from typing import Any

from vlmill.runtime.files.checkpoints import checkpoints_with
from vlmill.runtime.files.paths import to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

MODEL, STATE = "model.safetensors", "training_state.safetensors"
SETTINGS, VOCABULARY = "checkpoint.json", "vocab.txt"
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".ckpt")  # suffixes of published checkpoints
# Only where the vocabulary alone does not define how texts are prepared.
TOKENIZER = "tokenizer_config.json"


def find_checkpoint(path: str | Path, flag: str = "--checkpoint") -> Path:
    """Finds the checkpoint folder meant by ``path``: itself, that of one of its files, or the last
    one of a run's output.
    """
    path = to_path(path)
    if path.name in (MODEL, SETTINGS) and path.is_file():
        path = path.parent
    if (path / SETTINGS).is_file():
        return path
    steps = saved_steps(path)
    if not steps:
        remedy = "give the --output of `train-vl pretrain`"
        if _is_published(path):
            remedy = (
                "convert the published one first: train-vl convert --family FAMILY --checkpoint "
                f"{path} --output DIR"
            )
        raise InputError(f"{flag} {path} holds no checkpoint of vlmill; {remedy}")
    return steps[max(steps)]


def _is_published(path: Path) -> bool:
    """Returns whether a path is a file of weights, or a folder with one."""
    files = [path] if path.is_file() else path.iterdir() if path.is_dir() else []
    return any(file.suffix in WEIGHTS for file in files)


def saved_variant(folder: Path) -> str | None:
    """Returns the variant that a checkpoint's folder names; None if it names none."""
    try:
        variant = read_json(folder / SETTINGS)["variant"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # reading the checkpoint reports its fault
    return variant if isinstance(variant, str) else None


def saved_model(folder: Path) -> dict[str, Any]:
    """Returns the fields of a checkpoint's model, as plain values; none if the file has none."""
    try:
        model = read_json(folder / SETTINGS)["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return model if isinstance(model, dict) else {}


def saved_steps(output: str | Path) -> dict[int, Path]:
    """Returns the checkpoints of a run's output by step."""
    return checkpoints_with(to_path(output), SETTINGS)
