"""Follows the links inside one archive: redirects, and revisits that name a digest.

Both depend on earlier records. An archive that is one unit follows them immediately. The parts of a
large archive log them, and a later step follows the logs in the order of the parts.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

import msgspec

from vlmill.pipelines.web.archives.content import Kind
from vlmill.pipelines.web.archives.reading import Record
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.spool import Row, SpoolWriter
from vlmill.pipelines.web_pairs.stages import RECORDS, REDIRECTS
from vlmill.runtime.units.funnel import Counts, Drop
from vlmill.schemas.rejects import Reason

MAX_DIGESTS = 20_000  # of images, for revisits that name only a digest: about 5 MB
MOST_REDIRECTS = 100_000  # per archive, that are followed to their last target
MOST_HOPS = 5


class Links(Protocol):
    """Receives the redirects, the revisits and the images with a digest, in the archive's order."""

    def add(self, key: str, record: Record) -> None:
        """Adds a record; ``key`` is the key of its reject."""

    def finish(self) -> None:
        """Ends the archive or the part."""


class LoggedLink(msgspec.Struct, array_like=True, frozen=True):
    """Holds a link as the log stores it."""

    key: str
    kind: Kind
    url: str
    target: str | None
    digest: str


_decode_link = msgspec.msgpack.Decoder(LoggedLink).decode


class LinkLog:
    """Logs the links of a part for a later step."""

    def __init__(self, log: SpoolWriter) -> None:
        self._log = log

    def add(self, key: str, record: Record) -> None:
        """Logs a link."""
        link = LoggedLink(key, record.kind, record.url, record.target, record.digest)
        self._log.add(0, rows.number_key(self._log.rows), rows.encode(link))

    def finish(self) -> None:
        """Does nothing."""


class LinkFollower:
    """Writes the final targets of an archive's redirects and revisits.

    Memory: 20,000 digests and 100,000 redirects.
    """

    def __init__(self, redirects: SpoolWriter, counts: Counts) -> None:
        self._redirects, self._counts = redirects, counts
        self._urls: OrderedDict[str, str] = OrderedDict()  # of images, by their digests
        self._targets: dict[bytes, bytes] = {}

    def add(self, key: str, record: Record) -> None:
        """Follows a link."""
        if record.kind == "picture":
            self._urls.setdefault(record.digest, record.url)
            if len(self._urls) > MAX_DIGESTS:
                self._urls.popitem(last=False)
            return
        target = record.target
        if record.kind == "revisit":
            target = self._urls.get(record.digest)
            target = None if target == record.url else target
        if target is None:
            self._counts.dropped(RECORDS, key, Drop(Reason.REVISIT))
            return
        self._counts.passed(RECORDS)
        self._counts.passed(REDIRECTS)
        self._targets[rows.url_key(record.url)] = rows.url_key(target)
        if len(self._targets) > MOST_REDIRECTS:
            self.finish()

    def finish(self) -> None:
        """Writes the targets of redirects, as far as this archive contains them."""
        for source, target in self._targets.items():
            for _ in range(MOST_HOPS):
                target = self._targets.get(target, target)
            self._redirects.add(target[0], target + source)
        self._targets.clear()


def follow_log(stream: Iterable[Row], follower: LinkFollower) -> None:
    """Follows the links of an archive's logs, which are in order."""
    for _, value in stream:
        link = _decode_link(value)
        follower.add(
            link.key,
            Record(
                archive="",
                offset=0,
                url=link.url,
                kind=link.kind,
                target=link.target,
                digest=link.digest,
            ),
        )
    follower.finish()
