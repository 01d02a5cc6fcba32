"""Image-text pairs from web archives: python -m vlmill.pipelines.web_pairs --help

The stages of LAIT (ImageBERT, arXiv:2001.07966, section 3), as steps over units of work:
archives, then ranges of keys, then shards. What one step leaves for the next lies in files, and no
record goes through a shuffle. Units alone do, so that every runner gives the same bytes with any
number of workers.
"""

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.counting.funnel import Tally, build_funnel
from vlmill.pipelines.filters.flags import filter_files
from vlmill.pipelines.filters.picture import PictureFilters
from vlmill.pipelines.launch.options import beam_options, run_pipeline
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts.lists import TextLists, read_lists
from vlmill.pipelines.web_pairs import webdataset
from vlmill.pipelines.web_pairs.archives import find_archives
from vlmill.pipelines.web_pairs.cost import estimate_of, measure
from vlmill.pipelines.web_pairs.join import choose_texts, follow_redirects, join_urls
from vlmill.pipelines.web_pairs.mine import mine
from vlmill.pipelines.web_pairs.report import write_report
from vlmill.pipelines.web_pairs.settle import best_texts, group_pictures, settle, shared_texts
from vlmill.pipelines.web_pairs.shards import JOB, write_shard
from vlmill.pipelines.web_pairs.shown import write_shown
from vlmill.pipelines.web_pairs.units import (
    Archive,
    Job,
    Unit,
    Work,
    archive_units,
    mined_before,
    prepare_work,
    range_units,
    results,
    run_unit,
    shard_units,
)
from vlmill.schemas.console.command import say_how_to_read
from vlmill.schemas.console.cost import print_estimate
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import write_json
from vlmill.schemas.files.digests import file_input, path_input
from vlmill.schemas.files.inputs import Input
from vlmill.schemas.files.manifest import MANIFEST, read_manifest, write_manifest
from vlmill.schemas.files.outputs import FIRST_SCORES, RESCORING, State, prepare_output
from vlmill.schemas.files.reading import reject_counts
from vlmill.schemas.files.shards import Shard
from vlmill.schemas.rejects import rejects_said

TABLE_NAMES = ("pairs", "images", "rejects")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: its units follow from what the steps before have left."""

    name: str
    units: Callable[[Job], list[Unit]]
    work: Work

    def folder(self, job: Job) -> Path:
        """Where its units leave their files."""
        return job.mined if self.units is archive_units else job.joins

    def run(self, job: Job, unit: Unit) -> None:
        """Does a unit unless it is done."""
        about: dict[str, Any] = {}
        if self.units is archive_units:
            archive = job.archives[unit.number]
            about = {"path": archive.path, "size": archive.size}
        run_unit(job, self.folder(job), unit, self.work, **about)


def _ranged(name: str, work: Work) -> Step:
    return Step(name=name, units=partial(range_units, step=name), work=work)


STEPS = (
    Step(name="mine", units=archive_units, work=mine),
    _ranged("follow", follow_redirects),
    _ranged("join", join_urls),
    _ranged("choose", choose_texts),
    _ranged("best", best_texts),
    _ranged("shared", shared_texts),
    _ranged("settle", settle),
    Step(name="groups", units=lambda job: [Unit(name="groups", number=0)], work=group_pictures),
    Step(name="shards", units=shard_units, work=write_shard),
)


def run_steps(job: Job) -> None:
    """Does everything in this process, unit by unit: what Beam does, in a plain loop."""
    for step in STEPS:
        for unit in step.units(job):
            step.run(job, unit)


class RunUnits(beam.DoFn):
    """Does units: (number, [Unit]) -> (0, how many)."""

    def __init__(self, job: Job, step: int) -> None:
        self.job, self.step = job, step

    def setup(self) -> None:
        self.stack = ExitStack()
        self.progress: Progress | None = None

    def teardown(self) -> None:
        self.stack.close()

    def process(self, numbered: tuple[int, Iterable[Unit]]) -> Iterator[tuple[int, int]]:
        step = STEPS[self.step]
        if self.progress is None:  # all steps are set up at once, and come one after the other
            total = len(step.units(self.job))
            bar = Progress(total=total, unit="unit", label=f"web pairs, {step.name}")
            self.progress = self.stack.enter_context(bar)
        units = list(numbered[1])
        for unit in units:
            step.run(self.job, unit)
        self.progress.advance(len(units))
        yield 0, len(units)


def build(p: beam.Pipeline, job: Job) -> Any:
    """Builds the job: each step's units, when those of the step before are done."""
    done = p | "Start" >> beam.Create([0], reshuffle=False)
    for number, step in enumerate(STEPS):
        # A group for each unit spreads them over the workers, one group for all awaits them.
        done = (
            done
            | f"Units to {step.name}" >> beam.FlatMap(partial(_numbered_units, job, number))
            | f"Spread to {step.name}" >> beam.GroupByKey()
            | step.name.capitalize() >> beam.ParDo(RunUnits(job, number))
            | f"All of {step.name}" >> beam.GroupByKey()
        )
    return done


