"""Finds the image files and tars of a folder or a list, and counts other files by reason.

Image extensions are trusted, so a folder of a million images is listed without opening any. Other
files are recognised by their first bytes.
"""

import codecs
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath

from vlmill.runtime.files.lock import LOCK
from vlmill.runtime.files.outputs import PLAN
from vlmill.runtime.files.paths import read_regular, to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.schemas.images.formats import HEAD_BYTES, format_name, is_tar
from vlmill.schemas.names import IMAGE_ENDINGS, spellings

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")  # compressed: refused
MOST_ENDINGS = 5  # that the last line names
LONGEST_ENDING = 12
_LINE_END = re.compile("\r\n?|\n")
_QUOTES = "\"'"


class Kind(StrEnum):
    """Lists the types of files, by name or first bytes."""

    IMAGE = "image"
    TAR = "tar"


class Why(StrEnum):
    """Lists why files and folders are not part of the plan, in the words of the last line."""

    OTHER = "not image"
    HIDDEN_FILE = "hidden file"
    HIDDEN_FOLDER = "hidden folder"
    LINK = "link"
    SPECIAL = "special file"
    FOLDER = "folder"
    OUTPUT = "output folder of vlmill"
    UNREADABLE = "unreadable"
    UNPAIRED = "image that no pair names"


# The singular and plural of each reason.
_WORDS = {
    Why.OTHER: ("not an image", "not images"),
    Why.FOLDER: ("folder that only the glob matched", "folders that only the glob matched"),
    Why.LINK: ("link that is not followed", "links that are not followed"),
    Why.OUTPUT: ("output folder of vlmill", "output folders of vlmill"),
    Why.UNREADABLE: ("without permission to read", "without permission to read"),
    Why.UNPAIRED: ("image that no pair names", "images that no pair names"),
}


@dataclass
class Skipped:
    """Counts the files and folders that were seen and are not planned, by their reason."""

    counts: Counter[Why] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)

    def add(self, why: Why, name: str = "") -> None:
        """Counts one item, and the ending of a file that is not an image."""
        self.counts[why] += 1
        if why is Why.OTHER:
            ending = PurePosixPath(name).suffix.lower()
            plain = ending.isprintable() and len(ending) <= LONGEST_ENDING
            self.endings[(ending or "no ending") if plain else "other"] += 1

    def summary(self) -> str:
        """Returns "skipped: 3 not images (.txt, .json), 1 hidden folder"; empty without any."""
        parts = []
        for why in Why:
            if count := self.counts[why]:
                singular, plural = _WORDS.get(why, (why.value, f"{why.value}s"))
                parts.append(f"{count} {singular if count == 1 else plural}")
                if why is Why.OTHER:
                    parts[-1] += f" ({self._most_endings()})"
        return f"skipped: {', '.join(parts)}" if parts else ""

    def _most_endings(self) -> str:
        names = [name for name, _ in self.endings.most_common(MOST_ENDINGS)]
        return ", ".join(names + ["..."] * (len(self.endings) > MOST_ENDINGS))


