"""Defines the command for your own captions: ``python -m vlmill.pipelines.manifest own --help``."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlmill.pipelines.manifest.cost import estimate_cost, measure
from vlmill.pipelines.manifest.flags import add_run_arguments
from vlmill.pipelines.manifest.own.job import JOB, OwnJob, make_funnel, make_parts
from vlmill.pipelines.manifest.own.on_runner import STEPS, collect_parts
from vlmill.pipelines.manifest.reading.columns import split_column
from vlmill.pipelines.manifest.reading.rows import (
    FORMATS,
    TableFile,
    column_names,
    count_rows,
    find_column_indices,
    read_rows,
    table_file,
)
from vlmill.pipelines.manifest.report import write_report
from vlmill.pipelines.manifest.spooled import remove_parts
from vlmill.runtime.console.command import path_or_url, print_reading_hint
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import file_input, path_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

OWN_HELP = """\
Converts your own captions and images to the tables `pairs` and `images`, the input of all other
commands. FILE has one row per caption and names its image; an image may have any number of
captions. TSV is read without quoting, CSV with quoting; the keys of JSON lines are the columns.

image_id is the value of --image-column. With --image-root DIR, the image is DIR/<value>, or that
name with .jpg, .jpeg, .png or another image extension. A row is rejected if its image is missing,
cannot be read, is animated, or is outside DIR. Without --image-root only `pairs` is written.
"""
OWN_EPILOG = """\
example:
  captions.csv:   file,caption,split
                  0001.jpg,"a red kite over the dunes",train
                  0002.jpg,"two children, one bucket",test

  python -m vlmill.pipelines.manifest own --input captions.csv --text-column caption \\
      --image-column file --image-root photos --output own

then (docs/own-data.md):
  extract-rois run own --output regions --weights detector.pth
  train-vl pretrain imagebert-small --pairs own --regions regions --output trained
  train-vl evaluate retrieval --checkpoint trained --pairs own --regions regions --images own \\
      --split test --output results

A column named split marks rows for training (train, or empty), validation (val, dev, ...) or test;
docs/own-data.md lists all names. Case does not matter.

Writes DIR/pairs-*.parquet, images-*.parquet, rejects-*.parquet, funnel.json, report.html and, last,
_manifest.json. Every row of FILE is a pair or a reject with its reason. The same command continues
a killed run, to the same bytes. Memory: about 300 bytes per row, and the images of 16 rows;
FILE and the images may be larger than memory.
"""


def add_own_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the flags of ``manifest own``."""
    p.description, p.epilog = OWN_HELP, OWN_EPILOG
    p.add_argument(
        "--input",
        required=True,
        type=path_or_url,
        metavar="FILE",
        help="file of captions: .csv, .tsv, .jsonl or .parquet",
    )
    p.add_argument("--text-column", required=True, metavar="C", help="column of captions")
    p.add_argument(
        "--image-column",
        required=True,
        metavar="C",
        help="column of images; its value becomes image_id",
    )
    p.add_argument(
        "--id-column",
        metavar="C",
        help="column of pair_id (default: a hash of image_id and caption)",
    )
    p.add_argument("--image-root", type=path_or_url, metavar="DIR", help="folder of the images")
    p.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the output"
    )
    splits = p.add_mutually_exclusive_group()
    splits.add_argument(
        "--split-column",
        metavar="C",
        help="column of splits, kept unchanged (default: a column named split)",
    )
    splits.add_argument(
        "--no-split-column", action="store_true", help="ignore a column named split"
    )
    p.add_argument("--split", metavar="NAME", help="split of rows without one (default: null)")
    p.add_argument(
        "--source", default="own", metavar="NAME", help="value of the column source (default: own)"
    )
    p.add_argument(
        "--language", metavar="CODE", help="language of the captions, such as en (default: null)"
    )
    p.add_argument(
        "--format",
        choices=sorted(set(FORMATS.values())),
        help="format of FILE (default: from its extension)",
    )
    p.add_argument(
        "--delimiter",
        metavar="CHAR",
        help="separator of columns (default: comma, or tab for a TSV)",
    )
    p.add_argument(
        "--no-header", action="store_true", help="FILE has no header; its columns are 1, 2, 3, ..."
    )
    p.add_argument("--encoding", default="utf-8", help="encoding of CSV and TSV (default: utf-8)")
    add_run_arguments(p, rows_per_shard=10_000)


