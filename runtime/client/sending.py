"""Sends a call once, and decides whether it is sent again."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from vlmill.runtime.client.calls import Call
from vlmill.runtime.client.connections import Connections, ServiceUnreachable
from vlmill.runtime.client.responses import Response, ServiceError, make_error
from vlmill.runtime.client.retries import Retries, find_pause

Result = TypeVar("Result")
OK = 200


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
