"""Bodies are read without a copy, and parsed so that what all parsers hold is bounded."""

import asyncio
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request

from vlmill.runtime.service.bodies import Form, read_form

LARGE_BYTES = 2**20
THREADS = 2


async def read_body(request: Request) -> bytes:
    """Reads a request's body; of its parts no copy is kept."""
    body = io.BytesIO()
    async for part in request.stream():
        body.write(part)
    return body.getvalue()  # which is what was written to, not a copy


class BodyParser:
    """Parses bodies in threads, of those over 1 MiB one at a time.

    A parser may hold nine times the texts of a body in addition to a copy of its images: what all
    hold is so bounded by one large body, not by the number of requests.
    """

    def __init__(
        self, max_images: int, parse: Callable[..., Form] = read_form, threads: int = THREADS
    ) -> None:
        self._max_images, self._parse = max_images, parse
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="parsing")
        self._large = asyncio.Semaphore(1)

    async def parse(self, content_type: str, body: bytes, *, words: Sequence[str]) -> Form:
        """Returns what a body says. Raises Refused."""
        if len(body) <= LARGE_BYTES:
            return await self._run(content_type, body, words)
        async with self._large:
            return await self._run(content_type, body, words)

    async def _run(self, content_type: str, body: bytes, words: Sequence[str]) -> Form:
        def parse() -> Form:
            return self._parse(content_type, body, words=words, most_images=self._max_images)

        return await asyncio.get_running_loop().run_in_executor(self._threads, parse)
