"""The files of a published checkpoint, weights and configuration, are read here."""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmill.models.convert.files import read_state
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_fields import MAX_CONFIG_BYTES, read_yaml


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises InputError for one that holds anything else."""
    file = Path(os.fspath(path))  # of a store: its copy
    try:
        return read_state(file)
    except ValueError as error:
        raise InputError(f"--checkpoint {error}".replace(str(file), str(path))) from None


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
