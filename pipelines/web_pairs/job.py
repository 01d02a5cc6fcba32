"""Image-text pairs from web archives: python -m vlmill.pipelines.web_pairs --help

The stages of LAIT (ImageBERT, arXiv:2001.07966, section 3), as steps over units of work:
archives, then ranges of keys, then shards.
"""

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmill.pipelines.filters.flags import named_files, word_flags
from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.index import Index
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.flags import build_policy
from vlmill.pipelines.web.fetching.rounds import default_buckets
from vlmill.pipelines.web.texts.lists import TextLists, describe_lists, read_lists
from vlmill.pipelines.web.texts.phrases import LanguageFiles
from vlmill.pipelines.web_pairs import steps, webdataset
from vlmill.pipelines.web_pairs.archives import (
    add_sizes,
    find_archives,
    indexed_archives,
    require_kind,
)
from vlmill.pipelines.web_pairs.blocked import read_blocked_pages
from vlmill.pipelines.web_pairs.cost import estimate_cost, measure
from vlmill.pipelines.web_pairs.fetch import fetch_missing
from vlmill.pipelines.web_pairs.report import write_report, write_shown
from vlmill.pipelines.web_pairs.rules_file import changed_rules
from vlmill.pipelines.web_pairs.shards import JOB
from vlmill.pipelines.web_pairs.sources import TABLE, WARC, WAT, Archive, SourceFile
from vlmill.pipelines.web_pairs.stages import RECORDS, STAGES
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.pipelines.web_pairs.table_rows import TableColumns, find_tables, require_columns
from vlmill.pipelines.web_pairs.units import (
    Job,
    cut_archives,
    keep_index,
    mined_before,
    prepare_work,
)
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.files.atomic import remove_leftovers, write_json
from vlmill.runtime.files.digests import file_input, path_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, write_manifest
from vlmill.runtime.files.outputs import FIRST_SCORES, PLAN, RESCORING, State, prepare_job
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.remote_lock import SECONDS
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.flags import local_workers
from vlmill.runtime.units.funnel import Tally, build_funnel
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import format_rejects

if TYPE_CHECKING:
    from vlmill.pipelines.filters.scorer import Scorer

SHARD_BYTES = 512 << 20  # of archives per shard, which bounds the images of a shard
TABLE_NAMES = ("pairs", "images", "rejects")


def run(
    args: argparse.Namespace,
    rules: WebPairRules,
    languages: LanguageFiles,
    beam_flags: Sequence[str],
) -> int:
    """Runs the job unless its output exists, and prints the result."""
    run_steps = select_runner(
        beam_flags,
        workers=local_workers(args.workers, beam_flags),
        module=steps.__name__,
        paths={
            **{"--warc": args.warc, "--wat": args.wat, "--table": args.table},
            "--output": str(args.output),
        },
        share=args.part,
    )
    filters = ImageFilters.load(
        args.safety_model,
        args.realism_model,
        safety_threshold=rules.safety_threshold,
        realism_threshold=rules.realism_threshold,
    )
    lists = read_lists(args.blocked_words, args.vocabulary, languages, kinds=word_flags(args))
    output = to_path(args.output)
    index, archives = resolve_archives(args)
    if args.dry_run:
        rate = measure(archives, rules, args.allow_address, read_columns(args))
        return print_estimate(estimate_cost(sized_by(index, archives), rate), output)
    if args.shards is None:
        args.shards = choose_shards(output, sized_by(index, archives))
    settings = read_settings(args, rules, filters) | languages.as_settings()
    shared, state = args.part is not None, prepare_job(args, JOB, settings)
    archives_and_mined = with_mined(archives, mined_before(output), whole=index is not None)
    job = build_job(args, rules, archives_and_mined, filters, lists)
    if state is State.FINISHED and _lists(output, job):
        remove_joins(job)
        return say_result(output, "finished before")
    # The finished output has new archives: until they are done, no program reads it.
    (output / MANIFEST).unlink(missing_ok=True)
    for name in (FIRST_SCORES, RESCORING):
        remove_tree(output / name)
    if index is not None:
        prepare_work(job, shared=shared)
        keep_index(job, index)
    if args.fetch:
        with journal_errors():
            fetched = fetch_missing(
                job,
                build_policy(args),
                run_steps,
                buckets=args.buckets or default_buckets(None, on_runner=bool(beam_flags)),
                lock_seconds=SECONDS if args.lock_seconds is None else args.lock_seconds,
            )
        job = build_job(args, rules, with_mined(fetched, job.archives), filters, lists)
    prepare_work(job, shared=shared)
    run_steps(job, STEPS)
    with end_job(output, args.part) as is_last:
        if not is_last:
            return 0
        finish(job, settings, collect_inputs(args))
        return say_result(output, "done")


