"""Reads and writes fitted models: arrays and a description in one safetensors file, without code.

The description names kind, version, features and threshold, and has a digest of everything: a file
that was changed after it was written is refused, and so is a model with other features than this
version's.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vlmill.pipelines.filters.trees import BadTrees, Trees, build_trees
from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

KEY = "vlmill.model"
VERSION = 1
MAX_FILE_BYTES = 256 << 20
TREE = "trees."  # prefix of the trees' arrays; other arrays are the model's


@dataclass(frozen=True, kw_only=True)
class Model:
    """Holds trees over named features, and the records of their fit.

    ``arrays`` are further inputs of the features (frequencies of words), ``about`` has plain JSON
    values.
    """

    kind: str
    features: tuple[str, ...]
    threshold: float
    trees: Trees
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def write_model(path: Path, model: Model) -> None:
    """Writes a model atomically; equal models give equal bytes."""
    arrays = {f"{TREE}{name}": array for name, array in model.trees.arrays().items()}
    arrays |= {name: np.ascontiguousarray(array) for name, array in model.arrays.items()}
    header = {
        "kind": model.kind,
        "version": VERSION,
        "software": SOFTWARE,
        "features": list(model.features),
        "threshold": model.threshold,
        "about": dict(model.about),
    }
    header["digest"] = _digest(header, arrays)
    write_bytes(path, save(arrays, {KEY: json.dumps(header, sort_keys=True)}))


def model_problems(path: Path) -> list[str]:
    """Returns a list with the problem of a model's file, one line; empty without a problem."""
    try:
        read_model(path, kinds=None, flag="", fitted_by="fit_scorer or fit_image_filter")
    except InputError as error:
        return [str(error).strip()]
    return []


def read_model(path: Path, *, kinds: Sequence[str] | None, flag: str, fitted_by: str) -> Model:
    """Reads a model of one of ``kinds``; None allows all.

    Raises InputError, one line with ``flag`` and the command that writes such files, for a file
    that cannot be read, is damaged or changed, or is of another kind or version.
    """
    remedy = f"give a file that python -m vlmill.pipelines.{fitted_by} wrote"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        with safe_open(path, framework="numpy") as file:
            header = parse_json((file.metadata() or {}).get(KEY, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise InputError(
            f"{flag} {path} is not a readable model ({_line(error)}); {remedy}"
        ) from None
    if not isinstance(header, dict):
        raise InputError(f"{flag} {path} holds arrays, but no model of vlmill; {remedy}")
    if header.get("version") != VERSION:
        raise InputError(
            f"{flag} {path} is of version {header.get('version')!r}, this vlmill reads "
            f"{VERSION}; fit it again with python -m vlmill.pipelines.{fitted_by}"
        )
    if kinds is not None and header.get("kind") not in kinds:
        raise InputError(
            f"{flag} {path} is a model of {header.get('kind')!r}, expected "
            f"{' or '.join(kinds)}; {remedy}"
        )
    if header.pop("digest", None) != _digest(header, arrays):
        raise InputError(f"{flag} {path} was changed after it was written; fit it again")
    return _parse_model(header, arrays, f"{flag} {path}", remedy)


def _parse_model(
    header: Mapping[str, Any], arrays: Mapping[str, Any], argument: str, remedy: str
) -> Model:
    trees = {n.removeprefix(TREE): a for n, a in arrays.items() if n.startswith(TREE)}
    try:
        features = tuple(map(str, header["features"]))
        return Model(
            kind=header["kind"],
            features=features,
            threshold=float(header["threshold"]),
            trees=build_trees(trees, num_features=len(features)),
            arrays={name: array for name, array in arrays.items() if not name.startswith(TREE)},
            about=dict(header["about"]),
        )
    except (KeyError, TypeError, ValueError, BadTrees) as error:
        raise InputError(f"{argument} is damaged ({_line(error)}); {remedy}") from None


def require_features(model: Model, features: Sequence[str], argument: str) -> None:
    """Raises InputError unless the model was fitted on these features, in this order."""
    if model.features != tuple(features):
        other = sorted(set(model.features) ^ set(features))
        raise InputError(
            f"{argument} was fitted on other features than this vlmill computes "
            f"({', '.join(other[:3]) or 'in another order'}); fit it again"
        )


def _digest(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
