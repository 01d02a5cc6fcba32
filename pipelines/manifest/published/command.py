"""Runs published data sets: ``python -m vlmill.pipelines.manifest DATASET --help``."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cost import published_estimate
from vlmill.pipelines.manifest.entries import DataSet, Reading, first_paths
from vlmill.pipelines.manifest.flags import add_run_arguments
from vlmill.pipelines.manifest.own.command import count_splits, format_splits
from vlmill.pipelines.manifest.published.counts import (
    Count,
    compare_counts,
    format_counts,
    format_no_image_warning,
    format_note,
    format_unread,
    format_warnings,
    list_unread,
)
from vlmill.pipelines.manifest.published.fetch import add_fetch, format_fetch_counts
from vlmill.pipelines.manifest.published.on_runner import PublishedRun, collect_parts, list_steps
from vlmill.pipelines.manifest.published.overlaps import overlap_rows
from vlmill.pipelines.manifest.published.parts import Job, Tally, make_funnel, make_parts
from vlmill.pipelines.manifest.published.placeholders import find_placeholders
from vlmill.pipelines.manifest.published.report import write_published_report
from vlmill.pipelines.manifest.published.settings import inputs_of_job, read_overlaps, read_settings
from vlmill.pipelines.manifest.published.splits import add_excluded_splits
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.manifest.sets import SETS
from vlmill.pipelines.manifest.spooled import remove_parts
from vlmill.pipelines.web.fetching.flags import build_policy
from vlmill.runtime.console.command import path_or_url, print_reading_hint, print_status
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_job
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import IMAGE_ENDINGS
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import ALIASES, BOXES, IMAGES, REJECTS, Table

DISTANCES = (0, 4)
SHARED = """\

Rows are in the order of the published files. Texts: Unicode NFC, white space as one space;
nothing else is changed. A missing or broken image is a row of rejects, and its pairs stay
(--require-images drops them). `images` is written if images are in DIR or --images names them.
Files may be packed: .gz, or inside a .zip or .tar in DIR. The counts are compared with the
published ones; a difference is a warning. The same command continues a killed run, to the same
bytes. With flags of Apache Beam (--runner=...) the runner's workers write the parts.
"""
EPILOG = """\
example:
  python -m vlmill.pipelines.manifest {name} --input {name}-files --output {name}

