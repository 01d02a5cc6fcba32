"""Decides whether a request is sent again, and when.

Every request of the services computes something and changes nothing, so it can be repeated.
"""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

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