def run_own(args: argparse.Namespace) -> int:
    """Runs ``manifest own``: measures the file, writes parts, funnel, report and manifest."""
    job = own_job(args)
    if args.dry_run:
        return print_estimate(estimate_cost(job.rows, *measure(job)), job.output)
    state = prepare_output(
        job.output,
        job=JOB,
        settings=job.settings(),
        fresh=args.fresh,
        shared=args.part is not None,
    )
    if state is not State.FINISHED and not _write(job, args):
        return 0
    remove_parts(job.output)
    counts = rows_by_table(read_manifest(job.output)["shards"])
    done = "finished before" if state is State.FINISHED else "done"
    images = f", {counts[IMAGES.name]} images" if job.image_root is not None else ""
    print_reading_hint(job.output, PAIRS.name)
    if "split" in job.columns:
        print(format_splits(job.columns["split"], count_splits(job.output)))
    rejects = format_rejects(reject_counts(job.output))
    print(f"{done}: {counts[PAIRS.name]} pairs{images}, {rejects}: {job.output}")
    return 0 if counts[PAIRS.name] or not job.rows else 1


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
        write_report(job.output, funnel, job.settings())
        write_manifest(job.output, shards, job=JOB, settings=job.settings(), inputs=inputs)
        remove_parts(job.output)
    return True


USES = {
    "train": "for training",
    "validation": "for validation",
    "test": "for test",
    None: "unknown: train-vl pretrain refuses them unless the recipe names them",
}


def count_splits(folder: Path) -> Counter[str | None]:
    """Counts the pairs of each split in the tables of ``folder``."""
    splits = Counter[str | None]()
    for batch in iter_batches(folder / f"{PAIRS.name}-*.parquet", PAIRS, columns=["split"]):
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
    """Records the file of captions and the folder of images."""
    images = () if job.image_root is None else (path_input("--image-root", job.image_root),)
    return [file_input("--input", job.table.path), *images]


def rows_by_table(shards: Sequence[Shard]) -> dict[str, int]:
    """Returns the number of rows of each table."""
    names = (IMAGES.name, PAIRS.name, REJECTS.name)
    return {name: sum(s.rows for s in shards if s.table == name) for name in names}


def own_job(args: argparse.Namespace) -> OwnJob:
    """Counts the file's rows and returns the job that the flags describe. Raises InputError."""
    if args.image_root is not None and not args.image_root.is_dir():
        raise InputError(f"--image-root {args.image_root}: no such folder")
    table = table_file(
        args.input,
        format=args.format,
        delimiter=args.delimiter,
        encoding=args.encoding,
        header=not args.no_header,
    )
    columns = resolve_columns(args, table)
    column_indices = tuple(
        find_column_indices(table, [(f"--{n}-column", v) for n, v in columns.items()])
    )
    return OwnJob(
        table=table,
        columns=columns,
        column_indices=column_indices,
        rows=count_table_rows(table, column_indices),
        digest=hash_file(table.path),
        output=args.output,
        image_root=args.image_root,
        source=args.source,
        split=args.split,
        language=args.language,
        rows_per_shard=args.rows_per_shard,
        workers=args.workers,
    )


def resolve_columns(args: argparse.Namespace, table: TableFile) -> dict[str, str]:
    """Returns the file's columns of text, image, id and split that flags name; a column named split
    is used without its flag, unless it is excluded.
    """
    columns = {
        name: value
        for name in ("text", "image", "id", "split")
        if (value := getattr(args, f"{name}_column")) is not None
    }
    if "split" in columns or args.no_split_column:
        return columns
    column = split_column(
        column_names(table), None, list(columns.values()), f"--input {table.path}"
    )
    return columns if column is None else {**columns, "split": column}


def count_table_rows(table: TableFile, column_indices: Sequence[int]) -> int:
    """Counts a file's rows: names of shards contain their total, and progress needs an end."""
    total = 0
    with Progress(total=None, unit="row", label="counting") as progress:
        for count in count_rows(read_rows(table, column_indices)):
            progress.advance(count - total)
            total = count
    return total