def resolve_archives(args: argparse.Namespace) -> tuple[Index | None, list[SourceFile]]:
    """Returns the index, if one is given, and all files with pages. Raises InputError."""
    index, files = None, list[SourceFile]()
    for kind, pattern in ((WARC, args.warc), (WAT, args.wat)):
        if pattern is not None:
            flag = f"--{kind}"
            sizes = find_archives(pattern, base=args.base, allowed=args.allow_address, flag=flag)
            require_kind(kind, f"{flag} {pattern}", [path for path, _ in sizes])
            files += [SourceFile(path, size, kind) for path, size in sizes]
    if args.index is not None:
        index = indexed_archives(args.index, args.base, args.allow_address)
        argument = f"--index {args.index}"
        sizes = add_sizes(argument, list(index.ranges), args.allow_address)
        files += [SourceFile(path, size) for path, size in sizes]
    if args.table is not None:
        tables = find_tables(args.table)
        require_columns([path for path, _ in tables], read_columns(args))
        files += [SourceFile(path, size, TABLE) for path, size in tables]
    return index, files


def read_columns(args: argparse.Namespace) -> TableColumns:
    """Returns the columns of ``--table`` that the flags name."""
    return TableColumns(
        image_url=args.image_column, text=args.text_column, page_url=args.page_column
    )


def choose_shards(output: Path, archives: Sequence[SourceFile]) -> int:
    """Returns the number of shards: that of an earlier run, else one for each ``SHARD_BYTES``."""
    plan = output / PLAN
    if plan.exists():
        number = read_json(plan).get("settings", {}).get("shards", 1)
        return number if isinstance(number, int) else 1
    return max(1, math.ceil(sum(file.size for file in archives) / SHARD_BYTES))


def sized_by(index: Index | None, archives: list[SourceFile]) -> list[SourceFile]:
    """Returns the archives with the number of bytes that are read from each."""
    if index is None:
        return archives
    return [
        file._replace(size=index.count_bytes(file.path)) if file.path in index.ranges else file
        for file in archives
    ]


def read_settings(
    args: argparse.Namespace, rules: WebPairRules, filters: ImageFilters
) -> dict[str, Any]:
    """Returns the settings that determine the output, except the archives, which may grow."""
    lists = [*args.blocked_words, *args.blocked_pages]
    return {
        "lists": {path: file_input("", path).digest for path in lists},
        **describe_lists(args.vocabulary, word_flags(args)),
        **({} if args.scorer is None else {"scorer": file_input("", args.scorer).digest}),
        **({} if args.index is None else {"index": path_input("--index", args.index).digest}),
        **({"fetch": build_policy(args).as_settings()} if args.fetch else {}),
        **_column_settings(read_columns(args)),
        "shards": args.shards,
        "format": args.format,
        "exclude": list(args.exclude),
        "exclude_hash": list(args.exclude_hash),
        **rules.as_settings(),
        **filters.settings(),  # with the thresholds of the models
    }


def _column_settings(columns: TableColumns) -> dict[str, Any]:
    named = {name: value for name, value in dataclasses.asdict(columns).items() if value}
    return {"columns": named} if named else {}


def build_job(
    args: argparse.Namespace,
    rules: WebPairRules,
    archives: Sequence[Archive],
    filters: ImageFilters,
    lists: TextLists,
) -> Job:
    """Builds the state that every unit of the run needs."""
    return Job(
        output=str(args.output),
        archives=tuple(archives),
        shards=args.shards,
        rules=rules,
        filters=filters,
        lists=lists,
        blocked_pages=read_blocked_pages(args.blocked_pages),
        exclude=tuple(args.exclude),
        exclude_hash=tuple(args.exclude_hash),
        webdataset=args.format == "webdataset",
        indexed=args.index is not None,
        allowed=tuple(args.allow_address),
        columns=read_columns(args),
        scorer=_load_scorer(args.scorer),
    )


def _load_scorer(path: str | None) -> "Scorer | None":
    if path is None:
        return None
    from vlmill.pipelines.filters.scorer import Scorer  # loads slowly

    return Scorer.load(path)


def with_mined(
    files: Sequence[SourceFile | tuple[str, int]], mined: Sequence[Archive], *, whole: bool = False
) -> list[Archive]:
    """Returns the named archives and the archives mined into the output before, by path.

    ``whole``: new archives are mined in one part. Raises InputError for an archive that has
    changed, or that two flags name.
    """
    archives = {archive.path: archive for archive in mined}
    sources = [SourceFile(*file) for file in files]
    new = [Archive(path=file.path, size=file.size, kind=file.kind) for file in sources]
    for archive in new if whole else cut_archives(new):
        archives.setdefault(archive.path, archive)
    for path, size, kind in sources:
        archive = archives[path]
        if archive.kind != kind:
            raise InputError(
                f"--{kind}: {path} is also read as --{archive.kind}; name it with one of the flags"
            )
        if archive.size != size:
            raise InputError(
                f"--{kind}: {path} has {size} bytes and had {archive.size} when it was mined; "
                "give --fresh to mine all archives again"
            )
    return sorted(archives.values(), key=lambda archive: archive.path)


