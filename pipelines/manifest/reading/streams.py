"""Streams large JSON files, one element of a list at a time, and records of JSON.

Memory is bounded by one element, for any file size. A truncated or invalid file raises InputError
with the position. Records are one object per line, a list of objects, or an object that has them; a
key of a nested object is a column, too: ``image.file_name``.
"""

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from vlmill.pipelines.manifest.reading.json_text import check_depth, json_decoder
from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Source, file_source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use

CHUNK = 1 << 20
MAX_ELEMENT = 64 << 20  # characters of one element of a list, or of a value outside of lists
LONGEST_WORD = 16  # characters: -Infinity, and the escape of a surrogate pair
_BLANKS = " \t\n\r"


class _Text:
    """Holds a file's characters; ``buffer[at:]`` has not been consumed."""

    def __init__(self, source: Source, file: BinaryIO, *, nan_is_null: bool = False) -> None:
        self.source, self._file = source, file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._decode = json_decoder(source.remarks, nan_is_null=nan_is_null).raw_decode
        self.buffer, self.at, self._used, self.ended = "", 0, 0, False

    def more(self, size: int = CHUNK) -> None:
        """Reads more characters; sets ``ended`` at the end of the file."""
        content = self._file.read(size)
        try:
            text = self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            self.at = len(self.buffer) + len(error.object[: error.start].decode(errors="replace"))
            raise self.broken(f"no UTF-8 ({error.reason})") from None
        self._used += self.at
        self.buffer, self.at, self.ended = self.buffer[self.at :] + text, 0, not content

    def peek(self) -> str:
        """Returns the next character that is not white space, or "" at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in _BLANKS:
                self.at += 1
            if self.at < len(self.buffer) or self.ended:
                return self.buffer[self.at : self.at + 1]
            self.more()

    def take(self, choices: str) -> str:
        """Consumes the next character, which must be one of ``choices``."""
        char = self.peek()
        if not char or char not in choices:
            what = repr(char) if char else "the end of the file"
            raise self.broken(f"{what} where one of {choices} was expected")
        self.at += 1
        return char

    def value(self) -> Any:
        """Returns the next JSON value."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self.buffer, self.at)
                if end < len(self.buffer) or self.ended:  # a number may continue
                    check_depth(value, self.buffer, self.at, end)
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                if self.ended or not self._may_be_cut(error):
                    self.at = min(error.pos, len(self.buffer))
                    raise self.broken(error.msg) from None
            except (ValueError, RecursionError) as error:
                raise self.broken(str(error)) from None
            if len(self.buffer) - self.at > MAX_ELEMENT:
                raise self.broken(f"a value of more than {MAX_ELEMENT} characters")
            self.more(max(CHUNK, len(self.buffer) - self.at))

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Returns whether more characters may complete a value: open string or error at the end."""
        near = len(self.buffer) - error.pos <= LONGEST_WORD
        return near or error.msg.startswith("Unterminated string")

    def broken(self, why: str) -> InputError:
        """Returns the error for invalid JSON."""
        position = self._used + self.at
        return InputError(
            f"{self.source.display_name} is broken or cut at character {position}: {why}; fetch "
            "it again"
        )


@dataclass(frozen=True, kw_only=True)
class JsonLists:
    """Reads a JSON file that is a list, or an object with long lists as members.

    ``known`` has the published keys of each member's elements and, under "", of the file's object
    or of its list's elements. Other keys are recorded in the file's remarks. ``nan_is_null``: NaN,
    which Python writes, is null; else it is refused.
    """

    source: Source
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    nan_is_null: bool = False

    def _text(self, file: BinaryIO) -> _Text:
        return _Text(self.source, file, nan_is_null=self.nan_is_null)

    def elements(self, member: str | None = None) -> Iterator[Any]:
        """Yields the elements of the file's list (None), or of its member.

        Raises InputError if the list does not exist.
        """
        with self.source.open() as file:
            text = self._text(file)
            if member is None:
                if text.peek() != "[":
                    raise self._other_layout("a list")
                yield from self._checked(_elements(text), "")
                if text.peek():
                    raise text.broken("text follows the end of the list")
                return
            yield from self._member(text, member)

    def member_elements(self, *members: str) -> Iterator[tuple[str, Any]]:
        """Yields (member, element) for several members of the file's object, in its order.

        Missing members yield nothing. Ends after the last member.
        """
        left = set(members)
        with self.source.open() as file:
            text = self._text(file)
            if text.peek() != "{":
                raise self._other_layout(f"an object with the members {', '.join(members)}")
            for name in _names(text):
                if name in left and text.peek() == "[":
                    for element in self._checked(_elements(text), name):
                        yield name, element
                else:
                    _skip(text)
                left.discard(name)
                if not left:
                    return

    def members(self) -> list[str]:
        """Returns the names of the object's members; an empty list if the file is a list."""
        with self.source.open() as file:
            text, names = self._text(file), []
            for name in _names(text) if text.peek() == "{" else ():
                _skip(text)
                names.append(name)
            return names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields the names and values of the file's object, one at a time."""
        with self.source.open() as file:
            text = self._text(file)
            if text.peek() != "{":
                raise self._other_layout("an object")
            for name in _names(text):
                yield name, text.value()
            if text.peek():
                raise text.broken("something follows the object")

    def is_list(self) -> bool:
        """Returns whether the file begins like a list."""
        with self.source.open() as file:
            return self._text(file).peek() == "["

    def _member(self, text: _Text, member: str) -> Iterator[Any]:
        if text.peek() != "{":
            raise self._other_layout(f"an object with the member {member}")
        names = []
        for name in _names(text):
            names.append(name)
            if name != member:
                _skip(text)
            elif text.peek() != "[":
                raise self._other_layout(f"a list as its member {member}")
            else:
                yield from self._checked(_elements(text), member)
        if "" in self.known:
            self.source.remarks.check(names, self.known[""])
        if member not in names:
            raise self._other_layout(f"the member {member} (it has {', '.join(names)[:200]})")

    def _checked(self, elements: Iterator[Any], member: str) -> Iterator[Any]:
        """Yields the elements, comparing the keys of objects with the known ones."""
        known, check = self.known.get(member), self.source.remarks.check
        if known is None:
            yield from elements
            return
        for element in elements:
            if isinstance(element, dict):
                check(element, known)
            yield element

    def _other_layout(self, layout: str) -> InputError:
        return InputError(
            f"{self.source.display_name} has another layout: it lacks {layout}; is it another "
            "version of the file?"
        )