def is_hidden(name: str) -> bool:
    """Returns whether a path has a hidden part: one that begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def walk(folder: Path, skipped: Skipped) -> Iterator[tuple[str, Kind]]:
    """Yields the images and tars below a folder, sorted; links to folders are not followed."""
    if isinstance(folder, RemotePath):
        yield from walk_store(folder, skipped)
        return
    walked = os.walk(folder, onerror=lambda _: skipped.add(Why.UNREADABLE))
    for base, folders, files in walked:
        folders[:] = [name for name in sorted(folders) if enters(base, name, skipped)]
        for name in sorted(files):
            if name.startswith("."):
                skipped.add(Why.HIDDEN_FILE)
                continue
            path = os.path.join(base, name)
            if (kind := kind_of_file(path, skipped)) is not None:
                yield path, kind


def enters(base: str, name: str, skipped: Skipped) -> bool:
    """Returns whether a folder is walked; counts it if it is not."""
    path = os.path.join(base, name)
    if name.startswith("."):
        skipped.add(Why.HIDDEN_FOLDER)
    elif os.path.islink(path):
        skipped.add(Why.LINK)
    elif any(os.path.exists(os.path.join(path, file)) for file in (PLAN, LOCK)):
        skipped.add(Why.OUTPUT)  # it may be the output of this run, whose input would then change
    else:
        return True
    return False


def walk_store(folder: RemotePath, skipped: Skipped) -> Iterator[tuple[str, Kind]]:
    """Yields the images and tars below a folder of a store, by their names: opening each file
    would be a request each. A file without an ending counts as an image until it is read.
    """
    objects = [(str(path), str(path).removeprefix(f"{folder}/")) for path, _ in folder.below()]
    outputs = [name.removesuffix(PLAN) for _, name in objects if name.endswith(f"/{PLAN}")]
    for _ in outputs:
        skipped.add(Why.OUTPUT)
    for path, name in objects:
        if name.startswith(tuple(outputs)):
            continue
        if is_hidden(name):
            skipped.add(Why.HIDDEN_FILE)
        elif (kind := kind_by_name(name)) is not None:
            yield path, kind
        elif not PurePosixPath(name).suffix:
            yield path, Kind.IMAGE
        else:
            skipped.add(Why.OTHER, name)


def kind_by_name(name: str) -> Kind | None:
    """Returns the type of a file by its extension; None if that is not enough."""
    lower = name.lower()
    if lower.endswith(IMAGE_ENDINGS):
        return Kind.IMAGE
    return Kind.TAR if lower.endswith(TARS) else None


def kind_of_file(path: str, skipped: Skipped) -> Kind | None:
    """Returns whether a local file is an image or a tar; counts it if it is neither.

    A broken link with an image's ending is an image, namely a missing one.
    """
    kind = kind_by_name(path)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        if kind is None:
            skipped.add(Why.LINK)
        return kind
    if not stat.S_ISREG(mode):  # a named pipe would never end
        skipped.add(Why.SPECIAL)
        return None
    if kind is Kind.IMAGE:
        return kind
    try:
        head = read_head(path)
    except OSError:
        if kind is None:
            skipped.add(Why.UNREADABLE)
        return kind
    kind = kind_of_head(head) or kind
    if kind is None:
        skipped.add(Why.OTHER, path)
    return kind


def kind_of_head(head: bytes) -> Kind | None:
    """Returns the type of a file by its first bytes; None if it is neither an image nor a tar."""
    if format_name(head):
        return Kind.IMAGE
    return Kind.TAR if is_tar(head) else None


def read_head(path: str) -> bytes:
    """Returns a file's first bytes. Raises OSError."""
    return read_regular(to_path(path), HEAD_BYTES)


def read_path_list(path: Path) -> Iterator[str]:
    """Yields the paths of a list, one per line, relative to the list's folder.

    A byte order mark (UTF-8 or UTF-16), CRLF, empty lines, spaces around a path and quotes around
    it are added by editors and shells: they are removed unless a file has that name.
    """
    for line in _LINE_END.split(decode_text(path.read_bytes())):
        if line.strip():
            yield str(path.parent / resolve_spelling(path.parent, line))


def decode_text(data: bytes) -> str:
    """Decodes a list: UTF-16 with its mark, else UTF-8; other bytes are kept as on disk."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


def resolve_spelling(folder: Path, line: str) -> str:
    """Returns the spelling of a line that names a file: unchanged, without spaces, without quotes,
    in another Unicode form. Without such a file, the line without spaces and quotes.
    """
    bare = line.strip()
    quoted = len(bare) > 2 and bare[0] == bare[-1] and bare[0] in _QUOTES
    plain = bare[1:-1] if quoted else bare
    if isinstance(folder, RemotePath) or (plain == line and line.isascii()):
        return plain
    spelled = (name for spelling in (line, bare, plain) for name in spellings(spelling))
    return next((name for name in spelled if os.path.exists(folder / name)), plain)
