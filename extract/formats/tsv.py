"""Reads and writes TSV with base64 fields: of the original repository, of ViLBERT and of LXMERT.

No header; one image a line; the number of fields tells which it is. Lines are read one by one, so
memory does not grow with the file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vlmill.extract.formats.records import (
    KINDS,
    BadRecord,
    InvalidRecord,
    Record,
    from_base64,
    make_record,
    to_base64,
)
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

_ORIGINAL = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
FIELDS = {
    # Bottom-up attention, tools/generate_tsv.py.
    "tsv6": _ORIGINAL,
    # ViLBERT: with the class distribution, background first.
    "tsv7": (*_ORIGINAL, "cls_prob"),
    # LXMERT: note that the height comes before the width.
    "tsv": (
        "image_id",
        "image_h",
        "image_w",
        "objects_id",
        "objects_conf",
        "attrs_id",
        "attrs_conf",
        "num_boxes",
        "boxes",
        "features",
    ),
}
# What these layouts state about classes.
STATED: dict[str, dict[str, Any]] = {"tsv": {"classes_from": 0}, "tsv7": {"background": "first"}}
BY_COUNT = {len(fields): name for name, fields in FIELDS.items()}
HEADERS = (b"img_id", b"image_id")
MAX_LINE = 64 * 2**20  # 100 boxes with the whole distribution are 2 MB
# What csv.DictWriter of the original scripts ends lines with.
LINE_END = b"\r\n"


def sniff_format(path: Path) -> str | None:
    """Says which of the layouts the first line has; None if none."""
    with path.open("rb") as file:
        return BY_COUNT.get(file.readline(MAX_LINE).count(b"\t") + 1)


def read(path: Path, name: str) -> Iterator[Record]:
    """Yields the rows of a file in layout ``name``."""
    with path.open("rb") as file:
        for number, line in enumerate(lines(file), 1):
            location = f"{path.name}:{number}"
            if line is None:
                detail = f"a line of more than {MAX_LINE} bytes"
                yield InvalidRecord(key=location, detail=detail, reason=Reason.TOO_LARGE)
            elif line and not (number == 1 and line.split(b"\t", 1)[0] in HEADERS):
                yield parse_record(line, name, location)


def lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yields the lines without their ends; None for one that is too long, of which no more is
    kept.
    """
    while line := file.readline(MAX_LINE):
        if line.endswith(b"\n") or len(line) < MAX_LINE:
            yield line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        yield None


def parse_record(line: bytes, layout: str, location: str) -> Record:
    """Returns the row of one line in a layout of FIELDS."""
    names = FIELDS[layout]
    texts = line.split(b"\t")
    key = texts[0].decode("utf-8", "replace")
    key = key if len(texts) > 1 and key else location
    if len(texts) != len(names):
        return InvalidRecord(
            key=key, detail=f"{location}: {len(texts)} fields, must be {len(names)}"
        )
    try:
        texts[0].decode("utf-8")
        fields: dict[str, Any] = {
            name: from_base64(name, text) if name in KINDS else text.decode("utf-8")
            for name, text in zip(names, texts, strict=True)
        } | STATED.get(layout, {})
    except (BadRecord, UnicodeDecodeError) as error:
        return InvalidRecord(key=key, detail=f"{location}: {error}")
    return (
        make_record(key, fields)
        if fields["image_id"]
        else InvalidRecord(key=location, detail="no id")
    )


def write(rows: Iterator[RegionRow], path: Path, name: str) -> int:
    """Writes one line a row, atomically; returns how many."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for row in rows:
            if any(c in row.image_id for c in "\t\r\n"):
                raise InputError(f"{row.image_id!r}: a TSV cannot hold this id; give --format npz")
            file.write(b"\t".join(format_field(field, row) for field in FIELDS[name]) + LINE_END)
            count += 1
    return count


def format_field(field: str, row: RegionRow) -> bytes:
    """Returns a field's text."""
    if field in KINDS:
        return to_base64(field, row)
    plain = {
        "image_id": row.image_id,
        "image_w": row.width,
        "image_h": row.height,
        "num_boxes": len(row.boxes),
    }
    return str(plain[field]).encode()
