"""Converts checked fields by their legacy names to rows of regions and back, for all formats.

n boxes of an image, D feature width, K classes. The names are those of the original repository
(bottom-up attention, 2018) and of LXMERT.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase64

from vlmill.extract.formats.folders import is_utf8
from vlmill.runtime.readers.region_rows import LARGEST, RegionRow, are_finite, describe_overflow
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import Reason

Array = npt.NDArray[Any]
# Little-endian types of the payloads.
KINDS: dict[str, np.dtype[Any]] = {
    "boxes": np.dtype("<f4"),
    "features": np.dtype("<f4"),
    "cls_prob": np.dtype("<f4"),
    "objects_id": np.dtype("<i8"),
    "objects_conf": np.dtype("<f4"),
    "attrs_id": np.dtype("<i8"),
    "attrs_conf": np.dtype("<f4"),
}
# The array of a row for each payload.
COLUMNS = {
    "boxes": "boxes",
    "features": "features",
    "cls_prob": "class_probs",
    "objects_id": "class_ids",
    "objects_conf": "class_scores",
    "attrs_id": "attribute_ids",
    "attrs_conf": "attribute_scores",
}
PROBABILITIES = ("cls_prob", "objects_conf", "attrs_conf")
PROBABILITY_TOLERANCE = 1e-5  # a softmax in float32, or its sum, may round to above 1
HIGHEST_PROBABILITY = int(np.float32(1 + PROBABILITY_TOLERANCE).view(np.uint32))  # its bits
LISTS = ("objects_id", "objects_conf", "attrs_id", "attrs_conf")
# The fields' names in other projects: vilbert-multi-task and MMF, VOLTA, MILVLG and GQA.
ALIASES = {
    "img_id": "image_id",
    **dict.fromkeys(("img_w", "image_width", "width"), "image_w"),
    **dict.fromkeys(("img_h", "image_height", "height"), "image_h"),
    **dict.fromkeys(("bbox", "bboxes", "image_bb"), "boxes"),
    **dict.fromkeys(("x", "image_features"), "features"),
    "num_bbox": "num_boxes",
    **dict.fromkeys(("obj_id", "objects"), "objects_id"),
    "obj_conf": "objects_conf",
    "attr_id": "attrs_id",
    "attr_conf": "attrs_conf",
}
# The statements of a FileRow, and their values by their texts.
STATED: dict[str, dict[str, Any]] = {
    "background": {"first": "first", "none": "none"},
    "classes_from": {"0": 0, "1": 1},
}
# Others count integer pixels, or round: a box may end one pixel beyond the border.
IMPORTED_BORDER_PX = 1.0
FRACTIONS = "all coordinates are at most 1, as of fractions of width and height; write pixels"
# vqa-maskrcnn counts the padding of its input as image: its boxes may end 31 pixels of the input
# beyond the right and the lower border. The input's sides are at most 800 and 1333 pixels.
PADDING_PX, INPUT_SIDES = 31, (800, 1333)
MAX_BOXES = 10_000
MAX_ID = 32_767  # regions keep class and attribute numbers in 16 bits
# Numbers at the start of features that show their type; nearly all are from SMALLEST to LARGEST.
HEAD_NUMBERS = 128
SMALLEST = 1e-9
LONG_PAYLOAD = 1_000  # base64 of at least this many characters is not parsed as JSON
WRAPPED_AT = 76  # characters of base64 per line, as in MIME
NO_CLASS = -1  # the class of a region whose likeliest class is the background


@dataclass(frozen=True, kw_only=True)
class FileRow(RegionRow):
    """Holds a row in the form of its file, and how the file or its format numbers classes.

    ``background`` is the column of the background in ``class_probs`` and ``classes_from`` the
    number of the first class in ``class_ids`` and ``attribute_ids``
    (:mod:`~vlmill.extract.formats.classes`). Unstated values are None. ``is_clipped``: boxes in the
    padding of the detector have been clipped to the image.
    """

    background: str | None = None
    classes_from: int | None = None
    is_clipped: bool = False


class BadRecord(ValueError):
    """Raised for a record that cannot be a row, with the reason."""

    def __init__(self, detail: str, reason: Reason = Reason.BAD_RECORD) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class InvalidRecord:
    """Replaces the row of an invalid record; ``key``: the image's id, or a position in the file."""

    key: str
    detail: str
    reason: Reason = Reason.BAD_RECORD


Record = FileRow | InvalidRecord


