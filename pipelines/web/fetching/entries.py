"""Defines a journal's entries: queued URLs and their outcomes, hosts and their robots rules."""

from dataclasses import dataclass, replace

FETCHED, NOT_MODIFIED, REDIRECTED = "fetched", "not_modified", "redirected"
SUCCESSES = (FETCHED, NOT_MODIFIED, REDIRECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlEntry:
    """Holds a URL to fetch.

    ``follow``: how deep links are followed from it if it is a page; -1: only an image
    is accepted. ``source`` is the name of the ``Stage`` by which it became known.
    """

    url: str
    source: str
    referrer: str | None = None
    follow: int = -1
    hops: int = 0  # redirects that have led to it
    etag: str | None = None  # of an earlier crawl
    modified: str | None = None
    alternatives: tuple[str, ...] = ()  # requested one after the other if this one fails
    caption: tuple[int, str] | None = None  # the row of a table that names it, and its text


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedUrl:
    """Holds a URL that is next in its host's queue."""

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
        """Returns the same URL after one more attempt."""
        return replace(self, attempts=self.attempts + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Holds the outcome of a URL: the columns of ``outcomes`` that a response decides.

    ``may_retry``: a later attempt may have another outcome.
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
        """Returns whether the URL gave no content and redirects nowhere."""
        return self.outcome not in SUCCESSES


@dataclass(slots=True, kw_only=True)
class HostRow:
    """Holds the journal's data about a host; times are seconds since 1970.

    ``last_at`` is when the last request to it began, ``not_before`` is when it accepts requests
    again.
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
    """Holds the robots rules of a host's scheme and port: the bytes of a stored response, or None.

    ``url`` and ``hops``: the current target and the number of redirects of the pending request.
    """

    origin: str
    robots: bytes | None = None
    tdm: bytes | None = None
    url: str | None = None
    hops: int = 0
    expires: float = 0.0
