"""Fetches the URLs of one bucket: many hosts concurrently, each at its own rate.

Every response's record is in the archive, and its outcome in the journal, before its host gets the
next request.
"""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass

from vlmill.pipelines.web.fetching.answers import (
    BUSY_STATUSES,
    TRANSIENT,
    Judgement,
    failed_outcome,
    judge,
    retry_after_s,
)
from vlmill.pipelines.web.fetching.entries import OriginRow, Outcome, QueuedUrl, UrlEntry
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host, get_origin, is_same_site
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.turns import ROBOTS_S, Errand, Host, Permission, RobotsResponse
from vlmill.pipelines.web.fetching.warc import Parts
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, Request, referrer_for
from vlmill.runtime.net.opt_outs import tdmrep_url
from vlmill.runtime.net.robots import MAX_BYTES, robots_url
from vlmill.schemas.rejects import Reason

PAUSE_S = 0.5  # at most between two checks whether the run still exists
HOPS = 5  # redirects of a robots.txt that are followed (RFC 9309, 2.3.1.2), or a tdmrep.json
_DOWN = frozenset((*TRANSIENT, Reason.TLS_ERROR))


@dataclass(frozen=True, kw_only=True)
class Running:
    """Holds a request in flight: its host, its purpose, and its URL or origin."""

    request: Request
    host: Host
    errand: Errand
    turn: QueuedUrl | None = None
    origin: OriginRow | None = None


