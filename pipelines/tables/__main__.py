"""Concatenates tables and removes rows: python -m vlmill.pipelines.tables --help"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vlmill.pipelines.tables import choice
from vlmill.pipelines.tables.conditions import Condition
from vlmill.pipelines.tables.inputs import IDS, TableInput, main_table, open_inputs
from vlmill.pipelines.tables.job import NOT_FOUND, Job, absent_lines, run_job
from vlmill.pipelines.tables.removal import Removal, count_trained_on, find_removal, read_request
from vlmill.runtime.console.command import (
    Parser,
    add_count,
    path_or_url,
    print_status,
    run_command,
)
from vlmill.runtime.files.digests import file_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.files.outputs import State, prepare_job, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.units.flags import (
    add_run_flags,
    add_workers,
    local_workers,
    lock_job,
)
from vlmill.runtime.units.launch.loading import parse_job
from vlmill.runtime.units.runner import select_runner
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import TABLES

DESCRIPTION = """\
Concatenates tables, and filters, samples or removes their rows. IN is a job's output folder with
all its tables, or one table as a file or a glob. All tables of every IN except `rejects` are
written.
"""
SHARED = """\
Manifests and contracts are checked first. A warning is printed if the inputs of an IN have
changed since. The same command continues a killed run, to the same rows. Memory: a row group, and
the figures above. With flags of Apache Beam (--runner=...) the runner's workers write the shards.
"""
CONCAT = """\
Concatenates tables of the same name in the order of IN. The first row with an id is kept; the
others are rejects: `duplicate`, or `id_conflict` if the content differs. Regions of different
detectors are refused. Memory: about 20 MB per table; ids are on disk.
"""
FILTER = """\
Keeps the rows of the main table that fulfil a condition or have a score of at least S, and the
rows of other tables about their images. The main table is pairs, else the examples of a task, else
boxes, regions or images. A comparison with null is false. Memory: 8 bytes for each kept image and
pair.
"""
SAMPLE = """\
Samples rows of the main table by their ids and --seed only, so any shards in any order give the
same rows, and keeps the rows of other tables about their images. Memory: 8 bytes for each row.
"""
REMOVE = """\
Writes all tables without the rows of given images, when someone asks for it. Images are named by
URL (of the image or its page), by SHA-256 of their bytes, or by image_id. Their pairs, regions
and aliases are removed too, also from lists of negatives and neighbours. Requested images that
are not in IN are printed and listed in not_found.json. The old folder stays: delete it yourself.
--checkpoints prints which checkpoints were trained on the images.
"""
EPILOG = """\
examples:
  python -m vlmill.pipelines.tables concat cc sbu coco --output pretraining
  python -m vlmill.pipelines.tables filter mined --where 'score > 0.5' --output better
  python -m vlmill.pipelines.tables filter scored --min-score 0.8 --output better
  python -m vlmill.pipelines.tables sample cc --rows 100000 --seed 1 --output small
  python -m vlmill.pipelines.tables remove mined --urls asked.txt --output rest \\
      --checkpoints trained