Writes DIR/{tables}-*.parquet, rejects-*.parquet, funnel.json, report.html and, last,
_manifest.json.
docs/data-sets.md: sources of the files, how each row is made, licences.
"""


# Repeatable flags that name files and folders.
PATH_FLAGS = (
    ("--images", "DIR", "folder, zip or tar of images, searched before --input"),
    (
        "--exclude",
        "FILE",
        "drop rows about these images: image_ids or aliases, one per line, a Parquet file with "
        "image_id, or an output folder with images and aliases",
    ),
    ("--exclude-hash", "IMAGES", "drop rows about images that look like the images of this table"),
    ("--compare", "FILE", "like --exclude, but only counts and reports"),
    ("--compare-hash", "IMAGES", "like --exclude-hash, but only counts and reports"),
)


def add_arguments(p: argparse.ArgumentParser, name: str, data_set: DataSet) -> None:
    """Adds the flags of all published data sets, then the flags of this data set."""
    p.description = data_set.about.strip() + "\n" + SHARED
    tables = "-*.parquet, ".join(t.name for t in dict.fromkeys([*data_set.tables, IMAGES, ALIASES]))
    p.epilog = EPILOG.format(name=name, tables=tables)
    p.add_argument(
        "--input",
        required=True,
        type=path_or_url,
        metavar="DIR",
        help="folder of the published files",
    )
    p.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the output"
    )
    for flag, metavar, description in PATH_FLAGS:
        p.add_argument(
            flag,
            action="append",
            default=[],
            type=path_or_url,
            metavar=metavar,
            help=f"{description} (repeatable)",
        )
    p.add_argument(
        "--require-images", action="store_true", help="drop rows whose image cannot be read"
    )
    add_fetch(p)
    p.add_argument(
        "--max-distance",
        type=int,
        choices=DISTANCES,
        default=0,
        help="largest number of differing bits between perceptual hashes of one image (default: 0)",
    )
    add_excluded_splits(p)
    p.add_argument(
        "--exclude-from",
        choices=("all", "train"),
        default="all",
        help="splits that --exclude applies to; train: only the training split, as in "
        "12-in-1 (default: all)",
    )
    p.add_argument(
        "--strict",
        action="store_true",
        help="end with status 2 if a count differs or a file has unknown columns",
    )
    add_run_arguments(p, rows_per_shard=100_000)
    data_set.add_arguments(p)


def run_published(name: str, data_set: DataSet, args: argparse.Namespace) -> int:
    """Opens the data set, writes its parts, then funnel, report and manifest."""
    job, settings = open_job(name, data_set, args)
    if args.dry_run:
        return print_estimate(published_estimate(job), job.output)
    state = prepare_job(args, f"manifest {name}", settings)
    if state is State.FINISHED and args.retry_failed:
        (args.output / MANIFEST).unlink()
        state = State.PARTIAL
    if state is not State.FINISHED:
        for line in job.reading.messages:
            print_status(line)
        with with_fetched(job, args) as job:
            if not _write(job, settings, data_set, args):
                return 0
    remove_parts(args.output)
    return _say_done(data_set, args.output, state)


def _write(job: Job, settings: dict[str, Any], data_set: DataSet, args: argparse.Namespace) -> bool:
    """Writes the missing parts, then funnel, report and manifest.

    Returns False if another ``--part`` writes funnel, report and manifest.
    """
    inputs = inputs_of_job(args)
    if job.reading.repeated_bytes and job.with_images:
        job = replace(job, placeholders=find_placeholders(job.folder, job.reading, job.fetched))
    run = None
    if args.beam_flags or args.part is not None:
        run_steps = select_runner(
            args.beam_flags,
            workers=1,
            module=__name__,
            paths={"--input": str(args.input), "--output": str(args.output)},
            share=args.part,
        )
        run = PublishedRun(open_named_job, args, job.placeholders)
        run_steps(run, list_steps(job))
    with end_job(job.output, args.part) as is_last:
        if is_last:
            shards, tally = make_parts(job) if run is None else collect_parts(run, job)
            _write_end(job, settings, data_set, args, inputs, shards, tally)
        return is_last


def _write_end(
    job: Job,
    settings: dict[str, Any],
    data_set: DataSet,
    args: argparse.Namespace,
    inputs: Sequence[Input],
    shards: Sequence[Shard],
    tally: Tally,
) -> None:
    """Writes funnel, report and manifest, and removes the working files."""
    counts = compare_counts(tally.groups, job.reading.expected)
    unread = list_unread(job.reading)
    if args.strict and (lines := [*map(format_unread, unread), *format_warnings(counts)]):
        raise InputError(f"{lines[0].partition(': ')[2]}; without --strict it is a warning")
    for file, content in job.reading.files.items():
        write_json(args.output / file, content)
    funnel = make_funnel(job, tally)
    write_json(args.output / "funnel.json", funnel)
    about = summarize_run(tally, counts, job) | {"unread": unread}
    write_published_report(args.output, data_set, funnel, about, settings)
    write_manifest(
        args.output,
        shards,
        job=f"manifest {job.name}",
        settings=settings,
        inputs=inputs,
        about=about,
    )
    remove_parts(args.output)


def open_named_job(args: argparse.Namespace) -> Job:
    """Opens the data set that the arguments name; called on a worker."""
    return open_job(args.dataset, SETS[args.dataset], args)[0]


@contextmanager
def with_fetched(job: Job, args: argparse.Namespace) -> Iterator[Job]:
    """Yields the job; with ``--fetch`` it includes the downloaded images."""
    if not args.fetch:
        yield job
        return
    from vlmill.pipelines.manifest.published.downloads import (
        fetched_images,  # loads the modules of a crawl
    )

    manners, retry = build_policy(args), args.retry_failed
    with fetched_images(job.reading, job.folder, job.output, manners, retry=retry) as fetched:
        yield replace(job, fetched=fetched)


def _say_done(data_set: DataSet, output: Path, state: State) -> int:
    manifest = read_manifest(output)
    counts = [Count(*count) for count in manifest["counts"]]
    for line in format_counts(counts):
        print_status(line)
    for line in format_warnings(counts):
        print_status(line)
    for file in manifest["unread"]:
        print_status(format_unread(file))
    if "fetch" in manifest:
        print_status(format_fetch_counts(manifest["fetch"], sum(c.published or 0 for c in counts)))
    for note, number in manifest["notes"].items():
        print_status(format_note(note, number))
    for name, kind, number, done in manifest["overlaps"]:
        print_status(f"shared with {name} by {kind}: {number} images, {done}")
    rows = {t: 0 for t in (*(t.name for t in data_set.tables), IMAGES.name)}
    for shard in manifest["shards"]:
        rows[shard.table] = rows.get(shard.table, 0) + shard.rows
    row_counts = ", ".join(
        # A row of boxes has all boxes of an image.
        f"{number} {'rows of boxes' if table == BOXES.name else table}"
        for table, number in rows.items()
        if number and table != REJECTS.name
    )
    if counts and not rows[IMAGES.name] and any(s.table == IMAGES.name for s in manifest["shards"]):
        print_status(format_no_image_warning(counts, output))
    print_reading_hint(output, data_set.tables[0].name)
    if "split_column" in manifest["settings"]:
        print(format_splits(manifest["settings"]["split_column"], count_splits(output)))
    rejects = format_rejects(reject_counts(output))
    print(f"{state.outcome}: {row_counts or 'no rows'}, {rejects}: {output}")
    return 0 if row_counts or not any(count.rows for count in counts) else 1


def summarize_run(tally: Tally, counts: Sequence[Count], job: Job) -> dict[str, Any]:
    """Returns the manifest's records: counts, repairs and overlaps."""
    return {
        "counts": [list(count) for count in counts],
        "notes": dict(sorted(tally.notes.items())),
        "overlaps": [list(row) for row in overlap_rows(job.overlaps)],
        **({} if job.fetched is None else {"fetch": job.fetched.counts()}),
    }