def run_beam(job: Job, options: PipelineOptions) -> None:
    """Does everything on the runner that the options name, and waits for its end."""
    with run_pipeline(options) as p:
        build(p, job)


def _numbered_units(job: Job, step: int, _: Any) -> list[tuple[int, Unit]]:
    return [(unit.number, unit) for unit in STEPS[step].units(job)]


def run(args: argparse.Namespace, rules: WebPairRules, beam_flags: Sequence[str]) -> int:
    """Runs the job unless its output is there, and says what came out."""
    options = beam_options(beam_flags)
    filters = PictureFilters.load(filter_files(args))
    lists = read_lists(args.blocked_words, args.vocabulary)
    archives = find_archives(args.warc)
    output = Path(args.output)
    if args.dry_run:
        return print_estimate(estimate_of(archives, measure(archives, rules)), output)
    settings = settings_of(args, rules, filters)
    state = prepare_output(output, job=JOB, settings=settings, fresh=args.fresh)
    archives_and_mined = with_mined(archives, mined_before(output))
    job = job_of(args, rules, archives_and_mined, filters, lists)
    if state is State.FINISHED and _lists(output, job):
        remove_joins(job)
        return say_result(output, "finished before", args.warc)
    # Archives have come to a finished output: until all is done, nobody reads it.
    (output / MANIFEST).unlink(missing_ok=True)
    for name in (FIRST_SCORES, RESCORING):
        shutil.rmtree(output / name, ignore_errors=True)
    prepare_work(job)
    run_beam(job, options)
    finish(job, settings, inputs_of(args))
    return say_result(output, "done", args.warc)


def settings_of(
    args: argparse.Namespace, rules: WebPairRules, filters: PictureFilters
) -> dict[str, Any]:
    """What decides the output beside the archives, to which more may come."""
    lists = [*args.blocked_words, *([args.vocabulary] if args.vocabulary else [])]
    return {
        "lists": {path: file_input("", path).digest for path in lists},
        **{
            flag.strip("-"): path and file_input(flag, path).digest
            for flag, path in filter_files(args).items()
        },
        **filters.settings(),
        "shards": args.shards,
        "format": args.format,
        "exclude": list(args.exclude),
        "exclude_hash": list(args.exclude_hash),
        **rules.as_settings(),
    }


def job_of(
    args: argparse.Namespace,
    rules: WebPairRules,
    archives: Sequence[Archive],
    filters: PictureFilters,
    lists: TextLists,
) -> Job:
    """What every unit of the run is to know."""
    return Job(
        output=str(args.output),
        archives=tuple(archives),
        shards=args.shards,
        rules=rules,
        filters=filters,
        lists=lists,
        exclude=tuple(args.exclude),
        exclude_hash=tuple(args.exclude_hash),
        webdataset=args.format == "webdataset",
    )


