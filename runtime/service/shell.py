"""Defines the application that all services share; their endpoints are added to it.

``/`` is the page; ``/healthz`` reports that the front process responds and feeds its workers,
``/readyz`` that a worker is ready and no stop was requested, ``/metrics`` the counters,
``/v1/about`` the served model. Request bodies are read and parsed with bounded memory.
"""

import asyncio
import io
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from vlmill import __version__
from vlmill.runtime.service.bodies import (
    Form,
    RequestImage,
    fetch_images,
    read_form,
    require_max_images,
)
from vlmill.runtime.service.guard import ACCOUNT, DEADLINE, HOLD, Guard
from vlmill.runtime.service.logs import WRITER, log
from vlmill.runtime.service.metrics import Metrics, resident_bytes
from vlmill.runtime.service.openapi import STRING, ServiceApplication, json_response, object_schema
from vlmill.runtime.service.overload import Forecast, make_forecast
from vlmill.runtime.service.page.files import PageFile, read_page_files
from vlmill.runtime.service.queue import BatchQueue, Item
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.workers import Plan, Watcher, Worker, fail_item

LARGE_BYTES = 2**20
SMALL_BYTES = 2**12  # parsed in less time than another thread needs to start
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
        if len(body) <= SMALL_BYTES:
            return self._parse(content_type, body, words=words, most_images=self._max_images)
        if len(body) <= LARGE_BYTES:
            return await self._run(content_type, body, words)
        async with self._large:
            return await self._run(content_type, body, words)

    async def _run(self, content_type: str, body: bytes, words: Sequence[str]) -> Form:
        def parse() -> Form:
            return self._parse(content_type, body, words=words, most_images=self._max_images)

        return await asyncio.get_running_loop().run_in_executor(self._threads, parse)


PAGE_RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FETCHERS = 8
URLS = "urls"  # the field that names images


