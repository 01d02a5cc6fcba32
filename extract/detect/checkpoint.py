"""Reads detector checkpoints without executing anything that they contain.

``.safetensors`` are plain numbers. PyTorch files go through its own reader of tensors only. Numpy
pickles, as Detectron2 and its forks publish them, go through :class:`ArrayUnpickler`, which knows
arrays and plain containers and builds both with code of this module.
"""

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vlmill.schemas.errors import InputError

# The first object of PyTorch's oldest format.
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
READ_ERRORS = (
    OSError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    SafetensorError,
    # What a broken or hostile pickle makes the reader's own building blocks raise.
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    MemoryError,
    OverflowError,
    UnicodeError,
)


def read_checkpoint(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name. Raises InputError with the remedy."""
    if not path.is_file():
        raise InputError(
            f"--weights {path}: no such file; give a .pth, .pkl, .bin or .safetensors file"
        )
    try:
        content = load_content(path)
        state = content.get("model", content) if isinstance(content, dict) else None
        tensors = {k: tensor_of(v) for k, v in state.items()} if isinstance(state, dict) else {}
    except READ_ERRORS as error:
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--weights {path} cannot be read ({reason}); give another file") from None
    named = {k: v for k, v in tensors.items() if isinstance(k, str) and v is not None}
    if not named or len(named) < len(tensors):
        raise InputError(f"--weights {path} holds no state dict; give the detector's checkpoint")
    return without_old_norms(named, getattr(state, "_metadata", None))


def load_content(path: Path) -> Any:
    """Whatever the file holds, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(9)
        if head[8:] == b"{":
            return load_file(path)
        if head[:2] != b"PK":
            file.seek(0)
            content = ArrayUnpickler(file).load()
            if content != TORCH_MAGIC or not isinstance(content, int):
                return content
    return torch.load(path, map_location="cpu", weights_only=True)


def tensor_of(value: object) -> Tensor | None:
    """A tensor, or an array as one; None for anything else."""
    if isinstance(value, PickledArray):
        value = value.array()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value if isinstance(value, Tensor) else None


def without_old_norms(state: dict[str, Tensor], metadata: Any) -> dict[str, Tensor]:
    """Undoes what Detectron2's frozen norms stored before their version 3: variance plus eps.

    Only modules that say so in the checkpoint's metadata; nn.BatchNorm2d, whose version is 2 too,
    is known by its counter of batches.
    """
    if not isinstance(metadata, Mapping):
        return state
    for module, notes in metadata.items():
        key = f"{module}.running_var"
        old = isinstance(notes, Mapping) and notes.get("version") in (1, 2)
        if old and key in state and f"{module}.num_batches_tracked" not in state:
            state[key] = state[key] - 1e-5
    return state


class PickledDtype:
    """``numpy.dtype`` as a pickle writes it: a name, then a state with the byte order."""

    KINDS = frozenset("biuf")

    def __init__(self, name: str, *_: object) -> None:
        self.name, self.order = str(name), "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "<" if state[1] in ("<", "|", "=") else ">"

    def dtype(self) -> np.dtype[Any]:
        if self.name[:1] not in self.KINDS or not self.name[1:].isdecimal():
            raise pickle.UnpicklingError(f"an array of {self.name!r}; only numbers are read")
        return np.dtype(self.order + self.name)


class PickledArray:
    """``numpy.ndarray`` as a pickle writes it: empty, then a state of shape, type and bytes."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, Any]:
        """The numbers, in this machine's byte order, writable."""
        _, shape, kind, fortran, data = self.state
        if isinstance(data, str):
            data = data.encode("latin-1")  # written by Python 2
        if not isinstance(kind, PickledDtype) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array without numbers")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"{len(data)} bytes for an array of {shape} {dtype}")
        flat = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
        return np.array(flat.reshape(shape, order="F" if fortran else "C"), order="C")


class PickledScalar(PickledArray):
    """``numpy.core.multiarray.scalar``: an array without dimensions."""

    def __init__(self, kind: PickledDtype, data: bytes | str) -> None:
        self.state = (1, (), kind, False, data)


class PickledBuffer(PickledArray):
    """``numpy.core.numeric._frombuffer``, with which protocol 5 writes arrays."""

    def __init__(
        self, data: bytes | bytearray, kind: PickledDtype, shape: tuple[int, ...], order: str
    ) -> None:
        if not isinstance(data, bytes | bytearray):
            raise pickle.UnpicklingError("an array without bytes")
        self.state = (1, shape, kind, order == "F", bytes(data))


class LatinBytes(bytes):
    """``_codecs.encode``, with which Python 3 writes bytes in old protocols."""

    def __new__(cls, text: str, encoding: str) -> "LatinBytes":
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"text in {encoding}")
        return super().__new__(cls, text.encode("latin-1"))

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("bytes with attributes")


class ArrayUnpickler(pickle.Unpickler):
    """Knows numpy's arrays and plain containers; refuses every other name before using it.

    All are classes, of which a pickle can only make instances: a function's attributes it could
    replace.
    """

    NAMES: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): PickledArray,
        ("numpy", "dtype"): PickledDtype,
        ("numpy.core.multiarray", "_reconstruct"): PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): PickledArray,
        ("numpy.core.multiarray", "scalar"): PickledScalar,
        ("numpy._core.multiarray", "scalar"): PickledScalar,
        ("numpy.core.numeric", "_frombuffer"): PickledBuffer,
        ("numpy._core.numeric", "_frombuffer"): PickledBuffer,
        ("collections", "OrderedDict"): OrderedDict,
        ("_codecs", "encode"): LatinBytes,
    }

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not read")
        return self.NAMES[module, name]
