"""The files of a published checkpoint: weights, configuration and vocabulary, found and read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmill.models.convert.files import read_state
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import SETTINGS
from vlmill.train.recipes.plain import MAX_CONFIG_BYTES, read_yaml

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
CONFIGS = ("config.json", "bert_config.json")
VOCABULARIES = ("vocab.txt",)


def weights_file(checkpoint: Path) -> Path:
    """The file of weights that ``--checkpoint`` means: itself, or the one in that folder."""
    if not checkpoint.is_dir():
        if not checkpoint.is_file():
            raise InputError(f"--checkpoint {checkpoint}: no such file")
        return checkpoint
    if (checkpoint / SETTINGS).is_file():
        raise InputError(
            f"--checkpoint {checkpoint} is vlmill's already; add --to reference to export it"
        )
    files = [checkpoint / name for name in WEIGHTS if (checkpoint / name).is_file()]
    if not files:
        raise InputError(f"--checkpoint {checkpoint} has no {' or '.join(WEIGHTS)}; give the file")
    return files[0]


def beside(path: Path | None, weights: Path, names: Sequence[str]) -> Path | None:
    """The file that was given, or one of these names beside the weights, or None."""
    candidates = [weights.with_name(name) for name in names]
    return path or next((file for file in candidates if file.is_file()), None)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises InputError for one that holds anything else."""
    try:
        return read_state(path)
    except ValueError as error:
        raise InputError(f"--checkpoint {error}") from None


def read_published_config(path: Path) -> dict[str, Any]:
    """A published configuration, JSON or YAML. Raises InputError for a file that is none."""
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"--config {path} has over {MAX_CONFIG_BYTES} bytes; give a JSON file")
        config = json.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--config {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"--config {path} holds no fields; give the published configuration")
    return config