def with_mined(named: Sequence[tuple[str, int]], mined: Sequence[Archive]) -> list[Archive]:
    """The archives that are named and those that the output has mined before, by their paths.

    Raises InputError for one whose size is not what it was.
    """
    archives = {archive.path: archive for archive in mined}
    for path, size in named:
        archive = archives.setdefault(path, Archive(path=path, size=size))
        if archive.size != size:
            raise InputError(
                f"--warc: {path} has {size} bytes and had {archive.size} when it was mined; "
                "give --fresh to mine all archives again"
            )
    return sorted(archives.values(), key=lambda archive: archive.path)


def _lists(output: Path, job: Job) -> bool:
    """Whether the finished output is of these very archives.

    Raises InputError if it is of more of them: what they left has been removed, and their pairs
    would be gone.
    """
    listed = read_manifest(output)["settings"]["archives"]
    archives = [[archive.path, archive.size] for archive in job.archives]
    if lost := [path for path, size in listed if [path, size] not in archives]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"--output {output} is also of {lost[0]}{more}, of which its work/archives has nothing "
            "any more: name all archives in --warc, or give another folder"
        )
    return bool(listed == archives)


def inputs_of(args: argparse.Namespace) -> list[Input]:
    """What the job has read, for its manifest."""
    files = {
        **{flag: [path] if path else [] for flag, path in filter_files(args).items()},
        "--blocked-words": args.blocked_words,
        "--vocabulary": [args.vocabulary] if args.vocabulary else [],
        "--exclude": [path for path in args.exclude if Path(path).is_file()],
    }
    read = [file_input(flag, path) for flag, paths in files.items() for path in paths]
    pictures = [path_input("--exclude-hash", path) for path in args.exclude_hash]
    return [path_input("--warc", args.warc), *read, *pictures]


def finish(job: Job, settings: dict[str, Any], inputs: Sequence[Input]) -> None:
    """Writes funnel, metrics, report and, last, the manifest; the joins are needed no more."""
    output, tallies = Path(job.output), Counter[Tally]()
    metrics: dict[str, list[dict[str, Any]]] = {}
    shards: list[Shard] = []
    for step in STEPS:
        for result in results(step.folder(job), step.units(job)):
            tallies.update(result.tallies)
            metrics.setdefault(step.name, []).append(result.metrics)
            shards += result.shards
    mined = {"wrong_digests": sum(part["wrong_digests"] for part in metrics["mine"])}
    written = metrics["shards"]
    funnel = build_funnel(tallies.items())
    archives = [[archive.path, archive.size] for archive in job.archives]
    if job.webdataset:
        webdataset.write_index(output, [part["tar"] for part in written])
    write_json(output / "funnel.json", funnel)
    counted = {"archives": len(archives), **mined, **metrics["groups"][0]}
    write_json(output / "metrics.json", counted)
    write_shown(job, written)
    write_report(output, {**settings, "archives": len(archives)})
    settings = {**settings, "archives": archives}
    write_manifest(output, shards, job=JOB, settings=settings, inputs=inputs)
    remove_joins(job)


def remove_joins(job: Job) -> None:
    """Removes what only a run at work needs; what archives left stays for those that come."""
    for folder in job.joins.parent.glob("joins-*"):
        shutil.rmtree(folder)


def say_result(output: Path, done: str, warc: str) -> int:
    """Prints what the output holds; returns the exit status."""
    shards: list[Shard] = read_manifest(output)["shards"]
    rows = {name: sum(s.rows for s in shards if s.table == name) for name in TABLE_NAMES}
    rejects = rejects_said(reject_counts(output))
    print(f"{done}: {rows['pairs']} pairs, {rows['images']} images, {rejects}: {output}")
    say_how_to_read(output, TABLE_NAMES[0])
    return 0 if rows["pairs"] or not rows["rejects"] else 1
