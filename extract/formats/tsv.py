"""Reads and writes TSV with base64 fields of the original repository, ViLBERT and LXMERT.

Each line is one image; the number of fields, or a header, shows the layout. Lines are read one by
one, so memory does not grow with the file. The reader accepts the artefacts of Python 2 and 3 and
the csv module in published files: headers, whose names decide the order of the fields, a byte order
mark, sizes as 640.0, payloads as ``b'...'``, and base64 that is wrapped inside quotes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import (
    ALIASES,
    KINDS,
    BadRecord,
    InvalidRecord,
    Record,
    from_base64,
    make_record,
    to_base64,
)
from vlmill.extract.formats.unfinished import Unfinished
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
# How these layouts number classes.
STATED: dict[str, dict[str, Any]] = {"tsv": {"classes_from": 0}, "tsv7": {"background": "first"}}
BY_COUNT = {len(fields): name for name, fields in FIELDS.items()}
LARGEST_FIRST = [BY_COUNT[count] for count in sorted(BY_COUNT, reverse=True)]
HEADERS = (b"img_id", b"image_id")
TAB = b"\t"
MAX_FIELDS = 20
MAX_LINE = 64 * 2**20  # 100 boxes with the full distribution are 2 MB
FIRST_LINES = 20  # that show the layout: one may be truncated, or two joined
BUFFER = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The line end of csv.DictWriter in the original scripts.
LINE_END = b"\r\n"
BLANK = (b"\n", LINE_END)


def sniff_format(path: Path, *, only_ascii: bool = False) -> str | None:
    """Returns the layout of the header or of most of the first lines; None if it is unknown.

    ``only_ascii`` ignores lines of other bytes, since any binary file may have a line of 6 fields.
    """
    counts = Counter[int]()
    with path.open("rb", buffering=BUFFER) as file:
        for line in islice(lines(file), FIRST_LINES):
            if line is None or (only_ascii and (b"\0" in line or not line.isascii())):
                continue
            if not counts and (names := read_header(line)) is not None:
                return next(name for name in LARGEST_FIRST if {*FIELDS[name]} <= {*names})
            counts[line.count(TAB) + 1] += 1
    known = [(count, fields) for fields, count in counts.items() if fields in BY_COUNT]
    return BY_COUNT[max(known)[1]] if known else None


def read_header(line: bytes) -> tuple[str, ...] | None:
    """Returns the fields of a header in its order, by the names of FIELDS.

    Returns None for other lines, and for headers that lack a field of every layout.
    """
    if not is_header(line):
        return None
    texts = [str(field, "utf-8", "replace").strip() for field in split_fields(line)]
    names = tuple(ALIASES.get(name, name) for name in texts)
    return names if {*_ORIGINAL} <= {*names} else None


def read(path: Path, context: Context, name: str | None = None) -> Iterator[Item]:
    """Yields the records of a file, in layout ``name`` or in that of its first lines.

    Raises InputError for a folder, and for a file without any line of this layout.
    """
    if path.is_dir():
        raise InputError(f"FILE {path} is a folder; give the .tsv file")
    found = sniff_format(path)
    if name is not None and found is not None and found != name:
        raise InputError(
            f"FILE {path} has {len(FIELDS[found])} fields a line: it is {found}, not {name}; "
            "remove --format, or give the right one"
        )
    layout = name or found or "tsv6"
    size, names = max(1, path.stat().st_size), FIELDS[layout]
    with path.open("rb", buffering=BUFFER) as file:
        for number, line in enumerate(lines(file), 1):
            context.done = file.tell() / size
            location = f"{path.name}:{number}"
            if line is None:
                detail = f"a line of more than {MAX_LINE} bytes"
                bad = InvalidRecord(key=location, detail=detail, reason=Reason.TOO_LARGE)
                yield partial(_same, bad)
            elif is_header(line):  # one in each of several files that were concatenated
                names = read_header(line) or names
            elif line not in BLANK:
                yield partial(parse_record, line, layout, location, names)


def is_header(line: bytes) -> bool:
    """Returns whether a line holds the names of the fields."""
    return line[:20].split(TAB, 1)[0].strip(b'"') in HEADERS


def _same(bad: InvalidRecord) -> Record:
    return bad


def lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yields the lines with their ends; None for a line that is too long and is dropped.

    A quoted field may span several lines, since the csv module writes base64 with line ends.
    """
    held = file.readline(MAX_LINE).removeprefix(BYTE_ORDER_MARK)
    while line := held:
        if not line.endswith(b"\n") and len(line) >= MAX_LINE:
            while held and not held.endswith(b"\n"):
                held = file.readline(MAX_LINE)
            held = file.readline(MAX_LINE)
            yield None
            continue
        held = file.readline(MAX_LINE)
        if b'"' in line and line.count(b'"') % 2:
            line, held = _join_quoted(line, held, file)
        yield line


