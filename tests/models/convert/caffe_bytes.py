"""Writes files in Caffe's binary format, field by field: for tests of what reads them."""

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def varint(value: int) -> bytes:
    """A number, 7 bits in each byte, the lowest first; a negative one has 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    """A message, a text or packed numbers."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def single(field: int, value: float) -> bytes:
    """One float that is not packed."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def floats(values: Array) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def blob(values: Array) -> bytes:
    """A blob with a shape and packed values, the new form."""
    dims = b"".join(varint(side) for side in values.shape)
    return message(7, message(1, dims)) + message(5, floats(values))


def old_blob(values: Array) -> bytes:
    """A blob whose shape is four sides, with leading ones."""
    sides = (1,) * (4 - values.ndim) + values.shape
    numbers = b"".join(number(field, side) for field, side in enumerate(sides, start=1))
    return numbers + message(5, floats(values))


def layer(name: str, blobs: Sequence[bytes], field: int = 100) -> bytes:
    """A layer of the new form (field 100) or the old one (2)."""
    name_field, blobs_field = (4, 6) if field == 2 else (1, 7)
    content = message(name_field, name.encode())
    return message(field, content + b"".join(message(blobs_field, one) for one in blobs))


def caffemodel(layers: Mapping[str, Sequence[Array]]) -> bytes:
    """A file of the new form."""
    rows = [layer(name, [blob(one) for one in blobs]) for name, blobs in layers.items()]
    return message(1, b"net") + b"".join(rows)
