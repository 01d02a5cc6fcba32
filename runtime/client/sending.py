"""Sends calls, again if the service is busy: the clients, of which one is for asyncio.

One waits for each response and sends batches from threads; the other waits without a thread, and
each exchange runs in one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from vlmill.runtime.client import calls
from vlmill.runtime.client.calls import Call, Limits, Plan, RegionBatch, Rows, Vector, Where
from vlmill.runtime.client.connections import Attempt, Connections, Done, Retries, try_call
from vlmill.runtime.client.forms import ImageSource
from vlmill.runtime.client.responses import ServiceError

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
CONCURRENCY = 4


class _Settings:
    """Holds what both clients are made of."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 120.0,
        retries: Retries | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency {concurrency}: expected at least 1")
        self._connections = Connections(url, token, timeout)
        self._retries, self.concurrency = retries or Retries(), concurrency


class Client(_Settings):
    """Sends requests to the service at ``url``, and repeats a request if it is busy.

    ``token`` is the service's token, ``timeout`` the seconds without a byte of a response, and
    ``concurrency`` the number of simultaneous requests of a batch. Thread-safe. Methods raise
    ServiceError for a refused request, ServiceUnreachable, an OSError, for a missing response, and
    OSError for an image file that cannot be read.
    """

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()

    def send(self, call: Call[Result]) -> Result:
        """Sends a call, and repeats it if the service is busy or the connection fails."""
        attempt = Attempt()
        while not isinstance(done := self._try(call, attempt), Done):
            time.sleep(done)
            attempt = attempt.after(done)
        return done.result

    def _try(self, call: Call[Result], attempt: Attempt) -> Done[Result] | float:
        return try_call(self._connections, self._retries, call, attempt)

    def send_all(self, many: Iterable[Call[Any]]) -> Iterator[Any]:
        """Yields the results of calls in their order; a refused call gives its ServiceError.

        At most ``concurrency`` requests are sent at the same time, and twice as many calls are
        taken ahead, so ``many`` can be endless.
        """
        waiting = deque[Future[Any]]()
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="vlmill-client") as threads:
            try:
                for call in many:
                    waiting.append(threads.submit(self._send_or_error, call))
                    if len(waiting) >= 2 * self.concurrency:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _send_or_error(self, call: Call[Any]) -> Any:
        try:
            return self.send(call)
        except ServiceError as error:
            return error

    def run(self, plan: Plan[Result]) -> Result:
        """Sends the calls of a plan, and joins their results. Raises the first error."""
        if len(plan.calls) == 1:
            return plan.join([self.send(plan.calls[0])])
        results = list[Any]()
        for result in self.send_all(plan.calls):
            if isinstance(result, ServiceError):
                raise result
            results.append(result)
        return plan.join(results)

    def about(self) -> dict[str, Any]:
        """Returns the description of the served model, and the limits of a request."""
        return self.send(calls.about())

    @cached_property
    def limits(self) -> Limits:
        """Returns the limits of a request, which the service states once."""
        return Limits.read(self.about())

    def _limits_for(self, images: Sequence[ImageSource]) -> Limits:
        return self.limits if len(images) > 1 else Limits()

    def regions(self, images: Sequence[ImageSource]) -> "pa.Table":
        """Returns the rows of the regions table; a rejected image has none.

        Raises ServiceError if all images are rejected.
        """
        if len(images) == 1:
            return self.send(calls.regions(images)).table
        return calls.join_regions(self.iter_regions(images))

    def iter_regions(self, images: Iterable[ImageSource]) -> Iterator[RegionBatch]:
        """Yields the regions of any number of images in batches, in the order of the images.

        A batch names its rejected images by their positions in ``images``, and has no table
        (None) if it has no row.
        """
        batches = calls.RegionBatches(images, self.limits)
        for result in self.send_all(batches.calls()):
            yield batches.place(result)

    def regions_parquet(self, images: Sequence[ImageSource]) -> bytes:
        """Returns a shard of the regions table, as `extract-rois run` writes it."""
        return self.send(calls.regions_parquet(images))

    def score(
        self, images: Sequence[ImageSource], texts: Sequence[str]
    ) -> list[list[float | None]]:
        """Returns the score of each image with each text; None for an unreadable one."""
        return self.run(calls.plan_scores(images, texts, self._limits_for(images)))

    def embed(
        self, images: Sequence[ImageSource] = (), texts: Sequence[str] = ()
    ) -> dict[str, list[Vector]]:
        """Returns the vectors of the images, as ``pictures``, and of the ``texts``."""
        return self.run(calls.plan_vectors(images, texts, self._limits_for(images)))

    def search(
        self,
        *,
        text: str | None = None,
        image: ImageSource | None = None,
        top: int = 10,
        where: Where | None = None,
        rerank: int | None = None,
    ) -> Rows:
        """Returns the nearest rows of the service's index; ``where`` has values by column.

        ``rerank``: how many of a text's results are sorted by the matching head of the service's
        reranker, whose logit is in their ``match``.
        """
        call = calls.search(text=text, image=image, top=top, where=where, rerank=rerank)
        return self.send(call)

    def similar(
        self,
        items: Sequence[str],
        *,
        seen: Sequence[str] = (),
        top: int = 10,
        where: Where | None = None,
    ) -> Rows:
        """Returns the items nearest to an item, or to a history whose last item was seen last."""
        return self.send(calls.similar(items, seen=seen, top=top, where=where))

    def answer(self, image: ImageSource, question: str) -> str:
        """Returns the answer to a question about an image."""
        return self.send(calls.answer(image, question))

    def attend(self, image: ImageSource, text: str) -> dict[str, Any]:
        """Returns a score, the image's regions, and the decrease of the score without each."""
        return self.send(calls.attend(image, text))

    def classify(self, image: ImageSource, text: str = "") -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of an image, or of an image with a text."""
        return self.send(calls.classify(image, text))

    def entail(self, image: ImageSource, statement: str) -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of whether an image entails a statement."""
        return self.send(calls.entail(image, statement))