def _lists(output: Path, job: Job) -> bool:
    """Returns whether the finished output was made from exactly these archives.

    Raises InputError if it was made from more: their intermediate files were removed, so their
    pairs would be lost.
    """
    manifest_archives = read_manifest(output)["settings"]["archives"]
    archives = [[archive.path, archive.size] for archive in job.archives]
    if lost := [path for path, size in manifest_archives if [path, size] not in archives]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"--output {output} was also written from {lost[0]}{more}, and its "
            "work/archives no longer has their results: name all archives in --warc, or "
            "give another folder"
        )
    return bool(manifest_archives == archives)


def collect_inputs(args: argparse.Namespace) -> list[Input]:
    """Returns the inputs of the job, for its manifest."""
    files = {
        **{flag: [path] for flag, path in named_files(args).items()},
        "--blocked-words": args.blocked_words,
        "--blocked-pages": args.blocked_pages,
        "--rules": [args.rules] if args.rules else [],
        "--scorer": [args.scorer] if args.scorer else [],
        "--exclude": [path for path in args.exclude if Path(path).is_file()],
    }
    read = [
        (path_input if Path(path).is_dir() else file_input)(flag, path)
        for flag, paths in files.items()
        for path in paths
    ]
    images = [path_input("--exclude-hash", path) for path in args.exclude_hash]
    return [*archive_inputs(args), *read, *images]


def archive_inputs(args: argparse.Namespace) -> list[Input]:
    """Returns the inputs that named the archives: each list or index file, else the archives."""
    flags = {"--index": args.index, "--warc": args.warc, "--wat": args.wat, "--table": args.table}
    return [
        path_input(flag, path.removeprefix("@")) for flag, path in flags.items() if path is not None
    ]


def finish(job: Job, settings: dict[str, Any], inputs: Sequence[Input]) -> None:
    """Writes funnel, metrics, report and, last, the manifest; removes the joins."""
    output, tallies = to_path(job.output), Counter[Tally]()
    metrics: dict[str, list[dict[str, Any]]] = {}
    shards: list[Shard] = []
    for step in STEPS:
        for result in step.results(job):
            tallies.update(result.tallies)
            metrics.setdefault(step.name, []).append(result.metrics)
            shards += result.shards
    mined = {"wrong_digests": sum(part["wrong_digests"] for part in metrics["mine"])}
    written = metrics["shards"]
    funnel = build_funnel(tallies.items(), STAGES)
    archives = [[archive.path, archive.size] for archive in job.archives]
    if job.webdataset:
        webdataset.write_index(output, [part["tar"] for part in written])
    write_json(output / "funnel.json", funnel)
    summary = {"archives": len(archives), **mined, **metrics["groups"][0]}
    write_json(output / "metrics.json", summary)
    write_shown(job, written, metrics.get("decode", []))
    write_report(output, {**settings, **changed_rules(job.rules), "archives": len(archives)})
    settings = {**settings, "archives": archives}
    for folder in (job.mined, output):  # files of workers that were killed during the run
        remove_leftovers(folder)
    write_manifest(output, shards, job=JOB, settings=settings, inputs=inputs)
    remove_joins(job)


def remove_joins(job: Job) -> None:
    """Removes the files that only a running job needs; keeps mined archives for later runs."""
    for folder in job.joins.parent.glob("joins-*"):
        remove_tree(folder)


def say_result(output: Path, done: str) -> int:
    """Prints a summary of the output; returns the exit status."""
    shards: list[Shard] = read_manifest(output)["shards"]
    rows = {name: sum(s.rows for s in shards if s.table == name) for name in TABLE_NAMES}
    rejects = format_rejects(reject_counts(output))
    print(f"{done}: {rows['pairs']} pairs, {rows['images']} images, {rejects}: {output}")
    if not rows["pairs"]:
        print_status(f"warning: the result has no pairs; {output / 'report.html'} counts why")
    print_reading_hint(output, TABLE_NAMES[0])
    return 0 if rows["pairs"] or not rows["rejects"] or _has_records(output) else 1


def _has_records(output: Path) -> bool:
    """Returns whether the archives had a page or an image that could be read."""
    stages = {stage["stage"]: stage for stage in read_json(output / "funnel.json")}
    return bool(stages[RECORDS.name]["out"])
