"""Reads untrusted checkpoint files without executing anything in them.

``.safetensors`` files hold only numbers. PyTorch's files, zip archives and the older format, are
read by PyTorch's reader for tensors only. Pickles of numpy arrays, as published by Detectron2 and
its forks, are read by :mod:`~vlmill.models.convert.plain_pickle`.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlmill.models.convert.inert_objects import read_inert
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, load
from vlmill.schemas.plain_json import read_json

# Published files wrap their state dict in these keys; the first one present is used.
CONTAINERS = ("state_dict", "model_state_dict", "module", "model", "weights", "blobs")
# Prefixes that wrappers add to every name: distributed training, torch.compile, PyTorch Lightning.
PREFIXES = ("module.", "_orig_mod.", "model.")
NAMED = 5  # entries that a message names
INDEX = ".index.json"  # Hugging Face's list of the shards of a large checkpoint
MAX_INDEX_BYTES = 64 << 20
TORCH_HEADS = (b"PK", b"\x80")  # a zip archive; a pickle, before PyTorch 1.6
# Files that are not checkpoints, by their first bytes, and how to convert them to one.
OTHER_FILES = (
    (b"\x1f\x8b", "it is compressed by gzip; unpack it first (gunzip FILE)"),
    (b"BZh", "it is compressed by bzip2; unpack it first (bunzip2 FILE)"),
    (b"\xfd7zXZ\x00", "it is compressed by xz; unpack it first (unxz FILE)"),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; unpack it first (unzstd FILE)"),
    (b"version https://git-lfs", "it is a pointer of Git LFS; fetch the file (git lfs pull)"),
    (b"<!DOCTYPE", "it is a web page; download the file itself"),
    (b"<html", "it is a web page; download the file itself"),
)
HEAD_BYTES = 64
MORE_THAN_TENSORS = (
    "it contains more than tensors, and reading it would run code from the file; save its "
    "state_dict() alone, as tensors, on a machine where you trust the file"
)
TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # the first object of PyTorch's oldest format


class Unreadable(ValueError):
    """Raised if a file is not a checkpoint, is damaged or tries to run code; the message has the
    cause.
    """


def read_state(path: Path) -> dict[str, Tensor]:
    """Reads the state dict of a checkpoint file.

    For an ``.index.json`` it merges all files of its ``weight_map``, which are in the same folder.

    Raises ValueError, with the remedy, for a file without a state dict, and FileNotFoundError.
    """
    if path.name.endswith(INDEX):
        state: dict[str, Tensor] = {}
        for shard in shard_files(path):
            state |= read_state(shard)
        return state
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file")
    try:
        return unwrap_state(read_content(path))
    except Unreadable as error:
        raise ValueError(f"{path} is not a readable checkpoint ({error})") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def shard_files(index: Path) -> list[Path]:
    """Returns the files that an ``.index.json`` names, sorted.

    Raises ValueError for a file that is not such a list or names files elsewhere, and
    FileNotFoundError for a missing file.
    """
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise ValueError(f"{index}: over {MAX_INDEX_BYTES >> 20} MiB, expected a list of files")
    try:
        names = set(read_json(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index}: no weight_map of tensors and files ({error!r})") from None
    if wrong := [
        n for n in names if not isinstance(n, str) or Path(n).name != n or n.endswith(INDEX)
    ]:
        raise ValueError(f"{index}: weight_map names {wrong[0]!r}, expected files in its folder")
    shards = sorted(index.with_name(name) for name in names)
    if missing := [shard for shard in shards if not shard.is_file()]:
        raise FileNotFoundError(f"{missing[0]}: no such file, which {index.name} names")
    return shards


def read_content(path: Path) -> Any:
    """Reads a file of any format, detected by its first bytes: tensors and arrays in containers.

    Raises Unreadable.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            for start, reason in OTHER_FILES:
                if head.startswith(start):
                    raise Unreadable(reason)
            if head[8:9] == b"{":
                return load_file(path)
            if not head.startswith(b"PK"):
                file.seek(0)
                content = load(file, path.stat().st_size)
                if content != TORCH_MAGIC or not isinstance(content, int):
                    return content
        return torch.load(path, map_location="cpu", weights_only=True)
    except BadPickle as error:
        if head.startswith(TORCH_HEADS):
            raise Unreadable(str(error)) from None
        raise Unreadable(
            f"it is not a safetensors file, a PyTorch file or a pickle of arrays: {error}"
        ) from None
    except Unreadable:
        raise
    except pickle.UnpicklingError:
        return _read_more_than_tensors(path)
    # On damaged files the readers of PyTorch and safetensors raise any error of the libraries they
    # use (struct.error and AssertionError among them), and no list of these is complete.
    except Exception as error:
        raise Unreadable(next(iter(str(error).splitlines()), type(error).__name__)) from None


def _read_more_than_tensors(path: Path) -> Any:
    """Reads a PyTorch file with pickled modules or settings. Raises Unreadable."""
    try:
        return read_inert(path)
    except BadPickle as error:
        raise Unreadable(f"{MORE_THAN_TENSORS} ({error})") from None
    except Exception as error:  # as above: any error of a damaged archive
        raise Unreadable(f"{MORE_THAN_TENSORS} ({type(error).__name__})") from None


def unwrap_state(content: object) -> dict[str, Tensor]:
    """Extracts the state dict of ``content`` from its containers, without `PREFIXES` in its names.

    Raises ValueError if there is no state dict.
    """
    state = collect_tensors(state_dict_in(content))
    while prefix := wrapping_prefix(state, PREFIXES):
        state = without_prefix(state, prefix)
    return state