class AsyncClient(_Settings):
    """Does what :class:`Client` does in coroutines, with the same arguments and errors.

    At most ``concurrency`` exchanges run at the same time, each in a thread of the client's own. A
    cancelled task stops waiting immediately, also between two attempts; the response of a request
    that was already sent is dropped. Use it in one event loop::

        async with AsyncClient("http://127.0.0.1:8080") as client:
            scores = await client.score(["a.jpg"], ["a red kite"])
    """

    _limits: Limits | None = None

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.concurrency, thread_name_prefix="vlmill-client")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._connections.close()

    async def send(self, call: Call[Result]) -> Result:
        """Sends a call, and repeats it if the service is busy or the connection fails."""
        attempt = Attempt()
        while not isinstance(done := await self._try(call, attempt), Done):
            await asyncio.sleep(done)
            attempt = attempt.after(done)
        return done.result

    async def _try(self, call: Call[Result], attempt: Attempt) -> Done[Result] | float:
        arguments = (self._connections, self._retries, call, attempt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: try_call(*arguments))

    async def send_all(self, many: Iterable[Call[Any]]) -> AsyncIterator[Any]:
        """Yields the results of calls in their order; a refused call gives its ServiceError.

        Twice ``concurrency`` calls are taken ahead, so ``many`` can be endless.
        """
        waiting = deque[asyncio.Task[Any]]()
        try:
            for call in many:
                waiting.append(asyncio.create_task(self._send_or_error(call)))
                if len(waiting) >= 2 * self.concurrency:
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()

    async def _send_or_error(self, call: Call[Any]) -> Any:
        try:
            return await self.send(call)
        except ServiceError as error:
            return error

    async def run(self, plan: Plan[Result]) -> Result:
        """Sends the calls of a plan, and joins their results. Raises the first error."""
        results = list[Any]()
        async with aclosing(self.send_all(plan.calls)) as stream:  # type: ignore[type-var]
            async for result in stream:
                if isinstance(result, ServiceError):
                    raise result
                results.append(result)
        return plan.join(results)

    async def about(self) -> dict[str, Any]:
        """Returns the description of the served model, and the limits of a request."""
        return await self.send(calls.about())

    async def limits(self) -> Limits:
        """Returns the limits of a request, which the service states once."""
        if self._limits is None:
            self._limits = Limits.read(await self.about())
        return self._limits

    async def _limits_for(self, images: Sequence[ImageSource]) -> Limits:
        return await self.limits() if len(images) > 1 else Limits()

    async def regions(self, images: Sequence[ImageSource]) -> "pa.Table":
        """Returns the rows of the regions table; a rejected image has none.

        Raises ServiceError if all images are rejected.
        """
        if len(images) == 1:
            return (await self.send(calls.regions(images))).table
        return calls.join_regions([batch async for batch in self.iter_regions(images)])

    async def iter_regions(self, images: Iterable[ImageSource]) -> AsyncIterator[RegionBatch]:
        """Yields the regions of any number of images in batches, in the order of the images.

        A batch names its rejected images by their positions in ``images``, and has no table
        (None) if it has no row.
        """
        batches = calls.RegionBatches(images, await self.limits())
        async for result in self.send_all(batches.calls()):
            yield batches.place(result)

    async def regions_parquet(self, images: Sequence[ImageSource]) -> bytes:
        """Returns a shard of the regions table, as `extract-rois run` writes it."""
        return await self.send(calls.regions_parquet(images))

    async def score(
        self, images: Sequence[ImageSource], texts: Sequence[str]
    ) -> list[list[float | None]]:
        """Returns the score of each image with each text; None for an unreadable one."""
        return await self.run(calls.plan_scores(images, texts, await self._limits_for(images)))

    async def embed(
        self, images: Sequence[ImageSource] = (), texts: Sequence[str] = ()
    ) -> dict[str, list[Vector]]:
        """Returns the vectors of the images, as ``pictures``, and of the ``texts``."""
        return await self.run(calls.plan_vectors(images, texts, await self._limits_for(images)))

    async def search(
        self,
        *,
        text: str | None = None,
        image: ImageSource | None = None,
        top: int = 10,
        where: Where | None = None,
        rerank: int | None = None,
    ) -> Rows:
        """Returns the nearest rows of the service's index; ``where`` has values by column.

        ``rerank``: how many of a text's results are sorted by the matching head of the service's
        reranker, whose logit is in their ``match``.
        """
        call = calls.search(text=text, image=image, top=top, where=where, rerank=rerank)
        return await self.send(call)

    async def similar(
        self,
        items: Sequence[str],
        *,
        seen: Sequence[str] = (),
        top: int = 10,
        where: Where | None = None,
    ) -> Rows:
        """Returns the items nearest to an item, or to a history whose last item was seen last."""
        return await self.send(calls.similar(items, seen=seen, top=top, where=where))

    async def answer(self, image: ImageSource, question: str) -> str:
        """Returns the answer to a question about an image."""
        return await self.send(calls.answer(image, question))

    async def attend(self, image: ImageSource, text: str) -> dict[str, Any]:
        """Returns a score, the image's regions, and the decrease of the score without each."""
        return await self.send(calls.attend(image, text))

    async def classify(self, image: ImageSource, text: str = "") -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of an image, or of an image with a text."""
        return await self.send(calls.classify(image, text))

    async def entail(self, image: ImageSource, statement: str) -> dict[str, Any]:
        """Returns the ``labels`` and ``probabilities`` of whether an image entails a statement."""
        return await self.send(calls.entail(image, statement))
