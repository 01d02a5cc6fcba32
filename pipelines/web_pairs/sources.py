"""Defines the files with pages: archives, WAT files and tables."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from vlmill.runtime.files.outputs import WORK

FETCHED = f"/{WORK}/fetch-"  # in the path of an archive that the job has created

Kind = Literal["warc", "wat", "table"]
WARC: Kind = "warc"
WAT: Kind = "wat"
TABLE: Kind = "table"


class SourceFile(NamedTuple):
    """Holds the path, the size in bytes and the kind of a file with pages."""

    path: str
    size: int
    kind: Kind = "warc"


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Holds an archive's path, its size in bytes when it was first seen, and the size of its parts.

    An archive whose ``part_bytes`` are 0 is one unit. A WAT file and a table have pages as well.
    """

    path: str
    size: int
    part_bytes: int = 0
    kind: Kind = "warc"

    @property
    def id(self) -> bytes:
        """Returns eight bytes that identify the archive, by its path."""
        return hashlib.blake2b(self.path.encode("utf-8", "surrogateescape"), digest_size=8).digest()

    @property
    def parts(self) -> list[range]:
        """Returns the byte ranges of the parts, by where records begin; [] for one unit."""
        step = self.part_bytes
        return (
            [range(n, min(n + step, self.size)) for n in range(0, self.size, step)] if step else []
        )

    @property
    def is_fetched(self) -> bool:
        """Returns whether ``--fetch`` has created the archive."""
        return FETCHED in self.path


def describe(archive: Archive) -> dict[str, Any]:
    """Returns the fields by which a record identifies its archive."""
    kind = {} if archive.kind == WARC else {"kind": archive.kind}
    return {"path": archive.path, "size": archive.size, "part_bytes": archive.part_bytes, **kind}