def from_base64(name: str, text: bytes | memoryview | str) -> bytes:
    """Returns the bytes of a payload. Raises BadRecord.

    Files that Python 3 wrote from bytes hold the text ``b'...'``: the quotes are removed. Base64
    may be wrapped to lines of 76 characters.
    """
    raw = text.encode("ascii", "replace") if isinstance(text, str) else text
    start, end = bytes(raw[: WRAPPED_AT + 2]), bytes(raw[-1:])
    if start[:2] in (b"b'", b'b"') and end == start[1:2]:
        raw = bytes(raw[2:-1]).replace(b"\\n", b"")
    elif b"\n" in start:
        raw = bytes(raw).translate(None, b"\r\n")
    if start[:1].isspace() or end.isspace():
        raw = bytes(raw).strip()
    try:
        return pybase64.b64decode(raw, validate=True)
    except binascii.Error:
        raise BadRecord(f"{name}: {describe_base64(raw)}") from None


def decode_numbers(name: str, data: bytes, count: int) -> Array:
    """Returns the numbers of a payload of ``count`` boxes as a flat array. Raises BadRecord.

    Scripts that wrote float64 or int32 instead of the type of KINDS are recognised by the number of
    bytes, and for features and distributions, whose width is unknown, by the numbers at the start.
    """
    kind = KINDS[name]
    if name in LISTS or name == "boxes":
        expected = count * (4 if name == "boxes" else 1)
        size = len(data) // expected if expected else kind.itemsize
        if size not in (2, 4, 8) or size * expected != len(data):
            raise BadRecord(
                f"{name} has {len(data)} bytes for {count} boxes, not {expected * kind.itemsize}"
            )
        return np.frombuffer(data, f"<{kind.kind}{size}")
    if len(data) % (kind.itemsize * max(count, 1)):
        raise BadRecord(f"{name} has {len(data)} bytes, not a multiple of {kind.itemsize * count}")
    low = SMALLEST if name == "features" else 0.0  # probabilities have no lower bound
    numbers = np.frombuffer(data, kind)
    if are_typical(numbers[:HEAD_NUMBERS], low):
        return numbers
    for size in (8, 2):
        if len(data) % (size * max(count, 1)) == 0:
            others = np.frombuffer(data, f"<f{size}")
            # The halves of very small numbers of float32 are not all finite.
            if np.isfinite(others).all() and are_typical(others[:HEAD_NUMBERS], low):
                return others
    return numbers


def are_typical(numbers: Array, low: float) -> bool:
    """Returns whether at most 1 of 16 numbers, apart from 0 and NaN, is outside low..LARGEST."""
    sizes = np.abs(numbers, dtype=np.float64)
    zeros = sizes.size - np.count_nonzero(sizes)
    unusual = np.count_nonzero(sizes < low) - (zeros if low else 0)
    unusual += np.count_nonzero(sizes > LARGEST)
    return bool(16 * unusual <= sizes.size - zeros)


def describe_base64(raw: bytes | memoryview) -> str:
    """Returns why a text is not base64, as Python's decoder reports it."""
    try:
        base64.b64decode(raw, validate=True)
    except binascii.Error as error:
        return str(error)
    return "not base64"


def parse_payloads(text: bytes, names: Sequence[str]) -> Any:
    """Returns the value of a JSON text; the texts of some keys are views of its bytes.

    Base64 is found by its quotes, since a parser would read each of its characters. Raises
    ValueError.
    """
    cut: dict[str, memoryview] = {}
    view = memoryview(text)
    for name in names:
        label = b'"%s": "' % name.encode()
        start, end = text.find(label) + len(label), -1
        if start >= len(label):
            end = text.find(b'"', start)
        if end - start >= LONG_PAYLOAD and b"\\" not in (payload := text[start:end]):
            cut[name] = memoryview(payload)
            text = b"".join([view[:start], view[end:]])
            view = memoryview(text)
    value = parse_json(text)
    if isinstance(value, dict) and all(value.get(name) == "" for name in cut):
        return {**value, **cut}
    if cut:
        raise ValueError("not an object of texts in base64")
    return value


def to_base64(name: str, row: RegionRow) -> bytes:
    """Returns a row's payload; bfloat16 and float16 are widened, which is exact."""
    return pybase64.b64encode(widen_payload(name, row).data)


def widen_payload(name: str, row: RegionRow) -> Array:
    """Returns a row's array in the type of KINDS."""
    return np.ascontiguousarray(payload(name, row), dtype=KINDS[name])


