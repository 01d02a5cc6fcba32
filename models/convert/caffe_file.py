"""Reads the weights in files of Caffe (``.caffemodel``), without Caffe and without protobuf.

A file is a protocol buffer: a sequence of fields, each a varint (number * 8 + wire type) and a
value. Four messages are read: NetParameter, its layers in the new form (LayerParameter) or the old
one (V1LayerParameter), BlobProto and BlobShape; everything else is skipped by its wire type. All
encodings of proto2's parsers are accepted: repeated numbers packed or one by one, a packed field in
several parts, fields in any order; of a single field the last value counts.

Nothing in a file is trusted: lengths are checked against the enclosing message, the number of
values against the shape, and the number of fields against a limit. Memory is bounded by the file's
size. Sources: caffe.proto and Blob::FromProto of BVLC/caffe 9b891540.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlmill.models.convert.files import Unreadable

Blob = npt.NDArray[np.float32]
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # wire types
# Fields of NetParameter that hold layers, with the fields of the layers' names and blobs.
LAYER_FIELDS = {100: (1, 7), 2: (4, 6)}
V1_LAYERS, V0_LAYER = 2, 1  # a layer of the oldest form is inside one of the old form
LEGACY_SIDES = (1, 2, 3, 4)  # num, channels, height, width
DATA, SHAPE, DOUBLE_DATA = 5, 7, 8
# Messages nest three deep, so only their number needs a limit. The published file has about 10,000.
MAX_FIELDS = 1_000_000
MAX_AXES = 32  # Caffe's kMaxBlobAxes
MAX_DIMENSION = 1 << 31


@dataclass(frozen=True)
class Field:
    """Holds one field of a message: its number, wire type and the bytes or number of its value."""

    number: int
    kind: int
    start: int  # of the value, in the file
    end: int
    value: int = 0  # of a varint


@dataclass
class Reader:
    """Reads fields of a mapped file, and counts them."""

    data: mmap.mmap | bytes
    num_fields: int = field(default=0, init=False)

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yields the fields of the message between two positions. Raises Unreadable."""
        position = start
        while position < end:
            self.num_fields += 1
            if self.num_fields > MAX_FIELDS:
                raise Unreadable(f"over {MAX_FIELDS} fields, more than a network has")
            tag, position = self.varint(position, end)
            number, kind = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise Unreadable(f"byte {position} has field {number}, which no Caffe message has")
            value, first = 0, position
            if kind == VARINT:
                value, position = self.varint(position, end)
            elif kind == LENGTH:
                size, first = self.varint(position, end)
                position = first + size
            elif kind in (EIGHT_BYTES, FOUR_BYTES):
                position += 8 if kind == EIGHT_BYTES else 4
            else:
                raise Unreadable(
                    f"byte {position} has wire type {kind}, which Caffe does not write"
                )
            if position > end:
                raise Unreadable(
                    f"field {number} at byte {first} ends after the end of its message"
                )
            yield Field(number, kind, first, position, value)

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Returns a number of 64 bits, stored in 7 bits per byte, and the position after it."""
        value = 0
        for shift in range(0, 70, 7):
            if position >= end:
                break
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1, position
        raise Unreadable(f"a number at byte {position} does not end")

    def text(self, item: Field) -> str:
        """Returns the text of a field."""
        try:
            return self.data[item.start : item.end].decode("utf-8")
        except UnicodeDecodeError:
            raise Unreadable(f"the name at byte {item.start} is not UTF-8") from None

    def numbers(self, item: Field, dtype: str) -> npt.NDArray[np.generic]:
        """Returns the numbers of a field of little-endian floats, packed or single."""
        if (item.end - item.start) % np.dtype(dtype).itemsize:
            raise Unreadable(f"field {item.number} at byte {item.start} ends within a number")
        count = (item.end - item.start) // np.dtype(dtype).itemsize
        # A copy: values may begin at any byte, and the file is closed when they are used.
        return np.frombuffer(self.data, dtype, count, item.start).copy()


def read_caffe_layers(path: Path) -> dict[str, list[Blob]]:
    """Returns the blobs of each layer that has any, as float32 in the shapes given by the file.

    Raises Unreadable if the file is not a ``.caffemodel``, is damaged, or repeats a layer's name.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            layers = parse_layers(data)
    except (OSError, ValueError) as error:
        if isinstance(error, Unreadable):
            raise Unreadable(f"it is not a Caffe file, or it is damaged: {error}") from None
        raise Unreadable(str(error)) from None  # an empty file cannot be mapped
    if not layers:
        raise Unreadable("it is not a Caffe file: no layer has weights")
    return layers


