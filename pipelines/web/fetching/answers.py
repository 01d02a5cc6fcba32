"""Evaluates a response to a URL: the outcome, the next URLs, and the archive record."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from vlmill.pipelines.web.archives.content import REDIRECTS, parse_charset, sniff_kind
from vlmill.pipelines.web.fetching.entries import (
    FETCHED,
    NOT_MODIFIED,
    REDIRECTED,
    Outcome,
    QueuedUrl,
    UrlEntry,
)
from vlmill.pipelines.web.fetching.pages import Scope, read_references
from vlmill.pipelines.web.fetching.stages import FETCH_IMAGES, FETCH_LINKS, FETCH_REDIRECTS
from vlmill.pipelines.web.fetching.warc import (
    IMAGE_LEVEL,
    PAGE_LEVEL,
    response_record,
    revisit_record,
)
from vlmill.runtime.net.exchange import Answer
from vlmill.runtime.net.opt_outs import first_opt_out, header_opt_outs
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

TRANSIENT = frozenset(
    (
        *(Reason.UNKNOWN_HOST, Reason.NO_CONNECTION, Reason.TIMED_OUT),
        *(Reason.BAD_RESPONSE, Reason.CUT_OFF, Reason.HOST_FAILED),
    )
)
"""Failures that may be over the next time."""
TRANSIENT_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504))
BUSY_STATUSES = frozenset((429, 503))
"""With these a host says that it is asked too much."""

_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Holds the results of a response."""

    outcome: Outcome
    entries: Sequence[UrlEntry] = ()
    record: bytes | None = None  # for the archive


def judge(answer: Answer, turn: QueuedUrl, scope: Scope, *, max_redirects: int) -> Judgement:
    """Returns the results of the response to a URL's request."""
    outcome = _facts(answer)
    if answer.failure is not None:
        return Judgement(outcome=failed_outcome(outcome, answer.failure, answer.detail))
    if answer.status == 304 and (turn.etag or turn.modified):
        record = revisit_record(
            turn.url, answer.head, timestamp=answer.started, address=answer.address or ""
        )
        outcome = replace(outcome, etag=outcome.etag or turn.etag)
        outcome = replace(outcome, modified=outcome.modified or turn.modified)
        return Judgement(outcome=replace(outcome, outcome=NOT_MODIFIED), record=record)
    if answer.status in REDIRECTS:
        judgement = _redirect(answer, turn, outcome, max_redirects)
        return replace(judgement, record=None) if scope.contents else judgement
    if answer.status != 200:
        detail = str(answer.status)
        may_retry = answer.status in TRANSIENT_STATUSES
        return Judgement(
            outcome=replace(
                outcome, outcome=Reason.BAD_STATUS.value, detail=detail, may_retry=may_retry
            )
        )
    return _content(answer, turn, outcome, scope)


def _facts(answer: Answer) -> Outcome:
    """Returns the part of the outcome that every response has."""
    headers = answer.headers
    return Outcome(
        outcome=FETCHED,
        status=answer.status or None,
        media_type=headers.get("content-type", "").partition(";")[0].strip().lower()[:100] or None,
        etag=_short(headers.get("etag")),
        modified=_short(headers.get("last-modified")),
        fetched_at=answer.started,
        seconds=answer.seconds,
        address=answer.address,
    )


def _short(value: str | None) -> str | None:
    """Returns a header's value for later conditional requests, or None if it is unusually long."""
    return value if value and len(value) <= 1_000 else None


def failed_outcome(outcome: Outcome, reason: Reason, detail: str | None) -> Outcome:
    """Returns the outcome of a URL without content, for ``reason``."""
    return replace(outcome, outcome=reason.value, detail=detail, may_retry=reason in TRANSIENT)


def _redirect(answer: Answer, turn: QueuedUrl, outcome: Outcome, max_redirects: int) -> Judgement:
    if answer.location is None:
        location = answer.headers.get("location", "no location")
        return Judgement(
            outcome=failed_outcome(outcome, Reason.BAD_URL, f"redirects to {location}")
        )
    if answer.location == turn.url:
        detail = "redirects to itself; cookies are not kept"
        return Judgement(outcome=failed_outcome(outcome, Reason.TOO_MANY_REDIRECTS, detail))
    if turn.hops >= max_redirects:
        detail = f"more than {max_redirects}, the last to {answer.location}"
        return Judgement(outcome=failed_outcome(outcome, Reason.TOO_MANY_REDIRECTS, detail))
    target = UrlEntry(
        alternatives=turn.alternatives,
        url=answer.location,
        source=FETCH_REDIRECTS.name,
        referrer=turn.url,
        follow=turn.follow,
        hops=turn.hops + 1,
    )
    return Judgement(
        outcome=replace(outcome, outcome=REDIRECTED, target=answer.location),
        entries=[target],
        record=_record(answer, turn, PAGE_LEVEL),
    )


def _content(answer: Answer, turn: QueuedUrl, outcome: Outcome, scope: Scope) -> Judgement:
    if why := first_opt_out(header_opt_outs(answer.headers)):
        return Judgement(outcome=failed_outcome(outcome, why, "by the answer's headers"))
    if not answer.content:
        return Judgement(outcome=failed_outcome(outcome, Reason.EMPTY, None))
    outcome = replace(
        outcome, bytes=len(answer.content), sha256=hashlib.sha256(answer.content).hexdigest()
    )
    declared = answer.headers.get("content-type", "")
    kind = sniff_kind(answer.content, declared)
    if kind == "picture":
        record = answer.content if scope.contents else _record(answer, turn, IMAGE_LEVEL)
        return Judgement(outcome=outcome, record=record)
    if kind is None or turn.follow < 0:
        detail = "a page instead of an image" if kind == "page" else declared[:100]
        return Judgement(outcome=failed_outcome(outcome, Reason.OTHER_TYPE, detail or None))
    references = read_references(
        answer.content, parse_charset(declared), turn.url, scope=scope, follow=turn.follow > 0
    )
    if isinstance(references, Drop):
        return Judgement(outcome=failed_outcome(outcome, references.reason, references.detail))
    images = [
        UrlEntry(url=url, source=FETCH_IMAGES.name, referrer=turn.url, alternatives=others)
        for url, *rest in references.images
        for others in [tuple(rest)]
    ]
    links = [
        UrlEntry(url=url, source=FETCH_LINKS.name, referrer=turn.url, follow=turn.follow - 1)
        for url in references.links
    ]
    return Judgement(
        outcome=outcome, entries=images + links, record=_record(answer, turn, PAGE_LEVEL)
    )


def _record(answer: Answer, turn: QueuedUrl, level: int) -> bytes:
    return response_record(
        turn.url,
        answer.head,
        answer.body,
        timestamp=answer.started,
        address=answer.address or "",
        level=level,
    )


def retry_after_s(answer: Answer) -> float | None:
    """Returns the seconds of a response's Retry-After, or None without one.

    A time in the past is ignored.
    """
    value = answer.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        seconds = parsedate_to_datetime(value).timestamp() - answer.started
        return seconds if seconds > 0 else None
    except (ValueError, TypeError, OverflowError):
        return None
