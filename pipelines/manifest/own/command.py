"""Runs the command for your own examples: ``python -m vlmill.pipelines.manifest own --help``.

On a runner one worker reads FILE once, and then each part is a unit.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest import spooled
from vlmill.pipelines.manifest.cost import estimate_cost, measure
from vlmill.pipelines.manifest.own.cells import read_image
from vlmill.pipelines.manifest.own.job import (
    JOB,
    Judged,
    JudgedRow,
    Ledger,
    OwnJob,
    changed_error,
    collect_shards,
    judge_rows,
    make_funnel,
    make_parts,
    open_run,
    read_candidates,
)
from vlmill.pipelines.manifest.own.kinds import Columns, choose_kind
from vlmill.pipelines.manifest.own.scan import (
    FIRST_ROWS,
    complete_columns,
    find_remarks,
    list_labels,
    scan_file,
)
from vlmill.pipelines.manifest.reading.columns import split_column
from vlmill.pipelines.manifest.reading.detected import (
    detect_delimiter,
    detect_encoding,
    format_detected,
)
from vlmill.pipelines.manifest.reading.rows import (
    TableFile,
    column_names,
    find_column_indices,
    hash_table,
    read_values,
    table_file,
)
from vlmill.pipelines.manifest.report import write_report
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers, write_json
from vlmill.runtime.files.digests import file_input, path_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_job
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE
from vlmill.schemas.rejects import Reason, format_rejects
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import IMAGES, PAIRS, TABLES, Table


def run_own(args: argparse.Namespace) -> int:
    """Runs ``manifest own``: measures the file, writes parts, funnel, report and manifest."""
    job = own_job(args)
    if args.dry_run:
        return print_estimate(estimate_cost(job.rows, *measure(job)), job.output)
    state = prepare_job(args, JOB, job.settings())
    if state is not State.FINISHED and not _write(job, args):
        return 0
    spooled.remove_parts(job.output)
    counts = rows_by_table(read_manifest(job.output)["shards"])
    images = f", {counts[IMAGES.name]} images" if job.with_images else ""
    print_reading_hint(job.output, job.kind)
    if job.columns.split:
        print(format_splits(job.columns.split[0], count_splits(job.output, TABLES[job.kind])))
    rejects = format_rejects(reject_counts(job.output))
    unit = job.example_kind.unit
    print(f"{state.outcome}: {counts[job.kind]} {unit}{images}, {rejects}: {job.output}")
    if not job.rows:
        where = "rows below its first line" if job.table.header else "rows"
        print_status(f"warning: --input {job.table.path} has no {where}; give a file with rows")
    return 0 if counts[job.kind] or not job.rows else 1


def _write(job: OwnJob, args: argparse.Namespace) -> bool:
    """Writes the missing parts, then funnel, report and manifest.

    Returns False if another ``--part`` writes funnel, report and manifest.
    """
    inputs, on_units = inputs_of_job(job), args.beam_flags or args.part is not None
    if on_units:
        run_steps = select_runner(
            args.beam_flags,
            workers=1,
            module=__name__,
            paths={"--input": str(args.input), "--output": str(args.output)},
            share=args.part,
        )
        run_steps(job, STEPS)
    with end_job(job.output, args.part) as is_last:
        if not is_last:
            return False
        shards = collect_parts(job) if on_units else make_parts(job)
        funnel = make_funnel(job)
        write_json(job.output / "funnel.json", funnel)
        if job.labels is not None:
            write_json(job.output / LABELS_FILE, list(job.labels))
        write_report(job.output, funnel, job.settings(), TABLES[job.kind])
        write_manifest(job.output, shards, job=JOB, settings=job.settings(), inputs=inputs)
        spooled.remove_parts(job.output)
    return True


USES = {
    "train": "for training",
    "validation": "for validation",
    "test": "for test",
    None: "unknown: train-vl pretrain refuses them unless the recipe names them",
}


def count_splits(folder: Path, table: Table = PAIRS) -> Counter[str | None]:
    """Counts the rows of each split in a table of ``folder``."""
    splits = Counter[str | None]()
    for batch in iter_batches(folder / f"{table.name}-*.parquet", table, columns=["split"]):
        splits.update(batch.column("split").to_pylist())
    return splits


def format_splits(column: str | None, splits: Mapping[str | None, int]) -> str:
    """Returns a line about how training uses the splits. ``column`` None: no column has them."""
    parts = []
    for use, phrase in USES.items():
        names = sorted((name for name in splits if find_use(name) == use), key=str)
        if names:
            counts = ", ".join(f"{name or 'no split'} {splits[name]}" for name in names)
            parts.append(f"{counts} {phrase}")
    source = "no split column" if column is None else f"column {column}"
    return f"splits ({source}): {'; '.join(parts) or 'none'}"


def inputs_of_job(job: OwnJob) -> list[Input]:
    """Records the file of rows and the folder of images."""
    images = () if job.image_root is None else (path_input("--image-root", job.image_root),)
    record = path_input if job.table.parts else file_input
    return [record("--input", job.table.path), *images]


def rows_by_table(shards: Sequence[Shard]) -> dict[str, int]:
    """Returns the number of rows of each table."""
    counts = Counter[str]()
    for shard in shards:
        counts[shard.table] += shard.rows
    return counts


def own_job(args: argparse.Namespace) -> OwnJob:
    """Reads the file once and returns the job that the flags describe. Raises InputError."""
    if args.image_root is not None and not args.image_root.is_dir():
        raise InputError(f"--image-root {args.image_root}: no such folder")
    if args.min_questions < 1:
        raise InputError(f"--min-questions {args.min_questions}: expected at least 1")
    columns = named_columns(args)
    kind = choose_kind(columns)
    if kind.number is None and args.labels is not None:
        raise InputError("--labels goes with --question-column and --label-column; remove it")
    table = open_table(args, columns)
    columns = with_split_column(args, table, columns)
    column_indices = tuple(find_column_indices(table, columns.flagged))
    columns = complete_columns(table, columns, column_indices)
    job = OwnJob(
        table=table,
        columns=columns,
        column_indices=column_indices,
        rows=0,
        digest=hash_table(table),
        output=args.output,
        kind=kind.table.name,
        separator=args.list_separator,
        image_root=args.image_root,
        image_prefix=args.image_prefix,
        with_images=args.image_root is not None or holds_images(table, columns, column_indices),
        source=args.source,
        split=args.split,
        language=args.language,
        rows_per_shard=args.rows_per_shard,
        workers=args.workers,
    )
    scan = scan_file(job)
    labels, line = list_labels(job, scan, args.labels, args.min_questions)
    job = replace(job, rows=scan.rows, labels=labels)
    for text in filter(None, (line, *find_remarks(job, scan))):
        print_status(text)
    return job


def named_columns(args: argparse.Namespace) -> Columns:
    """Returns the columns that the flags name."""

    def unique(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names))

    return Columns(
        image=unique(args.image_column),
        text=unique(args.text_column),
        question=unique(args.question_column),
        answer=unique(args.answer_column),
        statement=unique(args.statement_column),
        label=unique(args.label_column),
        id=() if args.id_column is None else (args.id_column,),
        split=() if args.split_column is None else (args.split_column,),
    )


def open_table(args: argparse.Namespace, columns: Columns) -> TableFile:
    """Returns the file as flags and content describe it, and prints the detected properties."""
    flags = {"format": args.format, "header": not args.no_header, "sheet": args.sheet}
    encoding = "utf-8" if args.encoding is None else args.encoding
    table = table_file(args.input, delimiter=args.delimiter, encoding=encoding, **flags)
    if table.format not in ("csv", "tsv"):
        return table
    detected = table
    if args.encoding is None:
        detected = replace(detected, encoding=detect_encoding(table.path))
    if args.delimiter is None:
        detected = detect_delimiter(detected, [name for _, name in columns.flagged])
    if (line := format_detected(detected, table)) is not None:
        print_status(line)
    return detected


def with_split_column(args: argparse.Namespace, table: TableFile, columns: Columns) -> Columns:
    """Returns the columns with one named split, unless a flag names it or excludes it."""
    if columns.split or args.no_split_column:
        return columns
    names = [name for _, name in columns.flagged]
    split = split_column(column_names(table), None, names, f"--input {table.path}")
    return columns if split is None else replace(columns, split=(split,))


def holds_images(table: TableFile, columns: Columns, column_indices: Sequence[int]) -> bool:
    """Returns whether the file's first rows hold the bytes of images."""
    if table.format != "parquet":
        return False
    for _, values in islice(read_values(table, column_indices), FIRST_ROWS):
        cells = [] if isinstance(values, Drop) else columns.sort(values)["image"]
        items = [item for cell in cells for item in (cell if isinstance(cell, list) else [cell])]
        if any(read_image(item)[1] is not None for item in items):
            return True
    return False


