"""Searches an index in the front process of a service, and replaces it by a new one meanwhile.

A search that takes a millisecond or two is run immediately, since a thread would need as long to
start, and so are stored neighbours looked up. Other searches are run in threads, waiting ones
together. A request is answered by the index that was current when its search began.
"""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Response
from numpy.typing import NDArray

from vlmill.inference.search.index import MEASURED_TOP, SETTINGS, SearchIndex, open_index
from vlmill.inference.search.items import Hit, ItemIndex, Lookup, encode_text
from vlmill.inference.service.questions import SIMILAR, Question
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.row_index import ABSENT, IdIndex
from vlmill.runtime.service.logs import log
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

QUICK_SECONDS = 0.002  # of a search that is run immediately
FEW = 100  # results, with the omitted ones
AT_ONCE = 64  # requests that are searched together
SHOWN = ("type", "vectors", "of", "width", "variant", "recall_at_10", "recall_of_queries")
BATCH_ROWS = 65_536  # of pairs


class Captions:
    """Holds the captions of a table of pairs by image: their bytes, the ids, and 16 bytes a pair.

    Raises InputError for a table without a caption of an image.
    """

    def __init__(self, pairs: str | Path, flag: str = "--pairs") -> None:
        ids, texts = list[pa.Array](), list[pa.Array]()
        columns = ["image_id", "text"]
        for batch in iter_batches(pairs, PAIRS, columns=columns, batch_rows=BATCH_ROWS, flag=flag):
            rows = batch.filter(pc.is_valid(batch.column("image_id")))
            ids.append(rows.column("image_id").cast(pa.large_string()))
            texts.append(rows.column("text").cast(pa.large_string()))
        if not sum(map(len, ids)):
            raise InputError(f"{flag} {pairs}: no row has an image; give a table of pairs")
        self._index, self._texts = IdIndex(pa.concat_arrays(ids)), pa.concat_arrays(texts)

    def add_to(self, answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns rows of search results with a ``caption`` if they have an image and no text.

        An image with several captions gets the first one of the table.
        """
        ids = [str(row.get("image_id", "")) for row in answers]
        numbers = self._index.find(ids)
        return [
            {**row, "caption": self._texts[int(number)].as_py()}
            if number != ABSENT and "text" not in row
            else dict(row)
            for row, number in zip(answers, numbers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Holds a request that waits for a search; ``vector`` [P] is the query of a text or image."""

    question: Question
    vector: NDArray[np.float32] | None = None
    future: "asyncio.Future[bytes] | None" = None

    @property
    def is_light(self) -> bool:
        """Returns whether it is one search without a filter, for few results."""
        question = self.question
        few = len(question.items) <= 1 and question.top + len(question.excluded) <= FEW
        return few and not question.where


class ServedIndex:
    """Holds the current index of a folder. Raises InputError if it has none.

    ``seconds``: how often the folder is looked at; ``limit``: the number of waiting requests;
    ``captions``: of the index's images, which are added to results.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float = 10.0,
        limit: int = 256,
        captions: Captions | None = None,
    ) -> None:
        self._folder, self._seconds, self._limit = folder, seconds, limit
        self._captions = captions
        self._stamp = self._read_stamp()
        self._use(ItemIndex(open_index(folder)))
        self._waiting: list[Task] = []
        self._free = max(1, all_cores() // 2)
        self._threads = ThreadPoolExecutor(
            self._free, thread_name_prefix="searching", initializer=use_one_thread
        )
        self._stopped = threading.Event()
        self.num_loaded, self.num_refused, self._refusal = 1, 0, ""

    def _use(self, items: ItemIndex) -> None:
        use_one_thread()
        query, seconds = items.index.vectors(np.zeros(1, dtype=np.int64)), list[float]()
        for _ in range(3):
            begin = time.thread_time()
            items.index.nearest(query, MEASURED_TOP)
            seconds.append(time.thread_time() - begin)
        self._is_quick, self._items = min(seconds) < QUICK_SECONDS, items

    @property
    def about(self) -> dict[str, Any]:
        """Returns the description of the index."""
        index = self._items.index
        values = {name: index.settings[name] for name in SHOWN if name in index.settings}
        return {**values, "columns": index.columns}

    def watch(self, metrics: Metrics) -> None:
        """Shows the index in the metrics, and starts to look for a new one."""
        metrics.watch("index_vectors", "Vectors of the index.", lambda: len(self._items))
        metrics.watch("index_loads", "Times that an index was loaded.", lambda: self.num_loaded)
        metrics.watch(
            "index_refusals", "New indexes that could not be used.", lambda: self.num_refused
        )
        metrics.watch("index_waiting", "Requests that wait for it.", lambda: len(self._waiting))
        threading.Thread(target=self._keep_current, name="index", daemon=True).start()

    async def ask(
        self, question: Question, deadline: float, *, vector: NDArray[np.float32] | None = None
    ) -> Response:
        """Returns the response to a search. Raises RequestRefused."""
        task = Task(question=question, vector=vector)
        content = None
        if (
            self._captions is None
        ):  # captions are read from a file, which only a thread may wait for
            content = answer_now(self._items, task, may_search=self._is_quick)
        if content is not None:
            return Response(content, media_type="application/json")
        if len(self._waiting) >= self._limit:
            raise RequestRefused(429, "busy", "the queue is full; retry later", retry_after=1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append(dataclasses.replace(task, future=future))
        self._begin(loop)
        try:
            content = await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise RequestRefused(
                503, "too_slow", "not searched in time; retry later", retry_after=1
            ) from None
        return Response(content, media_type="application/json")

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Searches the waiting requests if a thread is free."""
        if not self._free or not self._waiting:
            return
        batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
        self._free -= 1
        self._threads.submit(self._run, batch, loop)

    def _run(self, batch: Sequence[Task], loop: asyncio.AbstractEventLoop) -> None:
        """Searches a batch in a thread, and hands the outcomes to the event loop."""
        outcomes: Sequence[bytes | Exception]
        try:
            outcomes = answer_batch(self._items, batch, self._captions)
        except Exception as error:
            outcomes = [error] * len(batch)

        def set_results() -> None:
            self._free += 1
            for task, outcome in zip(batch, outcomes, strict=True):
                if task.future is None or task.future.done():  # its client already has a refusal
                    continue
                if isinstance(outcome, Exception):
                    task.future.set_exception(outcome)
                else:
                    task.future.set_result(outcome)
            self._begin(loop)

        loop.call_soon_threadsafe(set_results)

    def _keep_current(self) -> None:
        while not self._stopped.wait(self._seconds):
            self.refresh()

    def refresh(self) -> None:
        """Loads the index of the folder if it is another one. One that cannot be used is logged,
        and the current one stays.
        """
        begin = time.monotonic()
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            index = open_index(self._folder)
            require_same_model(self._items.index, index)
            items = ItemIndex(index)
        except (InputError, OSError) as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                self.num_refused += 1
                log("index_refused", error=self._refusal)
            return
        self._use(items)
        self._stamp, self._refusal = stamp, ""
        self.num_loaded += 1
        log("index_loaded", vectors=len(items), seconds=round(time.monotonic() - begin, 3))

    def _read_stamp(self) -> bytes:
        """Returns the settings as they are in the folder, which name the files' digests."""
        try:
            return to_path(self._folder / SETTINGS).read_bytes()
        except OSError as error:
            raise InputError(
                f"--index {self._folder} has no index ({error.strerror}); build one with "
                "`train-vl search --vectors TABLE --save-index DIR`"
            ) from None

    def stop(self) -> None:
        """Stops looking for a new index."""
        self._stopped.set()


def use_one_thread() -> None:
    """Makes FAISS use only the calling thread: requests are searched concurrently."""
    import faiss

    faiss.omp_set_num_threads(1)


def require_same_model(current: SearchIndex, other: SearchIndex) -> None:
    """Raises InputError for an index of another model's vectors: the workers' would not fit."""
    for name in ("weights_sha256", "width"):
        if current.settings[name] != other.settings[name]:
            raise InputError(
                "the new index has vectors of another checkpoint; restart the service with that "
                "checkpoint"
            )


def answer_now(items: ItemIndex, task: Task, *, may_search: bool) -> bytes | None:
    """Returns the JSON of a response that needs few steps, else None. Raises RequestRefused."""
    if not task.is_light:
        return None
    lookup, missing = make_lookup(items, task)
    hits = items.find_stored(lookup)
    if hits is None and may_search:
        (hits,) = items.find([lookup])
    return None if hits is None else encode_answers(items, task, lookup, missing, hits)


def answer_batch(
    items: ItemIndex, batch: Sequence[Task], captions: Captions | None = None
) -> list[bytes | Exception]:
    """Searches for a batch: the JSON of each response, or its refusal."""
    lookups, outcomes = dict[int, tuple[Lookup, list[str]]](), dict[int, bytes | Exception]()
    for number, task in enumerate(batch):
        try:
            lookups[number] = make_lookup(items, task)
        except RequestRefused as why:
            outcomes[number] = why
    results = items.find([lookup for lookup, _ in lookups.values()])
    for (number, (lookup, missing)), hits in zip(lookups.items(), results, strict=True):
        outcomes[number] = encode_answers(items, batch[number], lookup, missing, hits, captions)
    return [outcomes[number] for number in range(len(batch))]


def encode_answers(
    items: ItemIndex,
    task: Task,
    lookup: Lookup,
    missing: Sequence[str],
    hits: Sequence[Hit],
    captions: Captions | None = None,
) -> bytes:
    """Returns the JSON of a response; with ``captions``, which are read from their table."""
    if captions is None:
        rows = items.encode(hits, lookup)
    else:
        rows = encode_text(captions.add_to(items.rows(hits, lookup)))
    more = f', "missing": {encode_text(missing)}' if task.question.method == SIMILAR else ""
    return f'{{"answers": {rows}{more}}}'.encode()


def make_lookup(items: ItemIndex, task: Task) -> tuple[Lookup, list[str]]:
    """Returns the lookup of a request, and the missing items. Raises RequestRefused."""
    question = task.question
    try:
        if task.vector is not None:
            allowed = items.mask(question.where)
            queries = np.asarray(task.vector, np.float32)[None]
            return Lookup(queries=queries, top=question.top, allowed=allowed), []
        lookup, missing = items.lookup(
            question.items, question.top, excluded=question.excluded, where=question.where
        )
    except InputError as error:
        raise bad_request(str(error), "no_such_column") from None
    if not lookup.sources:
        raise RequestRefused(404, "no_such_item", "the index has none of the items")
    return lookup, missing