def wrapping_prefix(names: Collection[str], prefixes: Sequence[str]) -> str | None:
    """Returns the first prefix that all names have; None if there is none."""
    return next(
        (p for p in prefixes if names and all(n.startswith(p) and n != p for n in names)), None
    )


def state_dict_in(content: object) -> object:
    """Returns the innermost mapping in the containers of ``content``."""
    for _ in CONTAINERS:  # a file may contain itself: the depth is at most the number of names
        # Indexed: PyTorch's reader sets attributes that a file names, including a dict's methods.
        entries = content if isinstance(content, Mapping) else {}
        inner = [entries[name] for name in CONTAINERS if name in entries]
        content = next((value for value in inner if isinstance(value, Mapping)), content)
    return _only_state_dict(content)


def _only_state_dict(content: object) -> object:
    """Returns the entry with tensors of a mapping that has none itself, regardless of its key.

    Raises ValueError if several entries have tensors.
    """
    if not isinstance(content, Mapping) or _holds_tensors(content):
        return content
    state_dicts = {
        key: content[key]
        for key in content
        if isinstance(content[key], Mapping) and _holds_tensors(content[key])
    }
    if len(state_dicts) > 1:
        raise ValueError(
            f"{' and '.join(map(repr, state_dicts))} all hold tensors; save the one to read "
            "under the key 'state_dict'"
        )
    return next(iter(state_dicts.values()), content)


def _holds_tensors(entries: Mapping[Any, Any]) -> bool:
    """Returns whether an entry with a name is a tensor or an array; numbers do not count."""
    values = (entries[name] for name in entries if isinstance(name, str))
    return any(
        isinstance(value.value if isinstance(value, Pickled) else value, Tensor | np.ndarray)
        for value in values
    )


def collect_tensors(state: object) -> dict[str, Tensor]:
    """Returns the tensors of a state dict by name; arrays and numbers of numpy become tensors.

    Other entries (counters, optimiser states) are omitted. Raises ValueError if no tensor remains.
    """
    entries = {name: state[name] for name in state} if isinstance(state, Mapping) else {}
    tensors = {
        name: convert_to_tensor(value) for name, value in entries.items() if isinstance(name, str)
    }
    state_dict = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not state_dict:
        keys = ", ".join(str(key)[:40] for key in list(entries)[:NAMED]) or "no entries"
        raise ValueError(
            f"it has no state dict: expected parameter names with tensors, the file has {keys}"
        )
    return state_dict


def convert_to_tensor(value: object) -> Tensor | None:
    """Returns a tensor, also for an array (in this machine's byte order); None for other values."""
    plain = value.value if isinstance(value, Pickled) else value
    if isinstance(plain, np.ndarray | np.generic) and plain.dtype.kind in "biuf":
        native = plain.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(plain, dtype=native, order="C"))
    return plain if isinstance(plain, Tensor) else None


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Removes ``prefix`` from the names of ``state``, if all names have it."""
    if all(name.startswith(prefix) for name in state):
        return {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return dict(state)


def without_old_norms(state: dict[str, Tensor], metadata: Any) -> dict[str, Tensor]:
    """Subtracts the eps that Detectron2's frozen norms before version 3 stored in the variance.

    Only modules with an old version in the checkpoint's metadata are changed. nn.BatchNorm2d, which
    also has version 2, is recognised by its counter of batches.
    """
    if not isinstance(metadata, Mapping):
        return state
    for module in metadata:
        notes, key = metadata[module], f"{module}.running_var"
        old = isinstance(notes, Mapping) and "version" in notes and notes["version"] in (1, 2)
        if old and key in state and f"{module}.num_batches_tracked" not in state:
            state[key] = state[key] - 1e-5
    return state


MAX_PARTS = 4  # of a prefix: ``lightning.net.encoder.bert.``
Prepare = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


def unwrap_network(
    state: Mapping[str, Tensor], prepare: Prepare, known: Collection[str]
) -> dict[str, Tensor]:
    """Returns ``state`` with the names of the network that it wraps, if it is a wrapper.

    A training script may keep the network as an attribute (``net.bert.embeddings...``) next to
    other tensors (``criterion.weight``). If no tensor has a name in ``known`` after ``prepare``,
    the prefix of at least half of the names that makes the most of them known is removed. The
    other tensors keep their names.

    Raises ValueError if two prefixes fit equally (a network and its moving average).
    """
    if not state or _count_known(state, prepare, known):
        return dict(state)
    names = {name: tensor.to("meta") for name, tensor in state.items()}  # costs no memory
    counts = {
        prefix: _count_known(_without(names, prefix), prepare, known)
        for prefix, count in _count_prefixes(names).items()
        if 2 * count >= len(names)
    }
    best = max(counts.values(), default=0)
    fitting = sorted(prefix for prefix, count in counts.items() if count == best)
    if not best:
        return dict(state)
    if not all(prefix.startswith(fitting[0]) for prefix in fitting):
        raise ValueError(
            f"the checkpoint holds the network {len(fitting)} times, under "
            f"{' and '.join(fitting)}; keep the tensors of one"
        )
    return _without(state, fitting[0])


def _without(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _count_prefixes(names: Collection[str]) -> Counter[str]:
    """Counts the names under each dotted prefix of at most `MAX_PARTS` parts."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")[:-1][:MAX_PARTS]
        counts.update(".".join(parts[: end + 1]) + "." for end in range(len(parts)))
    return counts


def _count_known(state: Mapping[str, Tensor], prepare: Prepare, known: Collection[str]) -> int:
    return len(prepare(dict(state)).keys() & set(known))
