"""Reads PyTorch files that hold more than tensors, as plain data.

DALL-E's tokenizer was published as pickled modules, and many training scripts save their arguments
(``argparse.Namespace``) next to the weights. PyTorch's reader of tensors refuses both. This reader
imports no class of such a file and calls nothing in it: a module becomes the state dict of its
parameters and buffers, arguments become their values, and any other name is refused. Both of
PyTorch's formats are read: the zip archive, and the sequence of pickles used before version 1.6.
"""

import functools
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlmill.models.convert.plain_pickle import (
    NAMES,
    BadPickle,
    Name,
    PickledDict,
    PlainUnpickler,
    load,
)

# Objects of these classes are read as modules: their attributes are plain.
MODULES = ("torch.nn.modules.", "dall_e.", "transformers.", "timm.")
# Objects that training frameworks store next to the weights; PyTorch Lightning below 1.6 keys its
# callbacks by their class.
STORED_NEXT_TO_WEIGHTS = ("pytorch_lightning.", "lightning.", "lightning_fabric.", "omegaconf.")
FUNCTIONS = ("torch.nn.functional", "torch._C._nn")  # that modules keep as attributes
# Values of settings.
PATHS = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
BUILTINS = ("set", "frozenset", "list", "dict", "tuple", "int", "float", "str", "bool", "complex")
# Dictionaries of settings.
SETTINGS = {
    *(("argparse", "Namespace"), ("yacs.config", "CfgNode"), ("easydict", "EasyDict")),
    *(("detectron2.config.config", "CfgNode"), ("fvcore.common.config", "CfgNode")),
}
STORAGES: Mapping[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
MAX_DEPTH = 64  # of nested containers and modules
MAX_VALUES = 2_000_000  # per file: nested lists of twice the same list grow without limit
LEGACY_PICKLES = 3  # magic number, protocol and system come before the content


@dataclass(frozen=True)
class Storage:
    """Identifies the numbers of tensors, which are elsewhere in the file."""

    dtype: torch.dtype
    key: str
    num_elements: int


@dataclass(frozen=True)
class StoredTensor:
    """Describes a tensor as a part of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def build(self, numbers: Tensor) -> Tensor:
        """Returns the tensor; ``numbers`` is its whole storage. Raises BadPickle for a part that is
        not inside the storage.
        """
        sides = (*self.shape, *self.stride, self.offset)
        if not all(type(side) is int and side >= 0 for side in sides):
            raise BadPickle("a tensor's shape is not a tuple of numbers")
        last = self.offset + sum(
            (side - 1) * step for side, step in zip(self.shape, self.stride, strict=True)
        )
        count = math.prod(self.shape)
        if count > len(numbers) or (count and last >= len(numbers)):
            raise BadPickle(f"a tensor of shape {self.shape} in {len(numbers)} numbers")
        return numbers.as_strided(self.shape, self.stride, self.offset)


class InertModule:
    """Holds the attributes of a pickled module."""

    state: Mapping[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise BadPickle("a module whose state is not a dict")
        self.state = state


class InertSettings(dict[Any, Any]):
    """Holds a pickled object of settings, or one that a training framework stores."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None:
        super().__init__()  # of pairs, their keys would be hashed

    def __setstate__(self, state: Any) -> None:
        pass  # the values of such objects are not used


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    is_tensor = isinstance(storage, Storage) and isinstance(shape, tuple)
    if not is_tensor or not isinstance(stride, tuple) or len(shape) != len(stride):
        raise BadPickle("a tensor without numbers")
    return StoredTensor(storage, offset, shape, stride)


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _rebuild_typed(build: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    """Rebuilds a tensor that was pickled with its class."""
    if not isinstance(build, Name) or not isinstance(arguments, tuple):
        raise BadPickle("a tensor of an unknown class")
    return build(*arguments)


def _ignore(*_: Any) -> None:
    return None


KNOWN: Mapping[tuple[str, str], Any] = {
    **NAMES,
    ("torch._utils", "_rebuild_tensor_v2"): Name(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor"): Name(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): Name(_rebuild_parameter),
    ("torch.nn.parameter", "Parameter"): Name(_rebuild_parameter),
    ("torch._tensor", "_rebuild_from_type_v2"): Name(_rebuild_typed),
    ("torch", "Tensor"): Name(_ignore),
    ("torch", "device"): Name(_ignore),
    ("torch", "Size"): Name(_ignore),
    **{(m, n): Name(_ignore) for m in ("builtins", "__builtin__") for n in BUILTINS},
    **{(m, n): Name(_ignore) for m in ("pathlib", "pathlib._local") for n in PATHS},
    ("collections", "defaultdict"): Name(lambda *_: {}),
    ("collections", "Counter"): Name(lambda *_: {}),
    **{("torch", name): dtype for name, dtype in STORAGES.items()},
    **{("torch", str(dtype).removeprefix("torch.")): None for dtype in STORAGES.values()},
    **dict.fromkeys(SETTINGS, InertSettings),
}


class InertUnpickler(PlainUnpickler):
    """Resolves the names of tensors, modules and settings, and imports none of them. ``storages``
    collects the storages of the tensors.
    """

    def __init__(self, file: Any, *, encoding: str, storages: dict[str, Storage]) -> None:
        super().__init__(file, encoding=encoding)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        """Returns the substitute for a known name. Raises BadPickle for any other."""
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module.startswith(MODULES):
            return InertModule
        if module in FUNCTIONS:
            return Name(_ignore)
        if module.startswith(STORED_NEXT_TO_WEIGHTS):
            return InertSettings
        raise BadPickle(f"the pickle asks for {module}.{name}"[:100])

    def persistent_load(self, identity: Any) -> Any:
        """Returns the storage that a tensor refers to, or the class of a module."""
        if isinstance(identity, tuple) and len(identity) == 4 and identity[0] == "module":
            return identity[1]
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise BadPickle("an object that is elsewhere")
        _, dtype, key, _, count = identity[:5]
        if len(identity) > 5 and identity[5] is not None:
            raise BadPickle("a storage that is a part of another")
        if not isinstance(dtype, torch.dtype) or type(count) is not int or count < 0:
            raise BadPickle("a storage without a type or a size")
        storage = Storage(dtype, str(key), count)
        if self._storages.setdefault(storage.key, storage) != storage:
            raise BadPickle(f"two storages {storage.key}")
        return storage


def read_inert(path: Path) -> Any:
    """Returns the content of a PyTorch file as plain containers, state dicts and tensors.

    Memory: the numbers of the tensors. Raises BadPickle for a damaged file, or one that requests
    any other name.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _read_zip(archive)
    with path.open("rb") as file:
        return _read_legacy(file, path.stat().st_size)


def _read_zip(archive: zipfile.ZipFile) -> Any:
    files = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in files if name.endswith("/data.pkl") or name == "data.pkl"]
    # Stored without compression: the content is not larger than the file.
    if len(pickles) != 1 or any(info.compress_type for info in files.values()):
        raise BadPickle("it is not an archive of PyTorch's")
    root = pickles[0].removesuffix("data.pkl")
    storages: dict[str, Storage] = {}
    data = archive.read(pickles[0])
    content = _unpickle(io.BytesIO(data), len(data), storages)
    numbers: dict[str, Tensor] = {}
    for key, storage in storages.items():
        if f"{root}data/{key}" not in files:
            raise BadPickle(f"the numbers {key} are missing")
        numbers[key] = _to_numbers(storage, archive.read(f"{root}data/{key}"))
    return PlainValues(numbers).convert(content)


def _read_legacy(file: Any, size: int) -> Any:
    storages: dict[str, Storage] = {}
    for _ in range(LEGACY_PICKLES):
        _unpickle(file, size, storages)
    content = _unpickle(file, size, storages)
    keys = _unpickle(file, size, storages)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadPickle("it is not a file of PyTorch's")
    numbers: dict[str, Tensor] = {}
    for key in keys:
        storage, count = storages.get(key), int.from_bytes(file.read(8), "little")
        if storage is None or count != storage.num_elements:
            raise BadPickle(f"the numbers {key} are of no tensor")
        numbers[key] = _to_numbers(storage, file.read(min(count * storage.dtype.itemsize, size)))
    return PlainValues(numbers).convert(content)


def _unpickle(file: Any, size: int, storages: dict[str, Storage]) -> Any:
    return load(file, size, unpickler=functools.partial(InertUnpickler, storages=storages))


def _to_numbers(storage: Storage, data: bytes) -> Tensor:
    if len(data) != storage.num_elements * storage.dtype.itemsize:
        raise BadPickle(f"{len(data)} bytes for {storage.num_elements} numbers")
    if not data:
        return torch.empty(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(data), dtype=storage.dtype)


class PlainValues:
    """Converts unpickled values to plain ones: tensors of ``numbers`` (by the key of their
    storage), and state dicts of modules. The number of values is limited: one may be referenced
    many times.
    """

    def __init__(self, numbers: Mapping[str, Tensor]) -> None:
        self._numbers, self._left = numbers, MAX_VALUES

    def convert(self, value: Any, depth: int = 0) -> Any:
        """Returns a value with descriptions replaced by tensors, and modules by state dicts."""
        self._count(depth)
        if isinstance(value, StoredTensor):
            return self._tensor(value)
        if isinstance(value, InertModule):
            return dict(self._state(value, "", depth))
        if isinstance(value, dict):
            entries = {key: self.convert(part, depth + 1) for key, part in value.items()}
            if not isinstance(value, PickledDict):
                return entries
            restored = PickledDict(list(entries.items()))
            restored._metadata = getattr(value, "_metadata", None)
            return restored
        if isinstance(value, list | tuple):
            return [self.convert(part, depth + 1) for part in value]
        return value

    def _state(self, module: InertModule, prefix: str, depth: int) -> dict[str, Tensor]:
        """Returns the parameters and buffers of a module and its submodules, by their names."""
        self._count(depth)
        state: dict[str, Tensor] = {}
        for group in ("_parameters", "_buffers"):
            for name, value in _entries(module, group):
                if isinstance(value, StoredTensor):
                    state[f"{prefix}{name}"] = self._tensor(value)
        for name, part in _entries(module, "_modules"):
            if isinstance(part, InertModule):
                state |= self._state(part, f"{prefix}{name}.", depth + 1)
        return state

    def _tensor(self, stored: StoredTensor) -> Tensor:
        if stored.storage.key not in self._numbers:
            raise BadPickle(f"the numbers {stored.storage.key} are missing")
        return stored.build(self._numbers[stored.storage.key])

    def _count(self, depth: int) -> None:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise BadPickle(
                f"more than {MAX_DEPTH} containers in one another, or {MAX_VALUES} values"
            )


def _entries(module: InertModule, group: str) -> list[tuple[Any, Any]]:
    entries = module.state.get(group)
    return list(entries.items()) if isinstance(entries, dict) else []
