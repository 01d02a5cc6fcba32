"""Writes shards in the background: a separate thread encodes, writes and syncs."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from vlmill.runtime.files.shards import Shard, ShardWriter, write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.schemas.tables import REGIONS, REJECTS

# Rows that are read together: small groups make random access cheap (16 x 100 x 2048 float16 = 6.5
# MB).
ROWS_PER_GROUP = 16
# Groups and ends of shards that wait for the thread: beyond that the network waits, so that memory
# does not grow. Syncing a shard of 400 MB takes about as long as a fast GPU needs for six groups.
TASKS_WAITING = 8


class Background:
    """Runs tasks one after another in a thread.

    The first error of a task ends the work: later tasks are not run, and :meth:`submit` raises it,
    or else the end of the ``with`` block. When the block ends, even by its own error, the tasks
    have been run.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writing")
        self._room = threading.Semaphore(TASKS_WAITING)
        self.error: BaseException | None = None

    def submit(self, task: Callable[[], object]) -> None:
        """Adds a task; waits while too many are waiting."""
        if self.error is not None:
            raise self.error
        self._add(lambda: None if self.error else task())

    def submit_always(self, task: Callable[[], object]) -> None:
        """Adds a task that is done even if earlier ones failed."""
        self._add(task)

    def _add(self, task: Callable[[], object]) -> None:
        self._room.acquire()
        self._thread.submit(self._do, task)

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:  # of any type: the other thread raises it
            self.error = self.error or error
        finally:
            self._room.release()

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._thread.shutdown()
        if error is None and self.error is not None:
            raise self.error


class PartWriter:
    """Writes the two shards of one part, regions and rejects, by a :class:`Background`.

    Leaving the ``with`` block queues their end; on an exception nothing of the part appears.
    ``shards`` holds both once the background work is done, and ``finish`` is called with them.
    """

    def __init__(
        self,
        background: Background,
        folder: Path,
        index: int,
        total: int,
        *,
        producer: Mapping[str, Any],
        arrays: Mapping[str, Any],
        dtype: str,
        compression: str,
        finish: Callable[[list[Shard]], None] = lambda _: None,
    ) -> None:
        self._background, self._dtype, self._finish = background, dtype, finish
        self._place, self._producer = (folder, index, total), producer
        self._writer = ShardWriter(
            folder,
            REGIONS,
            index,
            total,
            producer=producer,
            arrays=arrays,
            compression=compression,
        )
        self._open = ExitStack()
        self._rows: list[RegionRow] = []
        self._rejects: list[dict[str, object]] = []
        self.shards: list[Shard] = []

    def add(self, row: RegionRow) -> None:
        """Adds one row of regions."""
        self._rows.append(row)
        if len(self._rows) == ROWS_PER_GROUP:
            self._flush()

    def reject(self, row: dict[str, object]) -> None:
        """Adds one row of rejects."""
        self._rejects.append(row)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        # Features were checked on the device (extract/detect/rows.py).
        self._background.submit(
            lambda: self._writer.write(encode_regions(rows, dtype=self._dtype, checked=True))
        )

    def __enter__(self) -> "PartWriter":
        self._background.submit(lambda: self._open.enter_context(self._writer))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._background.error is None:
            self._flush()
        self._background.submit_always(lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        error = error or self._background.error
        if error is not None:
            with suppress(Exception):  # closing an unwritable file fails again
                self._open.__exit__(type(error), error, None)
            return
        self._open.close()
        assert self._writer.shard is not None
        folder, index, total = self._place
        rejects = write_shard(folder, REJECTS, self._rejects, index, total, producer=self._producer)
        self.shards = [self._writer.shard, rejects]
        self._finish(self.shards)
