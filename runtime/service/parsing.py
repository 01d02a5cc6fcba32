"""Reads and parses request bodies with bounded memory."""

import asyncio
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request

from vlmill.runtime.service.bodies import Form, read_form

LARGE_BYTES = 2**20
THREADS = 2


async def read_body(request: Request) -> bytes:
    """Returns the body of a request, without keeping a second copy of its parts."""
    body = io.BytesIO()
    async for part in request.stream():
        body.write(part)
    return body.getvalue()  # BytesIO returns its buffer, not a copy


class BodyParser:
    """Parses bodies in threads; those over 1 MiB are parsed one at a time.

    A parser needs up to nine times the size of a body's texts, and a copy of its images. Parsing
    one large body at a time bounds the memory of all parsers, for any number of requests.
    """

    def __init__(
        self, max_images: int, parse: Callable[..., Form] = read_form, threads: int = THREADS
    ) -> None:
        self._max_images, self._parse = max_images, parse
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="parsing")
        self._large = asyncio.Semaphore(1)

    async def parse(self, content_type: str, body: bytes, *, words: Sequence[str]) -> Form:
        """Returns the images and words of a body. Raises RequestRefused."""
        if len(body) <= LARGE_BYTES:
            return await self._run(content_type, body, words)
        async with self._large:
            return await self._run(content_type, body, words)

    async def _run(self, content_type: str, body: bytes, words: Sequence[str]) -> Form:
        def parse() -> Form:
            return self._parse(content_type, body, words=words, most_images=self._max_images)

        return await asyncio.get_running_loop().run_in_executor(self._threads, parse)
