"""The files of a published checkpoint, weights and configuration, are read here."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmill.models.convert.files import read_state
from vlmill.runtime.settings.plain_fields import MAX_CONFIG_BYTES, flatten, read_yaml, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

# What shapes do not tell of the network that a model starts from: keys of published
# configurations, and the last name of our field.
HEADS, ACTIVATION = ("num_attention_heads", "num_heads"), "hidden_act"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises InputError for one that holds anything else."""
    file = Path(os.fspath(path))  # of a store: its copy
    try:
        return read_state(file)
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"--checkpoint {error}".replace(str(file), str(path))) from None


def read_published_config(path: Path) -> dict[str, Any]:
    """A published configuration, JSON or YAML. Raises InputError for a file that is none."""
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"--config {path} has over {MAX_CONFIG_BYTES} bytes; give a JSON file")
        config = read_json(path)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--config {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"--config {path} has no fields; give the published configuration")
    return config


def check_source(path: Path | None, config: Any) -> None:
    """Raises InputError where a model starts from a network with other heads or another activation.

    Its tensors have the same shapes, and would mean something else. ``path`` is the source's
    published configuration, None where there is none; ``config`` is the new model's.
    """
    if path is None:
        return
    published = read_published_config(path)
    fields = flatten(to_plain(config))
    heads = next((published[key] for key in HEADS if key in published), None)
    act = published.get(ACTIVATION)
    for key, source_value, name, usual in (
        ("num_attention_heads", heads, "num_heads", None),
        (ACTIVATION, act, "act", "gelu"),
    ):
        model_value = next(
            (v for field, v in fields.items() if field.split(".")[-1] == name), usual
        )
        if source_value is not None and model_value is not None and source_value != model_value:
            field = next((f for f in fields if f.split(".")[-1] == name), None)
            remedy = (
                f"add {field}={source_value}"
                if field
                else f"start from a network with {model_value}"
            )
            raise InputError(
                f"--config {path}: {key}={source_value}, the new model has {model_value}; {remedy}"
            )