@dataclass(kw_only=True)
class Shell:
    """Provides the functions of endpoints: they read a request, use the workers, and respond."""

    settings: ServiceSettings
    metrics: Metrics = field(default_factory=Metrics)
    workers: list[Worker] = field(default_factory=list)
    is_draining: bool = False

    def __post_init__(self) -> None:
        self.queue = BatchQueue(self.settings.queue)
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetching")
        self._parser = BodyParser(self.settings.max_images)
        watch = self.metrics.watch
        watch("queue_items", "Waiting images or questions.", lambda: len(self.queue))
        watch(
            "queue_limit",
            "Largest number of waiting images or questions.",
            lambda: self.settings.queue,
        )
        watch("log_lines_dropped", "Log lines dropped.", lambda: WRITER.num_dropped)
        watch("workers", "Workers.", lambda: len(self.workers))
        watch("workers_ready", "Workers that are ready.", lambda: self.num_ready)
        watch(
            "resident_bytes",
            "Memory of all processes.",
            lambda: resident_bytes(w.process.pid for w in self.workers if w.process is not None),
        )

    @property
    def num_ready(self) -> int:
        """Returns the number of ready workers."""
        return sum(worker.is_ready for worker in self.workers)

    @property
    def max_fetches(self) -> int:
        """Returns the largest number of connections to other servers."""
        return FETCHERS * self.settings.max_images if self.settings.allow_urls else 0

    @property
    def about(self) -> Mapping[str, Any]:
        """Returns the first worker's description of itself; nothing without workers."""
        return self.workers[0].about if self.workers else {}

    def start(self, plans: Sequence[Plan]) -> None:
        """Starts the workers, and returns when all are ready. Raises InputError or OSError."""
        watcher = Watcher(batch_computed=self._batch_computed, event=self._event)
        for plan in plans:
            self.workers.append(Worker(plan, self.queue, self.settings, watcher))
        try:
            connections = [worker.start() for worker in self.workers]
            for worker, connection in zip(self.workers, connections, strict=True):
                worker.wait_until_ready(connection)
            for worker, connection in zip(self.workers, connections, strict=True):
                worker.feed(connection)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the workers; waiting items are refused."""
        for worker in self.workers:
            worker.stop()
        for item in self.queue.drain():
            if item.future.set_running_or_notify_cancel():
                fail_item(item, RequestRefused(503, "stopping", "the service is stopping"))

    def list_stopped_feeders(self) -> list[str]:
        """Returns the names of the workers whose feeding thread has stopped."""
        return [worker.plan.name for worker in self.workers if not worker.is_fed]

    def forecast(self) -> Forecast:
        """Returns when the workers will reach the items of the queue."""
        return make_forecast([worker.load for worker in self.workers if worker.is_ready])

    def require_time(self, request: Request) -> None:
        """Raises RequestRefused if a request would probably miss its deadline in the queue."""
        deadline: float = request.scope[DEADLINE]
        seconds_left, forecast = deadline - time.monotonic(), self.forecast()
        if not forecast.is_in_time(self.queue.weight, seconds_left):
            raise too_busy(forecast, self.queue.weight, seconds_left)

    def _batch_computed(self, num_items: int, seconds: float) -> None:
        """Counts a batch, and refuses the items of the queue that will miss their deadlines."""
        self.metrics.computed(num_items, seconds)
        now, forecast = time.monotonic(), self.forecast()
        late = self.queue.shed(
            lambda item, weight: forecast.is_in_time(weight, item.deadline - now)
        )
        for item in late:
            fail_item(item, too_busy(forecast, self.queue.weight, item.deadline - now))

    def _event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "worker_started":
            self.metrics.restarts.inc()
        if name == "error":
            self.metrics.errors.inc()
        log(name, **fields)

    async def form(
        self, request: Request, *, words: Sequence[str] = (), needs_worker: bool = True
    ) -> Form:
        """Reads a request's body and fetches images that it names by URL. Raises RequestRefused,
        also if a request that ``needs_worker`` would be late.
        """
        require_query(request, ())
        if needs_worker:
            self.require_time(request)  # before the body is read
        body = await read_body(request)
        content_type = request.headers.get("content-type", "")
        form = await self._parser.parse(content_type, body, words=(*words, URLS))
        del body
        urls = form.words.pop(URLS, [])
        if urls:
            form.images += await self._fetched(request, urls)
            require_max_images(form.images, self.settings.max_images)
        account(request)["pictures"] = len(form.images)
        return form

    async def _fetched(self, request: Request, urls: Sequence[str]) -> list[RequestImage]:
        settings = self.settings
        if not settings.allow_urls:
            raise RequestRefused(403, "urls_off", "this service fetches no URLs; send the images")
        require_max_images(urls, settings.max_images)
        hold: Callable[[int], None] = request.scope[HOLD]
        hold(settings.max_bytes)
        # Separate threads: slow remote servers must not block those that read and encode.
        loop = asyncio.get_running_loop()
        images = await loop.run_in_executor(self._fetchers, fetch_images, urls, settings)
        contents = {id(image.content): len(image.content) for image in images}
        hold(sum(contents.values()) - settings.max_bytes)
        return images

    async def ask(self, request: Request, payloads: Sequence[Any], *, weight: int = 1) -> list[Any]:
        """Makes the workers compute, and returns their results in order; each item weighs
        ``weight``.

        Raises RequestRefused if the queue is full or would take too long, if results are late, and
        if a worker was lost.
        """
        deadline = request.scope[DEADLINE]
        items = [Item(payload=payload, weight=weight, deadline=deadline) for payload in payloads]
        if not items:
            return []
        self.require_time(request)
        if not self.queue.put(items):
            raise RequestRefused(
                429,
                "busy",
                "the queue is full; retry later",
                retry_after=self.forecast().retry_after(self.queue.weight, 0.0),
            )
        loop = asyncio.get_running_loop()
        results = asyncio.gather(*(asyncio.wrap_future(item.future) for item in items))
        # The error of an abandoned task is never read, which asyncio would report.
        results.add_done_callback(lambda done: done.cancelled() or done.exception())
        gone = loop.create_task(hung_up(request))
        try:
            left = request.scope[DEADLINE] - loop.time()
            either: set[asyncio.Future[Any]] = {results, gone}
            await asyncio.wait(either, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                return list(results.result())
            if gone.done():
                raise RequestRefused(503, "gone", "the client has disconnected")
            raise RequestRefused(
                503,
                "too_slow",
                f"not computed within {self.settings.seconds:g} seconds; retry later",
                retry_after=self.forecast().retry_after(self.queue.weight, 0.0),
            )
        finally:
            gone.cancel()
            for item in items:
                item.future.cancel()
            if not results.done():
                results.cancel()


def too_busy(forecast: Forecast, weight: float, seconds_left: float) -> RequestRefused:
    """Returns the refusal of a request that would probably miss its deadline."""
    return RequestRefused(
        429,
        "busy",
        f"the queue takes about {forecast.seconds(weight):.0f} seconds, too long for the deadline "
        "of the request; retry later",
        retry_after=forecast.retry_after(weight, seconds_left),
    )


async def hung_up(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def account(request: Request) -> dict[str, Any]:
    """Records further fields of a request for the log."""
    noted: dict[str, Any] = request.scope[ACCOUNT]
    return noted


def require_query(request: Request, known: Sequence[str]) -> None:
    """Raises RequestRefused for an unknown or repeated parameter."""
    if not request.scope.get("query_string"):
        return
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known or names.count(name) > 1:
            there = f"known are {', '.join(known)}" if known else "none is known"
            raise bad_request(f"unknown or repeated parameter {name[:80]!r}; {there}")


def new_application(
    shell: Shell, title: str, description: str, about: Callable[[], Mapping[str, Any]]
) -> ServiceApplication:
    """Creates the application with the paths that all services have."""
    application = ServiceApplication(
        title=title,
        description=description,
        version=__version__,
        docs_url=None,  # its page would load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to any host in the request
    )

    @application.exception_handler(RequestRefused)
    async def refused(request: Request, why: Exception) -> Response:
        assert isinstance(why, RequestRefused)
        account(request)["reason"] = why.reason
        content = why.content(request.scope["vlmill.id"])
        return JSONResponse(content, status_code=why.status, headers=why.headers())

    @application.exception_handler(HTTPException)
    async def other(request: Request, why: Exception) -> Response:
        assert isinstance(why, HTTPException)
        messages = {404: "no such path", 405: "this path needs another method"}
        message = messages.get(why.status_code, "the request cannot be processed")
        refusal = RequestRefused(why.status_code, "bad_request", message)
        content = refusal.content(request.scope["vlmill.id"])
        return JSONResponse(content, status_code=why.status_code, headers=why.headers)

    @application.exception_handler(Exception)  # which the guard logs
    async def failed(request: Request, why: Exception) -> Response:
        return await refused(
            request, RequestRefused(500, "internal_error", "an error of the server; it is logged")
        )

    status = json_response("the status", object_schema({"status": STRING}))
    statuses: dict[int | str, Any] = {200: status, 503: status}

    @application.get(
        "/healthz",
        summary="Whether the process responds and feeds its workers",
        operation_id="healthz",
        responses=statuses,
    )
    async def healthz() -> Response:
        stopped = [] if shell.is_draining else shell.list_stopped_feeders()
        if stopped:
            status = f"workers without a feeding thread: {', '.join(stopped)}; restart the service"
            return JSONResponse({"status": status}, status_code=503)
        return JSONResponse({"status": "ok"})

    @application.get(
        "/readyz",
        summary="Whether requests will be computed",
        operation_id="readyz",
        responses=statuses,
    )
    async def readyz() -> Response:
        if shell.is_draining:
            return JSONResponse({"status": "stopping"}, status_code=503)
        if shell.workers and not shell.num_ready:
            return JSONResponse({"status": "no worker is ready"}, status_code=503)
        return JSONResponse({"status": "ready"})

    @application.get(
        "/metrics",
        summary="Counts in Prometheus's text format",
        operation_id="metrics",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(shell.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @application.get("/v1/about", summary="The served model", operation_id="about")
    async def served() -> dict[str, Any]:
        return dict(about())

    for file in read_page_files():
        add_page_file(application, file)
    return application


def add_page_file(application: FastAPI, file: PageFile) -> None:
    """Serves one of the page's files."""
    headers = {"content-security-policy": PAGE_RULES}

    async def page() -> Response:
        return Response(file.content, media_type=file.media_type, headers=headers)

    application.add_api_route(file.path, page, methods=["GET"], include_in_schema=False)


def guard_application(shell: Shell, application: FastAPI) -> Guard:
    """Wraps an application in the limits."""
    paths = {getattr(route, "path", "") for route in application.routes}
    return Guard(application, shell.settings, shell.metrics, frozenset(paths))
