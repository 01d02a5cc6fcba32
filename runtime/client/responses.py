"""Defines the responses of a service, and the error for a request that it has refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmill.schemas.plain_json import parse_json


@dataclass(frozen=True, kw_only=True)
class Response:
    """Holds the status, the content and the headers, by lower-case names, of a response."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class ServiceError(Exception):
    """Raised if a service has refused a request.

    ``status`` is that of HTTP, ``reason`` is for programs and ``message`` a line for people.
    ``rejects`` are the rejected images, if all images of a request are.
    """

    def __init__(
        self, status: int, reason: str, message: str, rejects: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.rejects = list(rejects)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.reason, self.message, self.rejects)


def make_error(response: Response) -> ServiceError:
    """Returns the error for a response without a result."""
    try:
        content = parse_json(response.content)
        words = (str(content["reason"]), str(content["error"]))
        return ServiceError(response.status, *words, content.get("rejects", ()))
    except (AttributeError, KeyError, TypeError, ValueError):  # of a proxy, for example
        text = " ".join(response.content[:200].decode("utf-8", "replace").split())
        return ServiceError(response.status, "unknown", text or "a response without a message")
