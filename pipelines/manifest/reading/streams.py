"""Streams large JSON files, one element of a list at a time.

Memory is bounded by one element, for any file size. A truncated or invalid file raises InputError
with the position.
"""

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from vlmill.pipelines.manifest.reading.json_text import check_depth, json_decoder
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.schemas.errors import InputError

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
