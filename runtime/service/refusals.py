"""Defines the refusal of a request and its message to the sender."""

from collections.abc import Mapping


class RequestRefused(Exception):
    """Raised for a request that gets a status of 4xx or 503 instead of a result.

    ``message`` is one line for its sender: the problem and the remedy. It reveals no files or
    settings of the server except its limits. ``reason`` is for programs.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after: int | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(status, reason, message)
        self.status, self.reason, self.message = status, reason, message
        self.retry_after, self.more = retry_after, more or {}

    def __str__(self) -> str:
        return self.message

    def content(self, request_id: str) -> dict[str, object]:
        """Returns the JSON of the answer."""
        line = " ".join(self.message.split())
        return {"error": line, "reason": self.reason, "request_id": request_id, **self.more}

    def headers(self) -> dict[str, str]:
        """Returns the headers that go with the status."""
        fields = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return fields | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def bad_request(message: str, reason: str = "bad_request") -> RequestRefused:
    """Returns the refusal of an invalid request."""
    return RequestRefused(400, reason, message)
