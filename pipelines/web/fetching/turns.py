"""Schedules a host that is being fetched: the next URL, and the earliest time."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from vlmill.pipelines.web.fetching.answers import TRANSIENT
from vlmill.pipelines.web.fetching.entries import HostRow, OriginRow, Outcome, QueuedUrl
from vlmill.pipelines.web.fetching.hosts import get_origin
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.runtime.net.opt_outs import tdmrep_reserves
from vlmill.runtime.net.robots import MAX_BYTES, Robots, read_robots
from vlmill.schemas.rejects import Reason

QUEUE = 32  # URLs of a host in memory; the others wait in the journal
ROBOTS_S = 86_400.0  # how long a robots.txt is valid (RFC 9309, 2.4)


class Errand(Enum):
    """Names the purpose of a request."""

    URL = "url"
    ROBOTS = "robots"
    TDM = "tdm"


class RobotsResponse(msgspec.Struct, array_like=True, frozen=True):
    """Holds the response to a request for robots.txt or tdmrep.json, as the journal stores it.

    ``failure`` is a reason if the request did not even return a status.
    """

    status: int
    content: bytes
    failure: str | None = None
    detail: str | None = None

    def to_bytes(self) -> bytes:
        """Returns the response as bytes."""
        return msgspec.msgpack.encode(self)


_decode_response = msgspec.msgpack.Decoder(RobotsResponse).decode


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Holds the reason why a URL is not requested."""

    reason: Reason
    detail: str
    may_retry: bool


class Permission:
    """Holds the rules of an origin for this crawler."""

    def __init__(self, row: OriginRow) -> None:
        assert row.robots is not None
        response = _decode_response(row.robots)
        self._said = response
        self._robots: Robots = read_robots(response.status, response.content[:MAX_BYTES])
        self.knows_tdm = row.tdm is not None
        self._tdm = b"" if row.tdm is None else _decode_response(row.tdm).content
        self.expires = row.expires

    @property
    def crawl_delay_s(self) -> float:
        """Returns the seconds between two requests that the origin asks for; 0 by default."""
        return self._robots.crawl_delay or 0.0

    def refusal(self, url: str) -> Refusal | None:
        """Returns why ``url`` may not be fetched, None if it may."""
        response = self._said
        if response.failure is not None:
            detail = f"robots.txt: {response.detail or 'no answer'}"
            reason = Reason(response.failure)
            return Refusal(reason=reason, detail=detail, may_retry=reason in TRANSIENT)
        if not self._robots.allows(url):
            is_busy = response.status >= 500 or response.status in (0, 429)
            detail = f"robots.txt: status {response.status}" if response.status and is_busy else ""
            detail = response.detail or detail
            return Refusal(reason=Reason.ROBOTS, detail=detail, may_retry=is_busy)
        if self._robots.forbids_training(url):
            return Refusal(reason=Reason.NO_AI, detail="by robots.txt", may_retry=False)
        if self._tdm and tdmrep_reserves(self._tdm, url):
            return Refusal(reason=Reason.TDM_RESERVED, detail="by tdmrep.json", may_retry=False)
        return None

    def allows(self, url: str) -> bool:
        """Returns whether robots.txt allows fetching ``url``."""
        return self._said.failure is None and self._robots.allows(url)


@dataclass(kw_only=True)
class Host:
    """Holds a host that URLs are being fetched from; times are seconds since 1970."""

    row: HostRow
    delay_s: float
    in_flight: int = 0
    scheduled: bool = False  # its next turn is in the fetcher's list
    asking: bool = False  # for robots.txt or tdmrep.json: URLs wait for the response
    closed: Outcome | None = None  # the outcome of all its waiting URLs when it is released
    queue: deque[QueuedUrl] = field(default_factory=deque)
    last_id: int = 0  # of the last URL that was read from the journal
    permissions: dict[str, Permission] = field(default_factory=dict)

    @property
    def ready_at(self) -> float:
        """Returns when the next request may begin; the delay also counts from the last response.

        A closed host has no further request, and is released immediately: its delay may be an
        hour, and a crawl ends only when its last host is released.
        """
        if self.closed is not None:
            return 0.0
        return max(self.row.last_at + self.delay_s, self.row.not_before)

    def head(self, journal: Journal) -> QueuedUrl | None:
        """Returns the next URL in the queue; None if the queue is empty."""
        if not self.queue:
            self.queue.extend(journal.queue(self.row.id, self.last_id, QUEUE))
            if self.queue:
                self.last_id = self.queue[-1].id
        return self.queue[0] if self.queue else None

    def permission(self, url: str, journal: Journal, now: float) -> Permission | None:
        """Returns the permissions of the origin of ``url``; None if they are missing or expired."""
        origin = get_origin(url)
        known = self.permissions.get(origin)
        if known is None and (row := journal.origin(origin)) is not None and row.robots is not None:
            known = self.admit(origin, Permission(row))
        return known if known is not None and known.expires > now else None

    def admit(self, origin: str, permission: Permission) -> Permission:
        """Stores an origin's permissions; the host keeps the longest delay of its origins."""
        self.permissions[origin] = permission
        self.delay_s = max(self.delay_s, permission.crawl_delay_s)
        return permission

    def asks_too_much(self, policy: PolitenessPolicy) -> str | None:
        """Returns why the host is excluded for its delay, time or bytes, None if it is not."""
        if self.delay_s > max(policy.max_delay_s, policy.delay_s):
            return f"its robots.txt asks for {self.delay_s:g} s between requests"
        if self.row.seconds > policy.max_host_s:
            return f"its answers took {self.row.seconds:.0f} s"
        if self.row.bytes > policy.max_host_bytes:
            return f"its answers had {self.row.bytes} bytes"
        return None