def payload(name: str, row: RegionRow) -> Array:
    """Returns a row's array by its legacy ``name``. Raises InputError if the row lacks it."""
    array: Array | None = getattr(row, COLUMNS[name])
    if array is None and not len(row.boxes):
        return np.empty((0, 0) if name in ("features", "cls_prob") else 0, KINDS[name])
    if array is None or (name == "cls_prob" and row.class_prob_ids is not None):
        what = "whole class distribution" if name == "cls_prob" else COLUMNS[name]
        raise InputError(
            f"{row.image_id} has no {what}, which this --format needs; give another --format, "
            "or regions that have it"
        )
    return array


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Returns an integer in low..high; 640.0 and an array of it are valid, 640.5 is not.

    Raises BadRecord.
    """
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        number = int(float(value))  # type: ignore[arg-type]
        if number != float(value):  # type: ignore[arg-type]
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadRecord(f"{name} is {str(value)[:40]!r}, not a whole number") from None
    if not low <= number <= high:
        raise BadRecord(f"{name} is {number}, must be in {low}..{high}")
    return int(number)


def parse_row(fields: Mapping[str, Any]) -> FileRow:
    """Returns a row from ``image_id``, ``image_w``, ``image_h``, ``num_boxes`` and arrays by name.

    Arrays may be flat or transposed (:func:`reshape_payload`). ``background`` and ``classes_from``
    are the file's statements. Raises BadRecord for inconsistent fields.
    """
    count = whole_number("num_boxes", fields["num_boxes"], 0, MAX_BOXES)
    if not (image_id := str(fields["image_id"])):
        raise BadRecord("no id")
    if not image_id.isascii() and not is_utf8(image_id):
        raise BadRecord("its id is not text in UTF-8; rename it")
    for name in ("boxes", "features"):
        if fields.get(name) is None:
            raise BadRecord(f"{name} has no value")
    arrays = {n: reshape_payload(n, fields[n], count) for n in KINDS if fields.get(n) is not None}
    for name in ("objects_id", "attrs_id"):
        if name in arrays:
            numbers = arrays[name]
            if count and (numbers.min() < NO_CLASS or numbers.max() > MAX_ID):
                raise BadRecord(f"{name} has a number outside {NO_CLASS}..{MAX_ID}")
            arrays[name] = numbers.astype(np.int16)
    for name in PROBABILITIES:
        if name in arrays:
            check_probabilities(name, arrays[name])
    # Now, while they are in the processor's cache.
    if not are_finite(arrays["features"], "float32"):
        raise BadRecord(f"features has {describe_overflow('float32')}", Reason.NOT_FINITE)
    width = whole_number("image_w", fields["image_w"], 1, 2**31 - 1)
    height = whole_number("image_h", fields["image_h"], 1, 2**31 - 1)
    boxes = arrays["boxes"]
    is_clipped = outside(boxes, width, height, IMPORTED_BORDER_PX)
    if is_clipped and not np.isfinite(boxes).all():
        raise BadRecord("a box is not finite", Reason.NOT_FINITE)
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise BadRecord("a box ends before it begins")
    is_small = count and boxes[0, 3] <= 1 < min(width, height)  # the first one, then all
    if is_small and boxes.max() <= 1 and (boxes % 1).any():
        raise BadRecord(FRACTIONS, Reason.BAD_BOXES)
    if is_clipped:
        arrays["boxes"] = clip_padding(boxes, width, height)
    columns: dict[str, Any] = {COLUMNS[name]: array for name, array in arrays.items()}
    return FileRow(
        image_id=image_id,
        width=width,
        height=height,
        is_clipped=is_clipped,
        **read_numbering(fields),
        **columns,
    )


def rename_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields under the names of KINDS; fields without a value are ignored."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None and found.get(known := ALIASES.get(name, name)) is None:
            found[known] = value
    return found


def count_boxes(boxes: Array | bytes) -> int:
    """Returns the number of boxes in a flat array, or in a payload of float32."""
    return len(boxes) // 16 if isinstance(boxes, bytes) else boxes.size // 4


def count_arrays(fields: dict[str, Any]) -> None:
    """Sets ``num_boxes`` of fields with two-dimensional arrays, and removes lists of other lengths.

    The extractors of vilbert-multi-task and MMF write a ``num_boxes`` that omits boxes without a
    confidence, and the former has one class too few; loaders use the number of rows of the
    features. MMF's ``extract_features_frcnn.py`` writes the largest allowed number, and as
    ``cls_prob`` the scores of the classes [n].
    """
    boxes = fields.get("boxes")
    if not isinstance(boxes, np.ndarray) or boxes.ndim != 2:
        if isinstance(boxes, np.ndarray | bytes):
            fields.setdefault("num_boxes", count_boxes(boxes))
        return
    count, stated_count = len(boxes), fields.get("num_boxes", len(boxes))
    scores = fields.get("cls_prob")
    if isinstance(scores, np.ndarray) and scores.shape == (count,):
        fields.setdefault("objects_conf", fields.pop("cls_prob"))
        fields["num_boxes"] = count
    elif whole_number("num_boxes", stated_count, 0, MAX_BOXES) <= count:
        fields["num_boxes"] = count
    ids = fields.get("objects_id")
    if isinstance(ids, np.ndarray) and ids.size == count - 1:
        del fields["objects_id"]


def read_numbering(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how classes are numbered, as stated in records of our exports."""
    return {name: values.get(str(fields.get(name))) for name, values in STATED.items()}


