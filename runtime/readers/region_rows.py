"""Defines the rows of the regions table, and how they are stored.

R boxes of an image, D feature width, K class probabilities. ``features`` is row-major little-endian
[R, D] in a ``large_binary`` value: measured on 512 images of 100 x 2048 float16, one thread, this
reads at 4.4 GB/s, the speed of raw bytes; nested Arrow lists reach 0.25.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vlmill.runtime.files.shards import FINITE
from vlmill.schemas.tables import REGIONS

Array = npt.NDArray[Any]
EMPTY = np.empty(0, np.uint8)
MIN_CHUNK = 16 * 1024  # bytes: a copy of fewer takes less time than a chunk of a column
PER_BOX = (
    "features",
    "class_ids",
    "class_scores",
    "class_probs",
    "class_prob_ids",
    "attribute_ids",
    "attribute_scores",
)
ARRAYS = ("features", "class_probs", "global_feature")  # of numbers that must be finite
LISTS = ("class_ids", "class_scores", "attribute_ids", "attribute_scores")  # one number per box
# numpy's type of the stored bytes. numpy has no bfloat16: its 16 bits are stored unchanged, and
# readers get float32, which holds every bfloat16 exactly.
FEATURE_DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
}
SAME_BITS = {  # as whole numbers, with a sign and without
    dtype: (np.dtype(f"<i{kind.itemsize}"), np.dtype(f"<u{kind.itemsize}"))
    for dtype, kind in FEATURE_DTYPES.items()
}
CLASS_NUMBERS = np.dtype("<u2")
# The small columns whose numbers must be finite, as messages name a value.
RANGES = {
    "boxes": "a box",
    "class_scores": "a class's score",
    "attribute_scores": "an attribute's score",
}


@dataclass(frozen=True, kw_only=True)
class RegionRow:
    """Holds an image's regions.

    ``boxes`` float32 [R, 4] in pixels of the original image; ``features`` [R, D] in the stored
    dtype, or None; ``class_ids``/``attribute_ids`` int16 [R] without background, scores float32
    [R], and -1 if a region's most likely class is the background; ``class_probs`` [R, K] in the
    stored dtype, with background if the producer has it; ``class_prob_ids`` uint16 [R, K] if only
    the K highest are stored, in falling order: their columns in the full distribution;
    ``global_feature`` [D]. Values that the producer lacks are None. bfloat16 is read back as
    float32.
    """

    image_id: str
    width: int
    height: int
    boxes: Array
    features: Array | None = None
    class_ids: Array | None = None
    class_scores: Array | None = None
    class_probs: Array | None = None
    class_prob_ids: Array | None = None
    attribute_ids: Array | None = None
    attribute_scores: Array | None = None
    global_feature: Array | None = None


# Of a row group, whichever is reached first: each costs as much as several rows.
ROWS_PER_GROUP, BYTES_PER_GROUP = 128, 32 * 2**20
ROWS_PER_COMPRESSED_GROUP = 16  # which is read whole for any of its rows


class RowGroup:
    """Collects the rows of one row group of a shard after the other."""

    def __init__(self, compression: str) -> None:
        self.rows = list[RegionRow]()
        self._bytes = 0
        self._most = ROWS_PER_GROUP if compression == "none" else ROWS_PER_COMPRESSED_GROUP

    def add(self, row: RegionRow) -> bool:
        """Adds a row; returns whether the group is full."""
        self.rows.append(row)
        self._bytes += sum(a.nbytes for a in (row.features, row.class_probs) if a is not None)
        return len(self.rows) == self._most or self._bytes >= BYTES_PER_GROUP

    def take(self) -> list[RegionRow]:
        """Returns the rows, and begins the next group."""
        rows, self.rows, self._bytes = self.rows, [], 0
        return rows


def region_arrays(
    *,
    dtype: str,
    feature_dim: int,
    class_probs_dim: int | None = None,
    top_k: int | None = None,
    global_dim: int | None = None,
    background: str | None = None,
) -> dict[str, Any]:
    """Returns the ``arrays`` metadata of a regions shard
    (:class:`~vlmill.runtime.files.shards.ShardWriter`).

    ``class_probs_dim`` is the width of the full distribution, ``top_k`` the number of stored
    values, ``global_dim`` the width of an image-level feature if it differs from the regions'.
    ``background`` states whether the distribution's first column is the background ("first") or no
    column is ("none"); None states nothing.
    """
    if dtype not in FEATURE_DTYPES:
        raise ValueError(f"dtype {dtype}: must be one of {', '.join(FEATURE_DTYPES)}")
    arrays: dict[str, Any] = {"features": {"dtype": dtype, "dim": feature_dim}}
    if class_probs_dim is not None:
        arrays["class_probs"] = {"dtype": dtype, "dim": class_probs_dim}
        if top_k is not None:
            arrays["class_probs"] = {"dtype": dtype, "dim": top_k, "of": class_probs_dim}
            arrays["class_prob_ids"] = {"dtype": "uint16", "dim": top_k}
        if background is not None:
            arrays["class_probs"]["background"] = background
    if global_dim is not None:
        arrays["global_feature"] = {"dtype": dtype, "dim": global_dim}
    return arrays


def to_stored(values: Array, dtype: str) -> Array:
    """Rounds values to ``dtype`` (half to even); returns the array whose bytes are stored.

    Raises ValueError for values that it cannot hold, and for values above :data:`LARGEST`.
    """
    array = _round(values, dtype)
    if not _holds(_view_bytes(array), values, dtype):
        raise ValueError(describe_overflow(dtype))
    return array


def _holds(stored: npt.NDArray[np.uint8], values: Array, dtype: str) -> bool:
    """Returns whether ``values`` and their stored bytes are finite."""
    if dtype == "bfloat16":  # rounding turns some NaN into 0
        exact = np.ascontiguousarray(values, dtype="<f4")
        return are_finite(stored, dtype) and are_finite(_view_bytes(exact), "float32")
    return are_finite(stored, dtype)


def describe_overflow(dtype: str) -> str:
    """Returns the reason why an array cannot be stored as ``dtype``."""
    return f"values that {dtype} cannot hold, or above {LARGEST:g}"


def _round(values: Array, dtype: str) -> Array:
    """Returns the array whose bytes are stored, for any values."""
    if dtype != "bfloat16":
        if values.dtype == FEATURE_DTYPES[dtype]:  # without errstate, which takes longer
            return np.ascontiguousarray(values)
        with np.errstate(over="ignore"):  # an overflow becomes inf
            return np.ascontiguousarray(values, dtype=FEATURE_DTYPES[dtype])
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2")


def _view_bytes(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


# Larger numbers overflow float32 once a model has multiplied them. Detectors' are below 1e3.
LARGEST = 1e10
_LARGEST_BITS = int(np.float32(LARGEST).view(np.uint32))
LARGEST_BFLOAT16 = float(np.uint32(_LARGEST_BITS >> 16 << 16).view(np.float32))  # at most LARGEST
# The bits of the largest number. A positive number has larger bits the larger it is, and infinity
# and NaN have larger ones than all numbers; a negative number has the highest bit in addition.
LARGEST_BITS = {"float16": 0x7BFF, "bfloat16": _LARGEST_BITS >> 16, "float32": _LARGEST_BITS}


def are_finite(stored: Array, dtype: str) -> bool:
    """Returns whether a contiguous array's bytes, stored as ``dtype``, are finite numbers of at
    most :data:`LARGEST`.
    """
    largest, (signed, unsigned) = LARGEST_BITS[dtype], SAME_BITS[dtype]
    # Compares bits: NumPy checks float16 values one by one, and needs a copy for an absolute value.
    bits = np.frombuffer(stored, unsigned)
    if not bits.size:
        return True
    highest, sign = int(bits.max()), 1 << (8 * unsigned.itemsize - 1)
    if highest < sign:  # no negative number, as after a ReLU
        return highest <= largest
    return highest <= sign | largest and bool(bits.view(signed).max() <= largest)


def is_in_range(array: Array) -> bool:
    """Returns whether all numbers of an array are finite and at most :data:`LARGEST`."""
    return bool((np.abs(array) <= np.float32(LARGEST)).all())  # as float32, also for float16


def from_stored(array: Array, dtype: str) -> Array:
    """Returns the values that :func:`to_stored` stored: the same array, or float32 for bfloat16."""
    if dtype != "bfloat16":
        return array
    return (array.astype("<u4") << 16).view("<f4")


def encode_regions(rows: Sequence[RegionRow], *, dtype: str, checked: bool = False) -> pa.Table:
    """Encodes rows as a table of the regions contract; ``dtype`` is that of features and
    class_probs.

    Raises ValueError for arrays of different lengths in a row, boxes not [R, 4], or values that are
    not finite (after conversion: 70,000 overflows float16) or above :data:`LARGEST`. The table is
    marked as checked. With ``checked`` the caller guarantees features, probabilities and global
    features, and they are not checked again.
    """
    for row in rows:
        _check_shapes(row)
    for name in RANGES:
        _check_range(rows, name)
    columns = [_encode_column(rows, field, dtype, checked) for field in REGIONS.schema]
    return pa.Table.from_arrays(columns, schema=REGIONS.schema.with_metadata({FINITE: "true"}))


def _check_shapes(row: RegionRow) -> None:
    """Raises ValueError unless all arrays of a row have one length."""
    count = len(row.boxes)
    if row.boxes.shape != (count, 4):
        raise ValueError(f"{row.image_id}: boxes are {row.boxes.shape}, must be ({count}, 4)")
    for name in PER_BOX:
        array = getattr(row, name)
        if array is not None and len(array) != count:
            raise ValueError(f"{row.image_id}: {len(array)} {name} for {count} boxes")
        if array is not None and name in LISTS and array.ndim != 1:
            raise ValueError(f"{row.image_id}: {name} are {array.shape}, must be ({count},)")
    numbers = row.class_prob_ids
    if numbers is not None and (row.class_probs is None or row.class_probs.shape != numbers.shape):
        raise ValueError(f"{row.image_id}: class_prob_ids without class_probs of the same shape")


def _check_range(rows: Sequence[RegionRow], name: str) -> None:
    """Raises ValueError for a number of a column that is not finite, or above LARGEST."""
    arrays = [(row.image_id, getattr(row, name)) for row in rows]
    arrays = [(image_id, array) for image_id, array in arrays if array is not None]
    if not arrays or is_in_range(np.concatenate([array for _, array in arrays])):
        return
    image_id = next(image_id for image_id, array in arrays if not is_in_range(array))
    raise ValueError(f"{image_id}: {RANGES[name]} is not finite, or above {LARGEST:g}")


def _encode_column(
    rows: Sequence[RegionRow], field: pa.Field, dtype: str, checked: bool
) -> pa.Array | pa.ChunkedArray:
    """Returns a column of the rows' values.

    Lists of Python numbers would block the interpreter ten times as long.
    """
    if field.name == "num_boxes":
        return pa.array([len(row.boxes) for row in rows], field.type)
    if field.name in ARRAYS:
        return _encode_floats(rows, field.name, dtype, checked)
    values = [getattr(row, field.name) for row in rows]
    if field.name == "class_prob_ids":
        numbers = [None if v is None else np.ascontiguousarray(v, CLASS_NUMBERS) for v in values]
        return _make_binary([None if v is None else _view_bytes(v) for v in numbers])
    if field.name == "boxes":
        values = [boxes.astype(np.float32, copy=False) for boxes in values]
    return (
        _encode_lists(values, field.type)
        if pa.types.is_list(field.type)
        else pa.array(values, field.type)
    )


def _encode_floats(
    rows: Sequence[RegionRow], name: str, dtype: str, checked: bool
) -> pa.Array | pa.ChunkedArray:
    """Returns a ``large_binary`` column of arrays as ``dtype``."""
    contents = list[npt.NDArray[np.uint8] | None]()
    for row in rows:
        value = getattr(row, name)
        content = None if value is None else _view_bytes(_round(value, dtype))
        if not checked and content is not None and not _holds(content, value, dtype):
            hint = "" if dtype == "float32" else "; store them as float32"
            raise ValueError(f"{row.image_id}: {name} has {describe_overflow(dtype)}{hint}")
        contents.append(content)
    return _make_binary(contents)


def _make_binary(
    contents: Sequence[npt.NDArray[np.uint8] | None],
) -> pa.Array | pa.ChunkedArray:
    """Returns a ``large_binary`` column. Large values have a chunk each, so that none is copied."""
    kind = pa.large_binary()
    filled = [EMPTY if content is None else content for content in contents]
    if max(map(len, filled), default=0) < MIN_CHUNK:
        buffers = [_mask_buffer(contents), _offset_buffer(filled, np.int64)]
        joined = pa.py_buffer(np.concatenate([EMPTY, *filled]))
        return pa.Array.from_buffers(kind, len(contents), [*buffers, joined])
    chunks = [
        pa.nulls(1, kind)
        if content is None
        else pa.Array.from_buffers(
            kind, 1, [None, _two_offsets(len(content)), pa.py_buffer(content)]
        )
        for content in contents
    ]
    return pa.chunked_array(chunks, kind)


@lru_cache(maxsize=1024)  # images have the same numbers of boxes
def _two_offsets(size: int) -> pa.Buffer:
    return pa.py_buffer(np.array([0, size], np.int64))


def _encode_lists(arrays: Sequence[Array | None], kind: pa.ListType) -> pa.Array:
    """Returns a column of lists of numbers, or of lists of rows of a fixed number of them."""
    inner = kind.value_type
    rows = inner if pa.types.is_fixed_size_list(inner) else None
    number = inner if rows is None else rows.value_type
    # Of the narrowest type, so that it widens no other array.
    empty = np.empty((0,) if rows is None else (0, rows.list_size), np.int16)
    contents = [empty if array is None else array for array in arrays]
    values = pa.array(np.concatenate([empty, *contents]).reshape(-1))
    if values.type != number:
        values = values.cast(number)
    if rows is not None:
        values = pa.FixedSizeListArray.from_arrays(values, type=rows)
    buffers = [_mask_buffer(arrays), _offset_buffer(contents, np.int32)]
    return pa.Array.from_buffers(kind, len(arrays), buffers, children=[values])


def _mask_buffer(values: Sequence[Any]) -> pa.Buffer | None:
    """Returns a validity bit for each value; None if all are present."""
    mask = [value is not None for value in values]
    return None if all(mask) else pa.py_buffer(np.packbits(mask, bitorder="little"))


def _offset_buffer(arrays: Sequence[Array], kind: type[np.signedinteger[Any]]) -> pa.Buffer:
    """Returns the start of each array in their concatenation, and the end of the last one."""
    return pa.py_buffer(np.cumsum([0, *map(len, arrays)], dtype=kind))