def _join_quoted(line: bytes, following: bytes, file: BinaryIO) -> tuple[bytes, bytes]:
    """Returns a line joined with the lines that continue its last field, and the next line.

    A line does not continue a quoted field if it has a tab before its first quote: then a quote is
    missing, as in a truncated file, and the lines are separate records.
    """
    joined, is_open = bytearray(line), True
    while is_open and following and len(joined) < MAX_LINE:
        if TAB in following.split(b'"', 1)[0]:
            break
        joined += following
        is_open ^= following.count(b'"') % 2 == 1
        following = file.readline(MAX_LINE)
    return bytes(joined), following


def parse_record(
    line: bytes, layout: str, location: str, names: Sequence[str] | None = None
) -> Record:
    """Returns the row of one line in a layout of FIELDS, with the fields ``names``."""
    names = names or FIELDS[layout]
    texts = split_fields(line)
    key = str(texts[0], "utf-8", "replace")
    key = key if len(texts) > 1 and key else location
    if len(texts) != len(names):
        detail = f"{location}: {line.count(TAB) + 1} fields, must be {len(names)}"
        return InvalidRecord(key=key, detail=detail)
    try:
        str(texts[0], "utf-8")
        fields: dict[str, Any] = {
            name: from_base64(name, text) if name in KINDS else _plain_text(text)
            for name, text in zip(names, texts, strict=True)
        } | STATED.get(layout, {})
    except (BadRecord, UnicodeDecodeError) as error:
        return InvalidRecord(key=key, detail=f"{location}: {error}")
    return (
        make_record(key, fields)
        if fields["image_id"]
        else InvalidRecord(key=location, detail="no id")
    )


def split_fields(line: bytes) -> list[memoryview]:
    """Returns the fields of a line, without a copy, and without the quotes of the csv module.

    All fields after the first :data:`MAX_FIELDS` are one: each takes 200 bytes of memory.
    """
    end = len(line)
    while end and line[end - 1] in b"\r\n":
        end -= 1
    view, start, fields = memoryview(line), 0, list[memoryview]()
    while len(fields) < MAX_FIELDS and (tab := line.find(TAB, start, end)) >= 0:
        fields.append(view[start:tab])
        start = tab + 1
    fields.append(view[start:end])
    return [_unquote(field) for field in fields] if b'"' in line else fields


def _unquote(field: memoryview) -> memoryview:
    text = bytes(field)
    if len(text) >= 2 and text[:1] == b'"' == text[-1:]:
        return memoryview(text[1:-1].replace(b'""', b'"'))
    return field


def _plain_text(field: memoryview) -> str:
    """Returns a field as text, without the ``b'...'`` of Python 2 code that ran in Python 3."""
    text = bytes(field)
    if text[:2] == b"b'" and text[-1:] == b"'" and len(text) > 2:
        text = text[2:-1]
    return text.decode("utf-8")


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes one line per row."""
    names, file = FIELDS[plan.name], files.open_file(files.path)
    for row in rows:
        file.write(TAB.join(format_field(field, row) for field in names))
        file.write(LINE_END)


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
