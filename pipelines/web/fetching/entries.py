"""What a journal holds: URLs that are wanted, that wait, their outcomes; hosts and their robots."""

from dataclasses import dataclass, replace

FETCHED, NOT_MODIFIED, REDIRECTED = "fetched", "not_modified", "redirected"
SUCCESSES = (FETCHED, NOT_MODIFIED, REDIRECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlEntry:
    """A URL that is to be fetched. ``follow``: how deep links are followed from it if it is a
    page; -1: it is none that is wanted. ``source`` says how it became known (a ``Stage``'s name).
    """

    url: str
    source: str
    referrer: str | None = None
    follow: int = -1
    hops: int = 0  # redirects that have led to it
    etag: str | None = None  # of an earlier crawl
    modified: str | None = None
    alternatives: tuple[str, ...] = ()  # asked for one after the other if this one fails


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedUrl:
    """A URL whose turn comes."""

    id: int
    url: str
    source: str
    follow: int
    hops: int
    attempts: int
    etag: str | None
    modified: str | None
    referrer: str | None = None
    alternatives: tuple[str, ...] = ()

    def again(self) -> "QueuedUrl":
        """The same after one more attempt."""
        return replace(self, attempts=self.attempts + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a URL: the columns of ``outcomes`` that an answer decides.

    ``may_retry``: a later attempt may end otherwise.
    """

    outcome: str
    detail: str | None = None
    may_retry: bool = False
    status: int | None = None
    target: str | None = None
    media_type: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    etag: str | None = None
    modified: str | None = None
    fetched_at: float | None = None  # seconds since 1970
    seconds: float | None = None
    address: str | None = None

    @property
    def is_reject(self) -> bool:
        """Whether it gave no content and leads nowhere."""
        return self.outcome not in SUCCESSES


@dataclass(slots=True, kw_only=True)
class HostRow:
    """What the journal knows of a host; times are seconds since 1970.

    ``last_at`` is when the last request to it began, ``not_before`` until when it wants to be left
    alone.
    """

    id: int
    name: str
    last_at: float
    not_before: float
    failures: int
    backoffs: int
    seconds: float
    bytes: int


@dataclass(slots=True, kw_only=True)
class OriginRow:
    """What a host's scheme and port say of robots: bytes of an answer that was kept, or None.

    ``url`` and ``hops``: to where redirects of the one that is asked for have led so far.
    """

    origin: str
    robots: bytes | None = None
    tdm: bytes | None = None
    url: str | None = None
    hops: int = 0
    expires: float = 0.0
