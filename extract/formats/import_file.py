"""Turns a feature file of another project into tables of regions and rejects."""

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from vlmill.extract.formats import hdf5, npz, tsv
from vlmill.extract.formats import lmdb as lmdb_folder
from vlmill.extract.formats.classes import CountedFromOne, IdCheck, Numbering, decide
from vlmill.extract.formats.names import FORMATS
from vlmill.extract.formats.names import IMPORT_JOB as JOB
from vlmill.extract.formats.records import Record
from vlmill.extract.formats.rows import RejectSink, encode_records, first_widths
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.digests import path_input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import SOFTWARE, Shard, ShardWriter, shard_name
from vlmill.runtime.readers.regions import region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS, REJECTS

ROWS_PER_GROUP = 16
# Shards are numbered before their number is known, and renamed when it is.
PROVISIONAL_TOTAL = 100_000


@dataclass(frozen=True, kw_only=True)
class Import:
    """Holds the options of one import; what is None, the file's content decides."""

    file: Path
    output: Path
    format: str | None = None
    id_prefix: str = ""
    dtype: str = "float32"
    compression: str = "none"
    images_per_shard: int = 1000
    background: str | None = None
    classes_from: int | None = None


def recognise(path: Path) -> str:
    """Returns the format of a file or folder, by its content. Raises InputError."""
    if lmdb_folder.is_lmdb(path):
        return "lmdb"
    if npz.is_npz(path):
        return "npz"
    if path.is_file() and hdf5.is_hdf5(path):
        return "hdf5"
    format_name = tsv.sniff_format(path) if path.is_file() else None
    if format_name is None:
        raise InputError(f"FILE {path}: none of {', '.join(FORMATS)}; name it with --format")
    return format_name


def read_records(path: Path, name: str) -> Iterator[Record]:
    """Yields the records that a file of a format holds."""
    if name in tsv.FIELDS:
        if path.is_dir():
            raise InputError(f"FILE {path} is a folder; give the .tsv file")
        return tsv.read(path, name)
    readers = {"lmdb": lmdb_folder.read, "npz": npz.read, "hdf5": hdf5.read}
    return readers[name](path)


def import_file(job: Import, *, fresh: bool = False) -> tuple[int, int]:
    """Writes the tables; returns the rows of regions and of rejects.

    Memory is bounded by 16 rows and the ids. A killed import starts over. Raises InputError for a
    file of no known format.
    """
    if not job.file.exists():
        raise InputError(f"FILE {job.file}: no such file; give a feature file or folder")
    name = job.format or recognise(job.file)
    options = {key: value for key, value in dataclasses.asdict(job).items() if value is not None}
    settings = {
        **options,
        "file": job.file.name,
        "bytes": count_bytes(job.file),
        "format": name,
        "software": SOFTWARE,
    }
    del settings["output"]
    state = prepare_output(job.output, job=JOB, settings=settings, fresh=fresh)
    if state is State.FINISHED:
        print(f"{job.output} is finished already; nothing to do", file=sys.stderr)
        return count_rows(read_manifest(job.output)["shards"])
    if state is State.PARTIAL:
        prepare_output(job.output, job=JOB, settings=settings, fresh=True)
    inputs = [path_input("FILE", job.file)]
    shards = convert(job, name, settings)
    write_manifest(job.output, shards, job=JOB, settings=settings, inputs=inputs)
    return count_rows(shards)


def convert(job: Import, name: str, settings: dict[str, Any]) -> list[Shard]:
    """Writes the tables of a file of format ``name``.

    The file is read again from its start where an id shows that it counts classes from 1.
    """
    flags = Numbering(background=job.background, classes_from=job.classes_from)
    producer = {"job": JOB, **settings, "boxes": "given"}
    try:
        return write_tables(job, name, producer, flags)
    except CountedFromOne as shown:
        print_status(
            f"note: FILE {job.file}: {shown} shows that classes are counted from 1; 1 is subtracted"
        )
    prepare_output(job.output, job=JOB, settings=settings, fresh=True)
    flags = dataclasses.replace(flags, classes_from=1)
    return write_tables(job, name, {**producer, "classes_from": 1}, flags, recognised=True)


def count_bytes(path: Path) -> int:
    """Counts the bytes of a file or of a folder's files."""
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return sum(file.stat().st_size for file in files)


def count_rows(shards: Sequence[Shard]) -> tuple[int, int]:
    """Counts the rows of regions and of rejects."""
    regions, rejects = (
        sum(s.rows for s in shards if s.table == table.name) for table in (REGIONS, REJECTS)
    )
    return regions, rejects


def write_tables(
    job: Import,
    name: str,
    producer: dict[str, Any],
    flags: Numbering,
    *,
    recognised: bool = False,
) -> list[Shard]:
    """Writes the tables of regions and of rejects of a file of format ``name``.

    ``recognised``: the ids of the file have shown how it counts classes. Raises CountedFromOne
    where they do so only now.
    """
    with (
        Progress(total=None, unit="image", label="import") as progress,
        ShardWriter(job.output, REJECTS, 0, 1, producer=producer) as rejects,
    ):
        sink = RejectSink(rejects, progress)
        records = read_records(job.file, name)
        before, widths = first_widths(records, sink)
        first = before[-1] if before and len(before[-1].boxes) else None
        numbering = decide(first, flags, str(job.file), ignore if recognised else print_status)
        ids = IdCheck(numbering, port=name == "npz", recognised=recognised, name=str(job.file))
        rows = encode_records(
            chain(before, records),
            widths,
            numbering,
            ids,
            sink,
            id_prefix=job.id_prefix,
            dtype=job.dtype,
        )
        arrays = region_arrays(
            dtype=job.dtype,
            feature_dim=widths.features,
            class_probs_dim=widths.class_probs,
            background=numbering.stored_background,
        )
        shards: list[Shard] = []
        row_table: pa.Table | None = next(rows, None)
        while row_table is not None or not shards:
            writer = ShardWriter(
                job.output,
                REGIONS,
                len(shards),
                PROVISIONAL_TOTAL,
                producer=producer,
                arrays=arrays,
                compression=job.compression,
            )
            with writer:
                row_table = fill(writer, row_table, rows, job.images_per_shard, progress)
            assert writer.shard is not None
            shards.append(writer.shard)
        sink.flush()
    for line in (ids.assumption(), sink.damage(str(job.file))):
        if line is not None:
            print_status(line)
    assert rejects.shard is not None
    return [
        *(rename_shard(job.output, shard, i, len(shards)) for i, shard in enumerate(shards)),
        rejects.shard,
    ]


def ignore(_: str) -> None:
    """Leaves out a note that an earlier reading has printed."""


def fill(
    writer: ShardWriter,
    first: pa.Table | None,
    rows: Iterator[pa.Table],
    count: int,
    progress: Progress,
) -> pa.Table | None:
    """Writes up to ``count`` rows in groups; returns the row after them, None at the end."""
    group: list[pa.Table] = []
    written = 0
    while first is not None and written < count:
        group.append(first)
        written += 1
        progress.advance()
        if len(group) == ROWS_PER_GROUP:
            writer.write(pa.concat_tables(group))
            group = []
        first = next(rows, None)
    if group:
        writer.write(pa.concat_tables(group))
    return first


def rename_shard(folder: Path, shard: Shard, index: int, total: int) -> Shard:
    """Renames a shard to its final name."""
    name = shard_name(REGIONS, index, total)
    os.replace(folder / shard.name, folder / name)
    return dataclasses.replace(shard, name=name)