def _names(text: _Text) -> Iterator[str]:
    """Yields the names of an object's members; the caller must consume each value first."""
    text.take("{")
    if text.peek() == "}":
        text.take("}")
        return
    while True:
        name = text.value()
        if not isinstance(name, str):
            raise text.broken("a member without a name")
        text.take(":")
        yield name
        if text.take(",}") == "}":
            return


def _elements(text: _Text) -> Iterator[Any]:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        yield text.value()
        if text.take(",]") == "]":
            return


def _skip(text: _Text) -> None:
    """Skips a value; a list is skipped element by element."""
    if text.peek() == "[":
        for _ in _elements(text):
            pass
    else:
        text.value()


FIRST_RECORDS = 1_000  # their keys are the columns: some records may lack a key
LIST_NAMES = ("data", "annotations", "questions", "examples", "samples", "items", "rows", "records")
HEAD_BYTES = 1 << 16
_ANY: frozenset[str] = frozenset()

Record = tuple[int, dict[str, Any] | Drop]
"""The line of a record (of a list its number, both from 1), and its object."""


def json_format(path: Path) -> str:
    """Returns ``json`` for a list or an object, ``jsonl`` for an object per line, by content."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, remaining = head.partition(b"\n")
    one_line = first.rstrip().endswith(b"}")
    return "jsonl" if one_line and remaining.lstrip().startswith(b"{") else "json"


def json_records(path: Path, format: str) -> Iterator[Record]:
    """Yields the records of a file. Raises InputError for broken JSON of a list."""
    source = file_source(path)
    if format == "jsonl":
        for number, record in json_lines(source, _ANY):
            if isinstance(record, Drop) and record.reason is Reason.BAD_ROW:
                record = Drop(Reason.BAD_RECORD, record.detail)
            yield number + 1, record
        return
    for number, element in enumerate(_records(JsonLists(source=source, nan_is_null=True)), 1):
        if isinstance(element, dict):
            yield number, element
        else:
            kind = type(element).__name__
            yield number, Drop(Reason.BAD_RECORD, f"{kind} where a JSON object is expected")


def _records(lists: JsonLists) -> Iterator[Any]:
    """Yields the elements of a list, of the list of an object, of its lists by split, or the
    object's values with their names as ``key``.
    """
    if lists.is_list():
        yield from lists.elements()
        return
    members = lists.members()
    if {"images", "annotations"} <= set(members):
        raise InputError(
            f"--input {lists.source.display_name} has COCO's layout (images, annotations): use "
            "`manifest coco-json`"
        )
    if members and all(find_use(name) is not None for name in members):
        for name, element in lists.member_elements(*members):
            yield {"split": name, **element} if isinstance(element, dict) else element
        return
    names = [name for name in LIST_NAMES if name in members]
    if len(names) == 1:
        yield from lists.elements(names[0])
        return
    for name, value in lists.items():
        if not isinstance(value, dict):
            there = ", ".join(members)[:200]
            raise InputError(
                f"--input {lists.source.display_name} is a JSON object with the members {there}; "
                "give a list of objects, or one object per line"
            )
        yield {"key": name, **value}


def json_columns(path: Path, format: str = "jsonl") -> list[str]:
    """Returns the first records' keys, in order of appearance. Raises InputError without any."""
    names: dict[str, None] = {}
    nested: dict[str, None] = {}
    for _, record in islice(json_records(path, format), FIRST_RECORDS):
        if not isinstance(record, Drop):
            names |= dict.fromkeys(record)
            for key, value in record.items():
                if isinstance(value, dict):
                    nested |= dict.fromkeys(f"{key}.{inner}" for inner in value)
    if not names:
        rows = "its first lines are no JSON objects, one per line"
        if format == "json":
            rows = "its list has no objects"
        raise InputError(f"--input {path}: {rows}")
    return [*names, *(name for name in nested if name not in names)]


def json_values(
    path: Path, format: str, names: Sequence[str]
) -> Iterator[tuple[int, list[Any] | Drop]]:
    """Yields the values of these columns of each record, None for each absent key."""
    for number, record in json_records(path, format):
        if isinstance(record, Drop):
            yield number, record
        else:
            yield number, [_value(record, name) for name in names]


def _value(record: Mapping[str, Any], name: str) -> Any:
    if name in record or "." not in name:
        return record.get(name)
    outer, _, inner = name.partition(".")
    value = record.get(outer)
    return _value(value, inner) if isinstance(value, dict) else None