def reshape_payload(name: str, value: Any, count: int) -> Array:
    """Returns a payload as [n] or [n, width], in its own type. Raises BadRecord.

    A flat array is row-major. A two-dimensional array is transposed if only its second dimension is
    n, as for features [D, n] in OpenVQA's and MCAN's files; if both are n it is [n, D].
    """
    if isinstance(value, bytes):
        value = decode_numbers(name, value, count)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        raise BadRecord(f"{name} is not an array of numbers")
    if value.dtype == KINDS[name] and value.size and value.flags.c_contiguous:
        sides = value.shape
        is_shaped = len(sides) == 1 if name in LISTS else len(sides) == 2
        if is_shaped and sides[0] == count and (name != "boxes" or sides[1] == 4):
            return value
    flat = row_major(name, value, count).reshape(-1)
    if name in LISTS or name == "boxes":
        expected = count * (4 if name == "boxes" else 1)
        if flat.size != expected:
            raise BadRecord(f"{name} has {flat.size} numbers for {count} boxes, not {expected}")
        shape: tuple[int, ...] = (count, 4) if name == "boxes" else (count,)
    else:
        if (flat.size % count if count else flat.size) or (count and not flat.size):
            raise BadRecord(f"{name} has {flat.size} numbers for {count} boxes")
        shape = (count, flat.size // count if count else 0)
    return flat.astype(KINDS[name], copy=False).reshape(shape)


def row_major(name: str, value: Array, count: int) -> Array:
    """Returns an array with the ``count`` boxes as its first dimension, or a flat one unchanged.

    Raises BadRecord if no dimension is ``count``, and for more than two dimensions.
    """
    sides = value.shape
    while len(sides) > 2 and sides[-1] == 1:  # [n, D, 1, 1]: pooled and not squeezed
        sides = sides[:-1]
    if len(sides) < 2 or sides[0] == count:
        if len(sides) > 2:
            raise BadRecord(f"{name} is {' x '.join(map(str, value.shape))}, must have two sides")
        return value
    if len(sides) == 2 and sides[1] == count:
        return value.reshape(sides).T
    text = " x ".join(map(str, value.shape))
    raise BadRecord(f"{name} is {text}: no side has the {count} boxes of num_boxes")


def check_probabilities(name: str, array: Array) -> None:
    """Raises BadRecord for a float32 array with a number outside 0..1, and for distributions that
    are not finite. Scores that are not finite are found when the row is stored.
    """
    # The bits of a number from 0 on are larger the larger it is. Those of negative numbers,
    # infinity and NaN are larger than all of them.
    if not array.size or array.view("<u4").max() <= HIGHEST_PROBABILITY:
        return
    if not are_probabilities(array):
        raise BadRecord(f"{name} has a number outside 0..1; it must be after the softmax")
    if name == "cls_prob" and not np.isfinite(array).all():
        raise BadRecord(f"{name} has {describe_overflow('float32')}", Reason.NOT_FINITE)


def are_probabilities(array: Array) -> bool:
    """Returns whether all finite numbers of an array are from 0 to 1."""
    if not array.size or (array.min() >= 0 and array.max() <= 1 + PROBABILITY_TOLERANCE):
        return True
    wrong = (array < 0) | (array > 1 + PROBABILITY_TOLERANCE)
    return not (wrong & np.isfinite(array)).any()


def outside(boxes: Array, width: int, height: int, tolerance_px: float) -> bool:
    """Returns whether a box of [n, 4] extends beyond its image by more than ``tolerance_px``."""
    if not len(boxes):
        return False
    *_, right, bottom = boxes.max(axis=0).tolist()
    is_inside = right <= width + tolerance_px and bottom <= height + tolerance_px
    return not (is_inside and boxes.min() >= -tolerance_px)  # also of NaN


def clip_padding(boxes: Array, width: int, height: int) -> Array:
    """Returns boxes that reach into a detector's padding clipped to the image.

    Raises BadRecord for a box farther outside.
    """
    sides = sorted((width, height))
    scale = max(side / most for side, most in zip(sides, INPUT_SIDES, strict=True))
    size = np.array([width, height])
    padded = size + max(IMPORTED_BORDER_PX, PADDING_PX * scale)
    if (boxes[:, :2] < -IMPORTED_BORDER_PX).any() or (boxes[:, 2:] > padded).any():
        raise BadRecord(f"a box leaves the image of {width} x {height}", Reason.BAD_BOXES)
    clipped: Array = np.minimum(boxes, np.concatenate([size, size])).astype(boxes.dtype)
    return clipped


def make_record(key: str, fields: Mapping[str, Any]) -> Record:
    """Returns the row of the fields, or an InvalidRecord with the reason."""
    try:
        return parse_row(fields)
    except BadRecord as error:
        return InvalidRecord(key=key, detail=str(error), reason=error.reason)