def parse_layers(data: mmap.mmap | bytes) -> dict[str, list[Blob]]:
    """Returns the blobs of each layer from the bytes of a file."""
    reader, layers = Reader(data), dict[str, list[Blob]]()
    for item in reader.fields(0, len(data)):
        if item.kind != LENGTH or item.number not in LAYER_FIELDS:
            continue
        name, blobs = parse_layer(reader, item)
        if not blobs:
            continue
        if name in layers:
            raise Unreadable(f"two layers with weights are called {name!r}")
        layers[name] = blobs
    return layers


def parse_layer(reader: Reader, message: Field) -> tuple[str, list[Blob]]:
    """Returns a layer's name and blobs."""
    name, blobs, found = "", [], []
    name_field, blobs_field = LAYER_FIELDS[message.number]
    for item in reader.fields(message.start, message.end):
        if item.kind != LENGTH:
            continue
        if message.number == V1_LAYERS and item.number == V0_LAYER:
            raise Unreadable("its layers are of Caffe's first form (V0); convert it with Caffe")
        if item.number == name_field:
            name = reader.text(item)
        elif item.number == blobs_field:
            found.append(item)
    for number, item in enumerate(found):
        try:
            blobs.append(parse_blob(reader, item))
        except Unreadable as error:
            raise Unreadable(f"blob {number} of layer {name!r}: {error}") from None
    return name, blobs


def parse_blob(reader: Reader, message: Field) -> Blob:
    """Returns one blob."""
    dims: list[int] = []
    sides: dict[int, int] = {}
    floats: list[npt.NDArray[np.generic]] = []
    doubles: list[npt.NDArray[np.generic]] = []
    for item in reader.fields(message.start, message.end):
        if item.number in LEGACY_SIDES and item.kind == VARINT:
            sides[item.number] = item.value
        elif item.number == SHAPE and item.kind == LENGTH:
            dims += parse_dims(reader, item)
        elif item.number == DATA and item.kind in (LENGTH, FOUR_BYTES):
            floats.append(reader.numbers(item, "<f4"))
        elif item.number == DOUBLE_DATA and item.kind in (LENGTH, EIGHT_BYTES):
            doubles.append(reader.numbers(item, "<f8"))
    shape = [sides.get(side, 0) for side in LEGACY_SIDES] if sides else dims
    parts = doubles if any(part.size for part in doubles) else floats
    values = np.concatenate(parts) if parts else np.zeros(0)
    return reshape_values(values, shape)


def parse_dims(reader: Reader, message: Field) -> list[int]:
    """Returns the dimensions of a shape, packed or one by one."""
    dims = []
    for item in reader.fields(message.start, message.end):
        if item.number == 1 and item.kind == VARINT:
            dims.append(item.value)
        elif item.number == 1 and item.kind == LENGTH:
            position = item.start
            while position < item.end and len(dims) <= MAX_AXES:
                value, position = reader.varint(position, item.end)
                dims.append(value)
        if len(dims) > MAX_AXES:
            raise Unreadable(f"over {MAX_AXES} dimensions")
    return dims


def reshape_values(values: npt.NDArray[np.generic], shape: Sequence[int]) -> Blob:
    """Returns values in their shape. Raises Unreadable if the shape has another number of
    values.
    """
    if len(shape) > MAX_AXES or any(side >= MAX_DIMENSION for side in shape):
        raise Unreadable(f"the shape {tuple(shape)[:4]}... is not valid")
    count = 1
    for side in shape:
        count *= side
    if count != values.size:
        raise Unreadable(f"{values.size} values for a shape of {count}")
    with np.errstate(over="ignore"):  # a double may be too large for float32, as in Caffe
        return values.astype(np.float32, copy=False).reshape(tuple(shape))
