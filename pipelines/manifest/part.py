"""Writes one part of a data set: consecutive rows, which become one shard of each table."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlmill.runtime.files.shards import Shard, ShardWriter
from vlmill.schemas.tables import IMAGES, Table

GROUP_BYTES, GROUP_ROWS = 16 << 20, 10_000  # limits of a row group, which is in memory


class Part:
    """Collects one part's rows and writes its shards when the block ends.

    ``tables`` are in the order that the shards are written; ``total`` is the number of parts, None
    if it is not known in advance. ``group_bytes`` limits the images of a row group. After the block
    ``shards`` describes them.
    """

    def __init__(
        self,
        output: Path,
        tables: Sequence[Table],
        position: tuple[int, int | None],
        producer: Mapping[str, Any],
        *,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self._group_bytes = group_bytes
        self._stack = ExitStack()
        self.shards: list[Shard] = []
        self._writers = {  # closed in the opposite order
            table.name: ShardWriter(output, table, *position, producer=producer)
            for table in reversed(tables)
        }
        self._rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in tables}
        self._bytes = 0

    def __enter__(self) -> "Part":
        with ExitStack() as stack:
            for writer in self._writers.values():
                stack.enter_context(writer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if error is None:
                for name in self._rows:
                    self._flush(name)
            else:
                self._stack.__exit__(kind, error, trace)
        if error is None:
            self.shards = [writer.shard for writer in reversed(self._writers.values())]

    def add(self, table: Table, row: dict[str, Any]) -> None:
        """Appends a row; memory stays bounded by a row group."""
        rows = self._rows[table.name]
        rows.append(row)
        if table is IMAGES:
            self._bytes += len(row["bytes"])
        if len(rows) >= GROUP_ROWS or (table is IMAGES and self._bytes >= self._group_bytes):
            self._flush(table.name)

    def _flush(self, name: str) -> None:
        self._writers[name].write(self._rows[name])
        self._rows[name] = []
        if name == IMAGES.name:
            self._bytes = 0
