"""Turns feature files of other projects into tables of regions and rejects.

The output is written in parts; each is one shard of both tables. The record of a part holds its end
position in the sources, so that a killed import continues after its last finished part.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmill.extract.formats import hdf5, lmdb, npy, npz, oscar, tsv, vlbert
from vlmill.extract.formats.classes import CountedFromOne, IdCheck, Numbering, choose_numbering
from vlmill.extract.formats.context import Context, Item, Vocabulary
from vlmill.extract.formats.names import IMPORT_JOB as JOB
from vlmill.extract.formats.parts import Part, PartWriter
from vlmill.extract.formats.records import InvalidRecord, Record
from vlmill.extract.formats.rows import DAMAGE, RowSorter, Widths, get_widths
from vlmill.extract.formats.sizes import read_sizes
from vlmill.extract.formats.sources import Source, find_sources
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import path_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output, remove_work
from vlmill.runtime.files.shards import SOFTWARE, Shard
from vlmill.runtime.readers.class_names import first_names
from vlmill.runtime.units.unit import Result, Unit, is_finished, read_result, work_folder
from vlmill.schemas.tables import REGIONS, REJECTS

READ: dict[str, Callable[[Path, Context], Iterator[Item]]] = {
    "lmdb": lmdb.read,
    "npy": npy.read,
    "npz": npz.read,
    "hdf5": hdf5.read,
    "oscar": oscar.read,
    "vl-bert": vlbert.read,
}
Position = tuple[int, int]  # index of a source, and of a record in it


@dataclass(frozen=True, kw_only=True)
class Import:
    """Holds the options of one import; the content of the files decides options that are None."""

    files: Sequence[str | Path]
    output: Path
    format: str | None = None
    id_prefix: str = ""
    dtype: str = "float32"
    compression: str = "none"
    images_per_shard: int = 1000
    background: str | None = None
    classes_from: int | None = None
    sizes: str | None = None
    classes: str | None = None
    attributes: str | None = None

    @property
    def name(self) -> str:
        """Returns the files for a message: the first one, and the number of others."""
        more = len(self.files) - 1
        return f"{self.files[0]}{f' and {more} more' if more else ''}"

    def context(self) -> Context:
        """Returns the sizes and names that the user gave. Raises InputError."""
        return Context(
            sizes=None if self.sizes is None else read_sizes(self.sizes),
            classes=Vocabulary(first_names(self.classes, "--classes"), flag="--classes"),
            attributes=Vocabulary(
                first_names(self.attributes, "--attributes"), flag="--attributes"
            ),
        )


def import_file(job: Import, *, fresh: bool = False) -> tuple[int, int]:
    """Writes the tables; returns the rows of regions and of rejects.

    Memory is bounded by one row group and the ids. A killed import continues. Raises InputError for
    a file of no known format.
    """
    sources = find_sources(job.files, job.format)
    inputs = [path_input("FILE", source.path) for source in sources]
    settings = make_settings(job, sources, inputs)
    state = prepare_output(job.output, job=JOB, settings=settings, fresh=fresh)
    if state is State.FINISHED:
        print(f"{job.output} is finished already; nothing to do", file=sys.stderr)
        return count_rows(read_manifest(job.output)["shards"])
    shards = convert(job, sources, inputs, settings)
    write_manifest(job.output, shards, job=JOB, settings=settings, inputs=inputs)
    remove_work(job.output)
    return count_rows(shards)


def make_settings(
    job: Import, sources: Sequence[Source], inputs: Sequence[Input]
) -> dict[str, Any]:
    """Returns the settings that determine the output, for the plan and the shards' metadata."""
    options = {key: value for key, value in dataclasses.asdict(job).items() if value is not None}
    for name in ("output", "files", "format"):
        options.pop(name, None)
    names, formats = [s.path.name for s in sources], list(dict.fromkeys(s.format for s in sources))
    return {
        **options,
        "file": names[0] if len(names) == 1 else names,
        "bytes": sum(entry.bytes for entry in inputs),
        "format": formats[0] if len(formats) == 1 else formats,
        "software": SOFTWARE,
    }