class Fetcher:
    """Fetches the URLs that wait in a bucket's journal, until none waits."""

    def __init__(
        self,
        journal: Journal,
        parts: Parts,
        client: Client,
        *,
        bucket: int,
        buckets: int,
        policy: PolitenessPolicy,
        scope: Scope,
        watch: Callable[[int, int], None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Sets up the fetcher of a bucket.

        At least every ``PAUSE_S``, ``watch`` receives the number of further URLs with an outcome,
        and how many of these failed.
        """
        self._journal, self._parts, self._client = journal, parts, client
        self._bucket, self._buckets = bucket, buckets
        self._manners, self._scope = policy, scope
        self._clock, self._sleep = clock, sleep
        self._watch = watch
        self._hosts: dict[int, Host] = {}
        self._turns: list[tuple[float, int]] = []  # a heap of (time, host)
        self._running: dict[int, Running] = {}
        self._unsaved: list[Host] = []  # they have responded since the last save
        self._done = self._rejected = 0

    def run(self) -> None:
        """Fetches until no URL of the bucket waits."""
        self._journal.release_hosts(self._clock())
        while True:
            self._take_hosts()
            self._start_requests()
            if not self._hosts:
                break
            for answer in self._wait():
                self._answered(answer)
            self._save()
            self._tell()
        self._journal.commit()
        self._tell()

    def _save(self) -> None:
        """Saves all outcomes; hosts that have responded get their next request only then.

        So after a kill at most the requests in flight are repeated. A store is not written for each
        response: hosts wait for the next push, which is not later than their pause.
        """
        mirror = self._journal.mirror
        if mirror is not None and (not self._unsaved or mirror.seconds_left > 0):
            self._parts.flush()
            self._journal.commit()
            return
        self._journal.save(self._parts)
        for host in self._unsaved:
            if self._hosts.get(host.row.id) is host:
                self._schedule(host)
        self._unsaved.clear()
        if self._parts.is_full:  # between two commits: all of it is journalled
            self._journal.finish_part(self._parts)

    def _tell(self) -> None:
        self._watch(self._done, self._rejected)
        self._done = self._rejected = 0

    def _wait(self) -> list[Answer]:
        pause = PAUSE_S
        if self._turns and self._client.num_free:
            pause = min(pause, max(0.0, self._turns[0][0] - self._clock()))
        if self._unsaved and self._journal.mirror is not None:
            pause = min(pause, self._journal.mirror.seconds_left)
        if self._client.num_running:
            return self._client.wait(timeout=pause)
        self._sleep(pause)
        return []

    # Hosts.

    def _take_hosts(self) -> None:
        free = self._manners.hosts_at_once - len(self._hosts)
        if free <= 0:
            return
        rows = self._journal.take_hosts(free)
        for row in rows:
            host = Host(row=row, delay_s=self._manners.delay_s)
            self._hosts[row.id] = host
            self._schedule(host)
        if rows:  # before any request: after a kill it is known which hosts may have had one
            self._journal.commit()

    def _schedule(self, host: Host) -> None:
        """Schedules a host's turn for the earliest allowed time."""
        if not host.scheduled and not host.asking and host.in_flight < self._manners.per_host:
            host.scheduled = True
            heapq.heappush(self._turns, (host.ready_at, host.row.id))

    def _leave(self, host: Host) -> None:
        if host.in_flight:
            return
        if host.closed is not None:
            number = self._journal.set_aside(host.row.id, host.closed)
            self._done += number
            self._rejected += number
        self._journal.leave_host(host.row)
        del self._hosts[host.row.id]

    def _close(self, host: Host, reason: Reason, detail: str) -> None:
        """Gives a host's waiting URLs the same outcome, once its requests have ended."""
        host.closed = failed_outcome(Outcome(outcome=reason.value), reason, detail)
        host.queue.clear()

    # Requests.

    def _start_requests(self) -> None:
        while self._turns and self._client.num_free and self._turns[0][0] <= self._clock():
            _, number = heapq.heappop(self._turns)
            host = self._hosts[number]
            host.scheduled = False
            if host.ready_at > self._clock():  # it has become slower in the meantime
                self._schedule(host)
                continue
            running = self._next(host)
            if running is not None:
                self._start(running)
            elif not host.scheduled and not host.in_flight:
                self._leave(host)

    def _start(self, running: Running) -> None:
        host = running.host
        host.in_flight += 1
        host.row.last_at = self._clock()
        host.asking = running.errand is not Errand.URL
        self._running[id(running.request)] = running
        self._client.start(running.request)
        self._schedule(host)

    def _next(self, host: Host) -> Running | None:
        """Returns the next request to a host; None if no URL of it waits, or the host must wait."""
        while host.closed is None and (turn := host.head(self._journal)) is not None:
            permission = host.permission(turn.url, self._journal, self._clock())
            if permission is None:
                return self._robots(host, turn.url)
            if (why := host.asks_too_much(self._manners)) is not None:
                self._close(host, Reason.HOST_LIMIT, why)
                break
            if host.ready_at > self._clock():  # its robots.txt requires a longer delay
                self._schedule(host)
                return None
            refusal = permission.refusal(turn.url)
            if refusal is None and not permission.knows_tdm:
                return self._tdm(host, turn.url, permission)
            host.queue.popleft()
            if refusal is None:
                request = Request(
                    url=turn.url,
                    etag=turn.etag,
                    last_modified=turn.modified,
                    referrer=referrer_for(turn.url, turn.referrer),
                    max_bytes=self._manners.max_bytes,
                )
                return Running(request=request, host=host, errand=Errand.URL, turn=turn)
            outcome = Outcome(
                outcome=refusal.reason.value,
                detail=refusal.detail or None,
                may_retry=refusal.may_retry,
            )
            self._keep(host, turn, outcome)
        return None

    def _robots(self, host: Host, url: str) -> Running:
        origin = get_origin(url)
        row = self._journal.origin(origin) or OriginRow(origin=origin)
        if row.robots is not None:  # it has expired
            row = OriginRow(origin=origin)
        request = Request(url=row.url or robots_url(url), max_bytes=self._manners.max_bytes)
        return Running(request=request, host=host, errand=Errand.ROBOTS, origin=row)

    def _tdm(self, host: Host, url: str, permission: Permission) -> Running | None:
        row = self._journal.origin(get_origin(url))
        assert row is not None, "permission of an origin that the journal does not have"
        if permission.allows(tdmrep_url(url)):
            request = Request(url=row.url or tdmrep_url(url), max_bytes=MAX_BYTES)
            return Running(request=request, host=host, errand=Errand.TDM, origin=row)
        row.tdm = RobotsResponse(status=0, content=b"").to_bytes()
        self._admit(host, row)
        return self._next(host)

    # Responses.

    def _answered(self, answer: Answer) -> None:
        running = self._running.pop(id(answer.request))
        host = running.host
        host.in_flight -= 1
        host.asking = False
        # A server receives a request after its start: counting from its end avoids short gaps.
        host.row.last_at = self._clock()
        host.row.seconds += answer.seconds
        host.row.bytes += len(answer.body)
        host.row.failures = host.row.failures + 1 if answer.failure in _DOWN else 0
        if not self._is_busy(running, answer):
            host.row.backoffs = 0
            if running.turn is not None:
                self._take(running.host, running.turn, answer)
            elif running.errand is Errand.ROBOTS:
                self._take_robots(running, answer)
            else:
                self._take_tdm(running, answer)
        if host.closed is None and host.row.failures >= self._manners.max_failures:
            detail = f"{host.row.failures} requests in a row failed, the last: {answer.failure}"
            self._close(host, Reason.HOST_FAILED, detail)
        self._journal.keep_host(host.row)
        self._unsaved.append(host)

    def _is_busy(self, running: Running, answer: Answer) -> bool:
        """Returns whether the host asks for a later attempt; the URL then continues to wait.

        A host that asks for a long pause is set aside.
        """
        if answer.failure is not None or answer.status not in BUSY_STATUSES:
            return False
        host, turn = running.host, running.turn
        host.row.backoffs += 1
        pause = self._manners.backoff_s(host.row.backoffs, retry_after_s(answer))
        host.row.not_before = self._clock() + min(pause, self._manners.max_wait_s)
        if pause > self._manners.max_wait_s:
            detail = f"status {answer.status}: the host asks for a pause of {pause:.0f} s"
            self._close(host, Reason.HOST_FAILED, detail)
            return False
        attempts = host.row.backoffs if turn is None else turn.attempts + 1
        if attempts >= self._manners.max_attempts:
            return False
        if turn is not None:
            self._journal.postponed(turn.id)
            host.queue.appendleft(turn.again())
        return True

    def _take(self, host: Host, turn: QueuedUrl, answer: Answer) -> None:
        judgement = judge(answer, turn, self._scope, max_redirects=self._manners.max_redirects)
        if answer.location is not None and judgement.outcome.target is not None:
            judgement = self._without_loop(turn, judgement)
        for entry in judgement.entries:
            self._enqueue(entry)
        record_location = None
        if judgement.record is not None:
            record_location = self._parts.add(judgement.record, timestamp=answer.started)
        self._journal.record_outcome(host.row.id, turn.id, judgement.outcome, record_location)
        self._count(judgement.outcome)
        self._try_next(turn, judgement.outcome)

    def _without_loop(self, turn: QueuedUrl, judgement: Judgement) -> Judgement:
        """Returns the failure of a redirect that closes a circle; records it for all its URLs."""
        target = judgement.outcome.target
        assert target is not None
        loop = self._journal.redirect_loop(turn.url, target)
        if not loop:
            return judgement
        detail = f"redirects in a circle of {len(loop) + 1}; cookies are not kept"
        outcome = failed_outcome(judgement.outcome, Reason.TOO_MANY_REDIRECTS, detail)
        self._journal.break_loop(loop, outcome)
        self._rejected += len(loop)
        return Judgement(outcome=outcome)

    def _try_next(self, turn: QueuedUrl, outcome: Outcome) -> None:
        """Queues the next address of an image whose current address failed."""
        if outcome.is_reject and turn.alternatives:
            url, *rest = turn.alternatives
            self._enqueue(
                UrlEntry(
                    url=url,
                    source=turn.source,
                    referrer=turn.referrer,
                    follow=turn.follow,
                    alternatives=tuple(rest),
                )
            )

    def _keep(self, host: Host, turn: QueuedUrl, outcome: Outcome) -> None:
        self._journal.record_outcome(host.row.id, turn.id, outcome, None)
        self._count(outcome)
        self._try_next(turn, outcome)

    def _count(self, outcome: Outcome) -> None:
        self._done += 1
        self._rejected += outcome.is_reject

    def _enqueue(self, entry: UrlEntry) -> None:
        bucket = assign_bucket(get_host(entry.url), self._buckets)
        if bucket == self._bucket:
            self._journal.add(entry, max_pages=self._scope.max_pages_per_host)
        else:
            self._journal.outbox.send(bucket, entry)

    def _take_robots(self, running: Running, answer: Answer) -> None:
        row = running.origin
        assert row is not None
        if self._leads_on(running.host, row, answer):
            return
        if answer.location is not None and row.hops < HOPS:
            # That host's politeness policy would apply; unknown permission counts as forbidden.
            response = RobotsResponse(status=0, content=b"", detail="robots.txt is on another site")
        elif answer.failure is not None and not answer.status:
            response = RobotsResponse(
                status=0, content=b"", failure=answer.failure.value, detail=answer.detail
            )
        elif answer.failure is not None:
            response = RobotsResponse(status=0, content=b"", detail=f"robots.txt: {answer.failure}")
        else:
            response = RobotsResponse(status=answer.status, content=answer.content[:MAX_BYTES])
        row.robots, row.expires = response.to_bytes(), self._clock() + ROBOTS_S
        row.url, row.hops = None, 0
        self._admit(running.host, row)

    def _take_tdm(self, running: Running, answer: Answer) -> None:
        row = running.origin
        assert row is not None
        if self._leads_on(running.host, row, answer):
            return
        content = answer.content if answer.failure is None and answer.status == 200 else b""
        row.tdm = RobotsResponse(status=answer.status, content=content).to_bytes()
        self._admit(running.host, row)

    def _leads_on(self, host: Host, row: OriginRow, answer: Answer) -> bool:
        """Returns whether a response redirects within the site; the target is requested next."""
        if answer.location is None or row.hops >= HOPS:
            return False
        if not is_same_site(get_host(answer.location), host.row.name):
            return False
        row.url, row.hops = answer.location, row.hops + 1
        self._journal.keep_origin(host.row.id, row)
        return True

    def _admit(self, host: Host, row: OriginRow) -> None:
        self._journal.keep_origin(host.row.id, row)
        host.admit(row.origin, Permission(row))
        # Checked when the permission arrives: the host's next turn is only after the delay.
        if (why := host.asks_too_much(self._manners)) is not None:
            self._close(host, Reason.HOST_LIMIT, why)