def open_job(name: str, data_set: DataSet, args: argparse.Namespace) -> tuple[Job, dict[str, Any]]:
    """Returns the job of the flags, and the settings that a continued run must share.

    Raises InputError.
    """
    if args.fetch:
        if args.contact is None:
            raise InputError("--fetch needs --contact: an e-mail address or a page about you")
        if args.beam_flags:
            raise InputError(f"--fetch runs on this machine only; remove {args.beam_flags[0]}")
    if args.retry_failed and not args.fetch:
        raise InputError("--retry-failed goes with --fetch")
    folder = Folder(args.input, args.images)
    reading = data_set.open(folder, args)
    folder.is_flat = is_flat(folder, reading)
    images = args.fetch or reading.own_images or folder.has_images(reading.image_folders)
    for flag in ("require_images", "exclude_hash", "compare_hash"):
        if getattr(args, flag) and not images:
            raise InputError(
                f"--{flag.replace('_', '-')}: no images are in --input {args.input}; "
                "give their folder with --images DIR"
            )
    overlaps = read_overlaps(folder, args)  # read first: the settings contain the lists' sizes
    settings = read_settings(name, data_set, reading, args)
    job = Job(
        name=name,
        reading=reading,
        folder=folder,
        output=args.output,
        tables=order_tables(reading.tables or data_set.tables, images),
        overlaps=overlaps,
        producer={"job": f"manifest {name}", **settings},
        require_images=args.require_images,
        rows_per_shard=args.rows_per_shard,
        workers=args.workers,
    )
    return job, settings


def is_flat(folder: Folder, reading: Reading) -> bool:
    """Returns whether images of the first entries are directly in the folder."""
    if reading.own_images or folder.has_images(reading.image_folders):
        return False
    files = folder.files(*IMAGE_ENDINGS)
    return bool(files) and folder.has_any(first_paths(reading.entries()))


def order_tables(tables: Sequence[Table], images: bool) -> tuple[Table, ...]:
    """Returns the tables of a run in the order that a part's shards are written: rejects last."""
    data_tables = tuple(table for table in tables if table is not IMAGES)
    return (*((IMAGES,) if images else ()), *data_tables, ALIASES, REJECTS)
