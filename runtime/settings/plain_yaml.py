"""Reads YAML as plain data: sections, lists, texts, numbers, true, false and null.

Tags create no objects, no key may occur twice in a section, and aliases count as often as they are
used, so that a small file stays small.
"""

from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES = 1 << 16, 16, 20_000
MAX_TEXT, MAX_DIGITS = 4096, 100
CORE = "tag:yaml.org,2002:"
PLAIN = ("null", "bool", "int", "float")


class BadYaml(ValueError):
    """Raised for a text that is not YAML, or not accepted: the reason and the line, from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclass
class Document:
    """Holds a document's plain value, and the line of each dotted key of its sections."""

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)


def read_document(text: str, *, lists_in_texts: bool = False) -> Document:
    """Returns the single document of a text. Raises BadYaml.

    With ``lists_in_texts``, a text such as "(10.0, 5.0)" is read as a Python list.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadYaml(f"over {MAX_CHARACTERS} characters", 1)
    try:
        return Reader(text, lists_in_texts=lists_in_texts).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadYaml(" ".join(str(error.problem).split()), mark.line + 1 if mark else 1) from None
    except yaml.YAMLError as error:
        raise BadYaml(" ".join(str(error).split())[:200], 1) from None


class Reader:
    """Builds the values of a document from the parser's events."""

    def __init__(self, text: str, *, lists_in_texts: bool = False) -> None:
        self.parser: Any = yaml.SafeLoader(text)  # its methods are untyped
        self.lists_in_texts = lists_in_texts
        self.anchors: dict[str, tuple[Any, int]] = {}  # with their number of values
        self.count = 0
        self.result = Document()

    def document(self) -> Document:
        """Reads the stream, which must hold one document."""
        self.parser.get_event()  # the stream's start
        if not self.parser.check_event(yaml.StreamEndEvent):
            self.parser.get_event()
            self.result.value = self.node("", 0)
            self.parser.get_event()
            if not self.parser.check_event(yaml.StreamEndEvent):
                line = self.parser.peek_event().start_mark.line + 1
                raise BadYaml("a second document", line)
        return self.result

    def node(self, path: str, depth: int) -> Any:
        """Reads one value and its content."""
        event = self.parser.get_event()
        line = event.start_mark.line + 1
        before = self.count
        self.add(1, line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise BadYaml(f"the alias *{event.anchor} names nothing that is complete", line)
            value, values = self.anchors[event.anchor]
            self.add(values, line)
            return value
        if depth > MAX_DEPTH:
            raise BadYaml(f"nested deeper than {MAX_DEPTH}", line)
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            refuse_tag(event.tag, line, "seq")
            value = []
            while not self.parser.check_event(yaml.SequenceEndEvent):
                value.append(self.node(path, depth + 1))
            self.parser.get_event()
        else:
            refuse_tag(event.tag, line, "map")
            value = self.section(path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = value, self.count - before
        return value

    def section(self, path: str, depth: int) -> dict[str, Any]:
        """Reads the keys and values of a mapping up to its end."""
        values: dict[str, Any] = {}
        while not self.parser.check_event(yaml.MappingEndEvent):
            line = self.parser.peek_event().start_mark.line + 1
            key = self.node(path, depth + 1)
            if not isinstance(key, str) or not key or "." in key or key == "<<":
                raise BadYaml(f"{shorten_value(key)} cannot be a key", line)
            if key in values:
                raise BadYaml(f"{path}{key} comes twice", line)
            self.result.lines[path + key] = line
            values[key] = self.node(f"{path}{key}.", depth + 1)
        self.parser.get_event()
        return values

    def scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        """Returns a text, number, flag or null."""
        if len(event.value) > MAX_TEXT:
            raise BadYaml(f"a text of over {MAX_TEXT} characters", line)
        if event.tag in (None, "!"):
            tag = self.parser.resolve(yaml.ScalarNode, event.value, event.implicit)
        else:
            tag = event.tag
            refuse_tag(tag, line, "str", *PLAIN)
        kind = tag.removeprefix(CORE)
        if kind not in PLAIN:  # dates are texts here too
            return self.text(event.value)
        if len(event.value) > MAX_DIGITS:
            raise BadYaml(f"a number of over {MAX_DIGITS} characters", line)
        build = getattr(self.parser, f"construct_yaml_{kind}")
        try:
            return build(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, OverflowError):
            raise BadYaml(f"{shorten_value(event.value)} is not of type {kind}", line) from None

    def text(self, text: str) -> Any:
        """Returns a text, or the list that it writes in Python: "(10.0, 5.0)"."""
        if not self.lists_in_texts or not text.startswith(("(", "[")):
            return text
        brackets = text.replace("(", "[").replace(")", "]")
        try:
            value = Reader(brackets).document().value
        except (BadYaml, yaml.YAMLError):
            return text
        return value if isinstance(value, list) else text

    def add(self, values: int, line: int) -> None:
        """Counts values; aliases count as often as they are used."""
        self.count += values
        if self.count > MAX_VALUES:
            raise BadYaml(f"over {MAX_VALUES} values", line)


def refuse_tag(tag: str | None, line: int, *kinds: str) -> None:
    """Raises BadYaml for a tag that is not one of YAML's plain ``kinds``."""
    if tag not in (None, "!", *(CORE + kind for kind in kinds)):
        tag_text = (tag or "").replace(CORE, "!!")
        raise BadYaml(
            f"the tag {shorten_value(tag_text)} would build something else than data", line
        )


def shorten_value(value: Any) -> str:
    """Returns a value in one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
