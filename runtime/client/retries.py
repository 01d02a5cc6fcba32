"""Sends a request once, and decides whether it is sent again, and when.

Every request of the services computes something and changes nothing, so it can be repeated.
"""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar

from vlmill.runtime.client.calls import Call
from vlmill.runtime.client.connections import Connections, ServiceUnreachable
from vlmill.runtime.client.responses import Response, ServiceError, make_error

Result = TypeVar("Result")
OK = 200

BUSY = (429, 503)  # usually with Retry-After
GATEWAY = (502, 504)  # of a proxy whose service has gone or is too slow
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds, without Retry-After


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Holds how often a request is sent at most, and the seconds that all its pauses may take."""

    tries: int = 6
    seconds: float = 120.0


def find_pause(
    retries: Retries, attempt: int, waited: float, status: int | None, retry_after: str = ""
) -> float | None:
    """Returns the seconds until a request is sent again, or None if it is not.

    ``attempt`` counts from 1, ``waited`` are the seconds of earlier pauses, and ``status`` has the
    value None for a failed connection. A service's Retry-After is never undercut. A little is added
    to it, because all clients of a busy service would otherwise return at the same moment.
    """
    if attempt >= retries.tries or (status is not None and status not in (*BUSY, *GATEWAY)):
        return None
    pause = parse_retry_after(retry_after) if status is not None else None
    if pause is None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
    pause *= 1 + random.random() / 4
    return pause if waited + pause <= retries.seconds else None


def parse_retry_after(value: str) -> float | None:
    """Returns the seconds of a Retry-After header, a number or a date; None for anything else."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


@dataclass(frozen=True, kw_only=True)
class Done(Generic[Result]):
    """Holds the result of a call."""

    result: Result


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Holds the number of an attempt, from 1, and the seconds of the pauses before it."""

    number: int = 1
    waited: float = 0.0

    def after(self, pause: float) -> "Attempt":
        """Returns the next attempt, after a pause."""
        return Attempt(number=self.number + 1, waited=self.waited + pause)


def try_call(
    connections: Connections, retries: Retries, call: Call[Result], attempt: Attempt
) -> Done[Result] | float:
    """Returns the result of a call, or the seconds until it should be sent again.

    Raises ServiceError, ServiceUnreachable, and OSError for an unreadable image.
    """
    try:
        response = connections.send(call)
    except ServiceUnreachable as error:
        pause = find_pause(retries, attempt.number, attempt.waited, None)
        if pause is None or not error.is_temporary:
            raise
        return pause
    if response.status == OK:
        return Done(result=read_response(call, response))
    retry_after = response.headers.get("retry-after", "")
    pause = find_pause(retries, attempt.number, attempt.waited, response.status, retry_after)
    if pause is None:
        raise make_error(response)
    return pause


def read_response(call: Call[Result], response: Response) -> Result:
    """Returns the result of a call from its response. Raises ServiceError for an invalid one."""
    try:
        return call.read(response)
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        message = f"{call.path}: not a response of this service: {error}"
        raise ServiceError(response.status, "bad_response", message) from error