def count_rows(shards: Sequence[Shard]) -> tuple[int, int]:
    """Counts the rows of regions and of rejects."""
    regions, rejects = (
        sum(s.rows for s in shards if s.table == table.name) for table in (REGIONS, REJECTS)
    )
    return regions, rejects


def convert(
    job: Import, sources: Sequence[Source], inputs: Sequence[Input], settings: dict[str, Any]
) -> list[Shard]:
    """Writes the tables of some sources.

    They are read again from the start if an id shows that they number classes from 1.
    """
    producer = {"job": JOB, **settings, "boxes": "given"}
    try:
        return Converter(job, sources, inputs, producer).run()
    except CountedFromOne as shown:
        print_status(
            f"note: FILE {job.name}: {shown} shows that classes are counted from 1; 1 is subtracted"
        )
    prepare_output(job.output, job=JOB, settings=settings, fresh=True)
    return Converter(job, sources, inputs, producer, recognised=True).run()


class Converter:
    """Writes the missing parts of one import.

    ``recognised``: an earlier pass has found ids that number classes from 1.
    """

    def __init__(
        self,
        job: Import,
        sources: Sequence[Source],
        inputs: Sequence[Input],
        producer: dict[str, Any],
        *,
        recognised: bool = False,
    ) -> None:
        self._job, self._sources, self._producer = job, sources, producer
        self._bytes = [entry.bytes for entry in inputs]
        self._context = job.context()
        self._parts = finished_parts(job)
        last = self._parts[-1].metrics if self._parts else None
        self._last = last
        self._recognised = recognised or bool(last and last["recognised"])
        self._read = 0.0  # fraction of all files
        self._damaged: InvalidRecord | None = None
        if last:
            for vocabulary, names in (
                (self._context.classes, last["classes"]),
                (self._context.attributes, last["attributes"]),
            ):
                for name in names[len(vocabulary.names) :]:
                    vocabulary.number(name)

    def run(self) -> list[Shard]:
        """Returns the shards of all parts. Raises CountedFromOne."""
        if self._parts:
            print_status(f"continuing after {len(self._parts)} finished parts")
        with Progress(total=None, unit="image", label="import") as progress:
            self._progress = progress
            start = tuple(self._last["position"]) if self._last else (0, 0)
            records = self.read_records(start)
            before, sorter = self.start(records)
            try:
                self.write_parts(chain(before, records), sorter)
            finally:
                records.close()  # type: ignore[attr-defined]
        for line in (sorter.check.assumption(), self.clipped(sorter.num_clipped), self.damage()):
            if line is not None:
                print_status(line)
        vocabularies = {"classes": self._context.classes, "attributes": self._context.attributes}
        for name, vocabulary in vocabularies.items():
            if vocabulary.names:
                write_json(self._job.output / f"{name}.json", vocabulary.names)
        return [shard for part in self._parts for shard in part.shards]

    def read_records(self, start: Position) -> Iterator[tuple[Position, Record]]:
        """Yields the records from a position on, each with the position after it."""
        total, before = max(1, sum(self._bytes)), 0
        for number, (source, size) in enumerate(zip(self._sources, self._bytes, strict=True)):
            if number >= start[0]:
                for index, item in enumerate(read_items(source, self._context)):
                    if (number, index) < start:
                        continue
                    self._read = (before + self._context.done * size) / total
                    yield (number, index + 1), item()
            before += size
        self._read = 1.0

    def start(
        self, records: Iterator[tuple[Position, Record]]
    ) -> tuple[list[tuple[Position, Record]], RowSorter]:
        """Returns the records up to the first row that has a box, and a sorter by that row."""
        before: list[tuple[Position, Record]] = []
        job, first = self._job, None
        is_port = any(source.reader == "npz" for source in self._sources)
        if self._last:
            widths = Widths(**self._last["widths"])
            numbering = Numbering(**self._last["numbering"])
        else:
            for position, record in records:
                before.append((position, record))
                if not isinstance(record, InvalidRecord) and len(record.boxes):
                    first = record
                    break
            classes_from = 1 if self._recognised else job.classes_from
            flags = Numbering(background=job.background, classes_from=classes_from)
            note = (lambda _: None) if self._recognised else print_status
            widths = Widths(features=0, class_probs=None) if first is None else get_widths(first)
            numbering = choose_numbering(first, flags, job.name, note)
        check = IdCheck(numbering, port=is_port, recognised=self._recognised, name=job.name)
        if self._last:
            check.restore(self._last["ids"])
        ids = chain.from_iterable(read_ids(job.output, part.shards) for part in self._parts)
        sorter = RowSorter(widths, numbering, check, ids, job.id_prefix)
        sorter.num_clipped = self._last["clipped"] if self._last else 0
        return before, sorter

    def write_parts(self, records: Iterator[tuple[Position, Record]], sorter: RowSorter) -> None:
        """Writes one part after another until the records end."""
        producer = self._producer | ({"classes_from": 1} if self._recognised else {})
        for number in count(len(self._parts)):
            first = next(records, None)
            if first is None and self._parts:
                return
            part = Part(
                folder=self._job.output,
                number=number,
                producer=producer,
                dtype=self._job.dtype,
                compression=self._job.compression,
                rows=self._job.images_per_shard,
            )
            position: Position = (0, 0)
            with PartWriter(part, sorter, self.advance) as writer:
                for reached, record in chain([] if first is None else [first], records):
                    position = reached
                    if writer.add(record):
                        break
            metrics = {
                "position": position,
                "widths": dataclasses.asdict(sorter.widths),
                "numbering": dataclasses.asdict(sorter.numbering),
                "ids": sorter.check.state(),
                "clipped": sorter.num_clipped,
                "recognised": self._recognised,
                "classes": self._context.classes.names,
                "attributes": self._context.attributes.names,
            }
            self._parts.append(writer.record(self._job, part_unit(number), metrics))

    def advance(self, rows: int, invalid: Sequence[InvalidRecord]) -> None:
        """Updates the progress, and keeps the last reject of a damaged file."""
        read = f"{100 * self._read:.0f} %"
        self._progress.advance(rows + len(invalid), rejects=len(invalid), read=read)
        self._damaged = next((b for b in invalid if b.reason is DAMAGE), self._damaged)

    def clipped(self, count: int) -> str | None:
        """Returns a line about rows whose boxes were clipped; None without such."""
        if not count:
            return None
        images = "1 image has" if count == 1 else f"{count:,} images have"
        return (
            f"note: FILE {self._job.name}: {images} boxes that reach into the padding of the "
            "detector; they are clipped to the image"
        )

    def damage(self) -> str | None:
        """Returns a line about a damaged file; None if there is none."""
        if self._damaged is None:
            return None
        detail = self._damaged.detail
        return f"error: FILE {self._job.name} is damaged: {detail}; copy or download it again"


def read_items(source: Source, context: Context) -> Iterator[Item]:
    """Yields a function for each record of a source; calling it reads the record."""
    context.done, context.states_sizes = 0.0, False
    if source.reader == "tsv":
        return tsv.read(source.path, context, source.format)
    return READ[source.reader](source.path, context)


def part_unit(number: int) -> Unit:
    """Returns the unit of a part."""
    return Unit(name=f"part-{number:05d}", number=number)


def finished_parts(job: Import) -> list[Result]:
    """Returns the parts that an earlier run has finished, up to the first incomplete one."""
    folder, parts = work_folder(job), list[Result]()
    while is_finished(job, folder, unit := part_unit(len(parts))):
        parts.append(read_result(folder, unit))
    return parts


def read_ids(folder: Path, shards: Sequence[Shard]) -> Iterator[str]:
    """Yields the ids of the rows in some shards."""
    for shard in shards:
        if shard.table == REGIONS.name:
            table = pq.read_table(folder / shard.name, columns=["image_id"])
            yield from table.column("image_id").to_pylist()
