"""Writing a job's tables from Beam: rows spread over shards by id, each shard sorted and atomic."""

import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam

from vlmill.pipelines.pages import warc
from vlmill.pipelines.pages.warc import open_archive
from vlmill.pipelines.web_pairs.pair import Pair
from vlmill.schemas.files.atomic import TEMPORARY_PREFIX, write_json
from vlmill.schemas.files.shards import Shard, ShardWriter
from vlmill.schemas.ids import image_id_of, pair_id_of
from vlmill.schemas.tables import IMAGES, TABLES, Table

GROUP_BYTES = 16 << 20
GROUP_ROWS = 10_000
SOURCE, SPLIT = "lait", "train"


def pair_row(pair: Pair) -> dict[str, Any]:
    """Makes a row of ``pairs``."""
    return {
        "pair_id": pair_id_of(pair.picture.image_id, pair.text),
        "image_id": pair.picture.image_id,
        "text": pair.text,
        "language": pair.language,
        "source": SOURCE,
        "split": SPLIT,
        "text_source": pair.text_source,
        "score": pair.score,
        "page_url": pair.page_url,
        "image_url": pair.picture.url,
    }


def shard_of(key: str, shards: int) -> int:
    """Returns the shard of a row: the same on every machine, and even."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % shards


class ToShards(beam.PTransform[Any, Any]):
    """Rows -> (shard number, all rows of the shard), empty shards too.

    ``keys`` are the columns or fields to spread and sort by; the first decides the shard.
    """

    def __init__(self, shards: int, key: Any) -> None:
        super().__init__()
        self.shards, self.key = shards, key

    def expand(self, rows: Any) -> Any:
        shards, key = self.shards, self.key
        every = rows.pipeline | "Shards" >> beam.Create([(n, None) for n in range(shards)])
        spread = rows | "Spread" >> beam.Map(lambda row: (shard_of(key(row), shards), row))
        return {"rows": spread, "every": every} | "Group" >> beam.CoGroupByKey()


class WriteRows(beam.DoFn):
    """Writes (shard number, rows) as a Shard of a table, sorted by all of ``order``."""

    def __init__(
        self,
        folder: str,
        table: str,
        order: Sequence[str],
        shards: int,
        producer: Mapping[str, Any],
    ) -> None:
        self.folder, self.table, self.order = folder, table, tuple(order)
        self.shards, self.producer = shards, dict(producer)

    def process(self, item: tuple[int, Mapping[str, Iterable[Any]]]) -> Iterator[Shard]:
        rows = sorted(item[1]["rows"], key=self._rank)
        writer = _writer(self.folder, TABLES[self.table], item[0], self.shards, self.producer)
        with writer:
            for start in range(0, len(rows), GROUP_ROWS):
                writer.write(rows[start : start + GROUP_ROWS])
        assert writer.shard is not None
        yield writer.shard

    def _rank(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(row[name] or "" for name in self.order)


class WriteImages(beam.DoFn):
    """(shard number, Pairs) -> Shard of ``images``, the bytes read again from the archives.

    Memory: one row group of ``GROUP_BYTES`` and one picture.
    """

    def __init__(
        self, folder: str, shards: int, max_bytes: int, producer: Mapping[str, Any]
    ) -> None:
        self.folder, self.shards, self.max_bytes = folder, shards, max_bytes
        self.producer = dict(producer)

    def process(self, item: tuple[int, Mapping[str, Iterable[Any]]]) -> Iterator[Shard]:
        pairs = sorted(item[1]["rows"], key=lambda pair: pair.picture.image_id)
        writer = _writer(self.folder, IMAGES, item[0], self.shards, self.producer)
        with writer:
            group: list[dict[str, Any]] = []
            size = 0
            for pair in pairs:
                group.append(image_row(pair, self.max_bytes))
                size += len(group[-1]["bytes"])
                if size > GROUP_BYTES:
                    writer.write(group)
                    group, size = [], 0
            writer.write(group)
        assert writer.shard is not None
        yield writer.shard


def image_row(pair: Pair, max_bytes: int) -> dict[str, Any]:
    """Makes a row of ``images``. Raises OSError if the archive has changed since it was read."""
    picture = pair.picture
    try:
        with open_archive(picture.archive) as file:
            data = warc.read_body(file, picture.offset, max_bytes=max_bytes)
    except warc.BrokenArchive as error:
        raise OSError(f"{picture.archive} changed during the run: {error}") from None
    if image_id_of(data) != picture.image_id:
        raise OSError(f"{picture.archive} changed during the run, at byte {picture.offset}")
    return {
        "image_id": picture.image_id,
        "bytes": data,
        "width": picture.width,
        "height": picture.height,
        "format": picture.format,
        "sha256": picture.image_id,
        "source_url": picture.url,
    }


def _writer(
    folder: str, table: Table, shard: int, shards: int, producer: Mapping[str, Any]
) -> ShardWriter:
    return ShardWriter(folder, table, shard, shards, producer=producer)


def results_path(folder: str | Path) -> Path:
    """Where the workers leave counts and shards for the process that started the job."""
    return Path(folder) / f"{TEMPORARY_PREFIX}results.json"


class LeaveResults(beam.DoFn):
    """One element, with the counts and shards as side inputs -> the file of results."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(
        self, _: None, tallies: Iterable[tuple[tuple[str, str], int]], shards: Iterable[Shard]
    ) -> None:
        value = {
            "tallies": sorted([list(tally), count] for tally, count in tallies),
            "shards": sorted((dataclasses.asdict(s) for s in shards), key=lambda s: str(s["name"])),
        }
        write_json(results_path(self.folder), value)


def take_results(folder: str | Path) -> tuple[list[tuple[tuple[str, str], int]], list[Shard]]:
    """Counts and shards of the run that has just ended. Raises OSError if there are none."""
    value = json.loads(results_path(folder).read_text(encoding="utf-8"))
    tallies = [((stage, what), count) for (stage, what), count in value["tallies"]]
    return tallies, [Shard(**shard) for shard in value["shards"]]