Writes DIR/NAME-*.parquet for each table, rejects-*.parquet, funnel.json, report.html and, last,
_manifest.json.
"""


# Of all inputs: starting a second process takes half a second, as long as these tables.
ONE_PROCESS_BYTES = 32 << 20


def _add_shared(p: argparse.ArgumentParser) -> None:
    p.add_argument("inputs", nargs="+", metavar="IN", help="a folder, a file or a glob")
    p.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the output"
    )
    add_workers(p)
    add_run_flags(p, dry_run=False)


def _add_filter(p: argparse.ArgumentParser) -> None:
    rule = p.add_mutually_exclusive_group(required=True)
    rule.add_argument(
        "--where",
        metavar="CONDITION",
        help="condition: comparisons of columns with values (== != < <= > >= in, not in, "
        "is None), combined by and, or, not",
    )
    rule.add_argument(
        "--min-score",
        type=float,
        metavar="S",
        help="lowest score of a pair, as written by train-vl score; pairs with lower scores are "
        "dropped as `low_score`",
    )
    _add_table(p)


def _add_sample(p: argparse.ArgumentParser) -> None:
    amount = p.add_mutually_exclusive_group(required=True)
    add_count(amount, "--rows", "number of rows")
    amount.add_argument(
        "--fraction", type=float, metavar="F", help="approximate fraction of the rows, 0 to 1"
    )
    p.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the sample (default: 0)"
    )
    _add_table(p)


def _add_table(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--table",
        metavar="NAME",
        choices=sorted(TABLES),
        help="main table (default: pairs, else the examples of a task)",
    )


def _add_remove(p: argparse.ArgumentParser) -> None:
    p.add_argument("--urls", type=path_or_url, metavar="FILE", help="file of URLs, one per line")
    p.add_argument(
        "--sha256", type=path_or_url, metavar="FILE", help="file of image SHA-256, one per line"
    )
    p.add_argument(
        "--image-ids", type=path_or_url, metavar="FILE", help="file of image_ids, one per line"
    )
    p.add_argument(
        "--checkpoints",
        nargs="+",
        default=[],
        type=path_or_url,
        metavar="DIR",
        help="checkpoints to check for removed images",
    )


Plan = tuple[dict[str, choice.Choose] | None, Removal | None]


def _plan_concat(*_: object) -> Plan:
    return None, None


def _plan_filter(args: argparse.Namespace, tables: dict[str, TableInput]) -> Plan:
    name = main_table(tables, args.table)
    if args.min_score is not None:
        if "score" not in tables[name].table.fields or math.isnan(args.min_score):
            raise InputError(
                f"--min-score {args.min_score}: {name} has no such scores; use --where"
            )
        return _add_related(tables, name, choice.ScoreFilter(min_score=args.min_score)), None
    condition = Condition(args.where)
    condition.check(tables[name].table)
    return _add_related(tables, name, choice.ConditionFilter(condition=condition)), None


def _plan_sample(args: argparse.Namespace, tables: dict[str, TableInput]) -> Plan:
    name = main_table(tables, args.table)
    if name not in IDS:
        raise InputError(f"--table {name}: its rows have no id to sample by; give another table")
    if args.fraction is not None and not 0 < args.fraction <= 1:
        raise InputError(f"--fraction {args.fraction}: expected more than 0, at most 1")
    limit = (
        int(args.fraction * ((1 << 64) - 1))
        if args.rows is None
        else choice.find_limit(args.seed, tables[name], args.rows)
    )
    sample = choice.SampleFilter(seed=args.seed, limit=min(limit, (1 << 64) - 1))
    return _add_related(tables, name, sample), None


def _add_related(
    tables: dict[str, TableInput], name: str, choose: choice.Choose
) -> dict[str, choice.Choose]:
    related = choice.make_related_filter(tables[name], choose)
    return {other: choose if other == name else related for other in tables}


def _plan_remove(args: argparse.Namespace, tables: dict[str, TableInput]) -> Plan:
    if args.urls is None and args.sha256 is None and args.image_ids is None:
        raise InputError(
            "remove: name the rows with --urls FILE, --sha256 FILE or --image-ids FILE"
        )
    removal = find_removal(tables, read_request(args.urls, args.sha256, args.image_ids))
    for checkpoint in args.checkpoints:
        images, pairs = count_trained_on(checkpoint, removal)
        print_status(
            f"{checkpoint} was trained on {images} of these images and {pairs} of these pairs"
        )
    return dict.fromkeys(tables, removal), removal


PLANS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None] | None, Any]] = {
    "concat": (CONCAT, None, _plan_concat),
    "filter": (FILTER, _add_filter, _plan_filter),
    "sample": (SAMPLE, _add_sample, _plan_sample),
    "remove": (REMOVE, _add_remove, _plan_remove),
}


def parser() -> Parser:
    """Returns the parser of all subcommands."""
    top = Parser(prog="python -m vlmill.pipelines.tables", description=DESCRIPTION, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="concat|filter|sample|remove")
    for name, (description, add, _) in PLANS.items():
        verb = verbs.add_parser(
            name,
            help=description.split(".")[0].replace("\n", " "),
            description=f"{description}\n{SHARED}",
            epilog=EPILOG,
            allow_abbrev=False,
        )
        _add_shared(verb)
        if add is not None:
            add(verb)
    return top


def read_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that determine the rows."""
    known = ("where", "min_score", "rows", "fraction", "seed", "table")
    return {
        "verb": args.verb,
        "inputs": args.inputs,
        **{name: getattr(args, name) for name in known if hasattr(args, name)},
    }


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the subcommand."""
    args, beam_flags = parse_job(parser(), arguments)
    workers = local_workers(args.workers, beam_flags)
    with lock_job(args, beam_flags):
        tables, inputs = open_inputs(args.inputs)
        if any(to_path(argument).resolve() == args.output.resolve() for argument in args.inputs):
            raise InputError(f"--output {args.output} is one of the IN; give another folder")
        if args.workers is None and sum(entry.bytes for entry in inputs) < ONE_PROCESS_BYTES:
            workers = 1
        inputs += _lists(args)
        paths = [path for entry in tables.values() for path in entry.paths]
        run_steps = select_runner(
            beam_flags,
            workers=workers,
            module=run_job.__module__,
            paths={f"IN {path}": str(path) for path in paths} | {"--output": str(args.output)},
            share=args.part,
        )
        settings = read_settings(args) | {"digests": [entry.digest for entry in inputs]}
        name = f"tables {args.verb}"
        state = prepare_job(args, name, settings)
        if state is not State.FINISHED:
            choose, removal = PLANS[args.verb][2](args, tables)
            job = Job(
                name=name,
                tables=tables,
                inputs=inputs,
                output=args.output,
                settings=settings,
                choose=choose,
                rewrite=removal.shorten_lists if removal else None,
                absent=removal.absent if removal else None,
            )
            if run_job(job, run_steps, args.part) is None:
                return 0
        remove_work(args.output)
        return _say_done(args, tables, state)


def _lists(args: argparse.Namespace) -> list[Input]:
    flags = {"--urls": "urls", "--sha256": "sha256", "--image-ids": "image_ids"}
    paths = {flag: getattr(args, name, None) for flag, name in flags.items()}
    for flag, path in paths.items():
        if path is not None and not path.is_file():
            raise InputError(
                f"{flag} {path}: no such file; give a text file with one value per line"
            )
    return [file_input(flag, path) for flag, path in paths.items() if path is not None]


def _say_done(args: argparse.Namespace, tables: dict[str, TableInput], state: State) -> int:
    rows = dict.fromkeys(tables, 0)
    for shard in read_manifest(args.output)["shards"]:
        if shard.table in rows:
            rows[shard.table] += shard.rows
    parts = [
        f"{count} of {entry.num_rows} {name}"
        for (name, count), entry in zip(rows.items(), tables.values(), strict=True)
    ]
    if (args.output / NOT_FOUND).is_file():
        absent = read_json(args.output / NOT_FOUND)
        for line in absent_lines(absent):
            print_status(f"warning: {line}; all of them: {args.output / NOT_FOUND}")
    if counts := reject_counts(args.output):
        parts.append(format_rejects(counts))
    print(f"{state.outcome}: {', '.join(parts)}: {args.output}")
    if counts:
        print_status(f"to list the rejects: train-vl show {args.output} --rejects")
    return 0


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