def judge_file(job: OwnJob, unit: Unit) -> Result:
    """Writes the results of the rows of each part. Raises OSError if the file has changed."""
    judged = judge_rows(job, read_candidates(job), Ledger())
    if spooled.write_parts(job.output, judged, job.rows_per_shard, pack_row) != job.num_parts:
        raise changed_error(job)
    return Result()


def part_units(job: OwnJob) -> list[Unit]:
    """Returns a unit for each part."""
    return [spooled.part_unit(index) for index in range(job.num_parts)]


def make_part(job: OwnJob, unit: Unit) -> Result:
    """Writes a part's shards."""
    judged = map(
        unpack_row, spooled.read_frames(spooled.spool_path(job.output, "rows", unit.number))
    )
    label = f"part {unit.number}"
    with (
        open_run(job) as run,
        Progress(total=None, unit="row", label=label, visible=False) as progress,
    ):
        result = run.make_part(unit.number, judged, progress)
    result.numbers = Numbers(parts=1)
    return result


def pack_row(judged: Judged) -> Any:
    """Returns a row as plain values."""
    number, row = judged
    if isinstance(row, Drop):
        return number, row.reason.value, row.detail
    return number, row.row, [row.image_ids, row.first, row.images]


def unpack_row(values: Any) -> Judged:
    """Returns the row that was packed."""
    number, first, second = values
    if isinstance(first, str):
        return number, Drop(Reason(first), second)
    image_ids, new, images = second
    row = JudgedRow(row=first, image_ids=tuple(image_ids), first=tuple(new), images=images)
    return number, row


STEPS = (
    Step(name="read", units=partial(single_unit, "read"), work=judge_file),
    Step(name="make", units=part_units, work=make_part),
)


def collect_parts(job: OwnJob) -> list[Shard]:
    """Returns all shards, once the steps are done."""
    remove_leftovers(job.output)  # files of workers that were killed during the run
    return collect_shards(job)
