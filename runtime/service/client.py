"""Provides a small client for the services, with the standard library and pyarrow only::

    client = ServiceClient("http://127.0.0.1:8080")
    table = client.regions(["a.jpg", "b.jpg"])

Images are paths or bytes. If a service is busy (429) or lost a worker (503), the client retries
after the requested time. A refused request raises :class:`ServiceError`.
"""

import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmill.schemas.plain_json import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

ImageSource = str | os.PathLike[str] | bytes
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
JSON = "application/json"
AGAIN = (429, 503)


class ServiceError(Exception):
    """Raised if a service has refused a request, with its status, its reason and its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, kw_only=True)
class Response:
    """Holds the response of a service."""

    content: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class ServiceClient:
    """Sends requests to the service at ``url``; ``token`` is its token."""

    url: str
    token: str | None = None
    timeout: float = 120.0
    tries: int = 5

    def regions(self, images: Sequence[ImageSource]) -> "pa.Table":
        """Returns the rows of the regions table; an image that was rejected has none."""
        import pyarrow as pa

        answer = self.ask("/v1/regions", images=images, accept=ARROW)
        return pa.ipc.open_stream(answer.content).read_all()

    def regions_parquet(self, images: Sequence[ImageSource]) -> bytes:
        """Returns a shard of the regions table, as `extract-rois run` writes it."""
        return self.ask("/v1/regions", images=images, accept=PARQUET).content

    def score(self, images: Sequence[ImageSource], texts: Sequence[str]) -> list[list[float]]:
        """Returns the score of each image with each text."""
        scores: list[list[float]] = self.request_json("/v1/score", images, {"texts": texts})[
            "scores"
        ]
        return scores

    def embed(
        self, images: Sequence[ImageSource] = (), texts: Sequence[str] = ()
    ) -> dict[str, list[list[float]]]:
        """Returns the vectors of ``images`` and of ``texts``."""
        vectors = self.request_json("/v1/embed", images, {"texts": texts})
        return {name: vectors[name] for name in ("pictures", "texts")}

    def search(
        self, *, text: str | None = None, image: ImageSource | None = None, top: int = 10
    ) -> list[dict[str, Any]]:
        """Returns the nearest rows of the service's index."""
        words = {"top": [str(top)], "text": [] if text is None else [text]}
        answers: list[dict[str, Any]] = self.request_json(
            "/v1/search", [] if image is None else [image], words
        )["answers"]
        return answers

    def answer(self, image: ImageSource, question: str) -> str:
        """Returns the answer to a question about an image."""
        words = {"question": [question]}
        return str(self.request_json("/v1/answer", [image], words)["answer"])

    def classify(self, image: ImageSource, text: str = "") -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of an image, or of an image with a text."""
        return self.request_json("/v1/classify", [image], {"text": [text] if text else []})

    def entail(self, image: ImageSource, statement: str) -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of whether an image entails a statement."""
        return self.request_json("/v1/entail", [image], {"statement": [statement]})

    def request_json(
        self, path: str, images: Sequence[ImageSource], words: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Sends a request, and returns the JSON of the response."""
        answer = self.ask(path, images=images, words=words, accept=JSON)
        content: dict[str, Any] = parse_json(answer.content)
        return content

    def ask(
        self,
        path: str,
        *,
        images: Sequence[ImageSource] = (),
        words: Mapping[str, Sequence[str]] | None = None,
        accept: str = JSON,
    ) -> Response:
        """Sends a form, and retries if the service requests it. Raises ServiceError and OSError."""
        body, content_type = encode_form(images, words or {})
        headers = {"content-type": content_type, "accept": accept}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url.rstrip("/") + path, body, headers)
        for tries_left in reversed(range(self.tries)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    return Response(content=answer.read(), headers=dict(answer.headers))
            except urllib.error.HTTPError as error:
                pause = error.headers.get("retry-after", "")
                if error.code not in AGAIN or not tries_left or not pause.isdecimal():
                    raise refusal(error) from None
                time.sleep(int(pause))
        raise AssertionError


def refusal(error: urllib.error.HTTPError) -> ServiceError:
    """Returns the error for a response without a result."""
    try:
        content = parse_json(error.read())
        return ServiceError(error.code, content["reason"], content["error"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(error.code, "unknown", str(error.reason))


def encode_form(
    images: Sequence[ImageSource], words: Mapping[str, Sequence[str]]
) -> tuple[bytes, str]:
    """Returns a multipart form and its content-type."""
    boundary = secrets.token_hex(16)
    parts = [
        (f'form-data; name="{name}"', "text/plain; charset=utf-8", word.encode())
        for name, values in words.items()
        for word in values
    ]
    for number, image in enumerate(images):
        content = image if isinstance(image, bytes) else Path(image).read_bytes()
        about = f'form-data; name="images"; filename="{number}"'
        parts.append((about, "application/octet-stream", content))
    body = b"".join(
        f"--{boundary}\r\ncontent-disposition: {about}\r\ncontent-type: {kind}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for about, kind, content in parts
    )
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
