"""Downloads pages and images into web archives: python -m vlmill.pipelines.crawl --help"""

import argparse
from collections.abc import Sequence

from vlmill.pipelines.web.fetching.flags import add_policy_flags, build_policy
from vlmill.pipelines.web.fetching.hosts import MOST_BUCKETS
from vlmill.runtime.console.command import (
    Parser,
    add_fresh,
    add_lock_seconds,
    int_at_least,
    run_command,
)
from vlmill.runtime.console.cost import add_dry_run
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.flags import add_part, local_workers, part_name, require_part
from vlmill.runtime.units.launch.loading import parse_job
from vlmill.schemas.errors import InputError


def parser() -> Parser:
    """Returns the parser of the job's flags, without Beam's."""
    p = Parser(
        prog="python -m vlmill.pipelines.crawl",
        description="Downloads pages with their images, or images alone, into WARC files that "
        "web_pairs and other tools read. It honours robots.txt and opt-outs, limits "
        "the rate for each host, and never connects to private addresses.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.crawl --urls pages.txt --contact me@example.org --output "
        "out/crawl\n"
        "  python -m vlmill.pipelines.web_pairs --warc 'out/crawl/*.warc.gz' --output out/pairs\n"
        "\n"
        "--urls accepts a text file (one URL per line, gzipped or not), a Parquet file with a "
        "column of URLs,\n"
        "the rejects of an earlier crawl (to repeat transient failures), or its outcomes (to "
        "download again\n"
        "what has changed).\n"
        "Writes crawl-*.warc.gz, the tables outcomes (one row per URL) and rejects, funnel.json, "
        "warcs.json,\n"
        "report.html and _manifest.json. The same command continues a killed crawl and repeats no "
        "finished\n"
        "request.\n"
        "By default all cores of this machine work; other flags (--runner, ...) go to Apache "
        "Beam, whose\n"
        "workers must see --output under the same path. --urls and --output may be "
        "s3://, gs:// or hdfs://.\n"
        "Memory of a worker: up to 64 bodies of --max-bytes, and 130 MB; it does not grow with "
        "the list.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--urls", required=True, metavar="FILE", help="list of URLs, table, or glob (see below)"
    )
    p.add_argument(
        "--url-column", metavar="NAME", help="column of URLs in a Parquet file (default: url)"
    )
    p.add_argument(
        "--contact",
        required=True,
        metavar="ADDRESS",
        help="e-mail address or page for site owners, sent in the user agent",
    )
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the output")
    _add_scope(p)
    add_policy_flags(p)
    add_allow_address(p)
    p.add_argument(
        "--buckets",
        type=int_at_least(1),
        metavar="N",
        help="number of buckets that the hosts are distributed to; each bucket is "
        "processed by one worker at a time (default: one per core; with --part, 8 per part)",
    )
    p.add_argument(
        "--workers",
        type=int_at_least(1),
        metavar="N",
        help="number of processes, each with one bucket (default: one per core)",
    )
    add_part(p)
    p.add_argument(
        "--warc-bytes",
        type=int_at_least(1),
        default=1 << 30,
        metavar="N",
        help="size in bytes at which a WARC file is closed (default: 1 GiB)",
    )
    add_fresh(p)
    add_dry_run(p)
    add_lock_seconds(p)
    return p


def _add_scope(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--follow",
        type=int_at_least(0),
        default=0,
        metavar="DEPTH",
        help="depth of links to follow from listed pages (default: 0)",
    )
    p.add_argument("--same-host", action="store_true", help="follow only links to the same host")
    p.add_argument(
        "--max-pages-per-host",
        type=int_at_least(0),
        default=1_000,
        metavar="N",
        help="largest number of followed pages per host, in addition to the listed "
        "pages (default: 1000)",
    )
    p.add_argument(
        "--addresses",
        type=int_at_least(0),
        default=4,
        metavar="N",
        help="number of addresses to try per image, the largest first, until one of them gives the "
        "image (default: 4; 0: no images)",
    )


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job; flags that the job does not define go to Beam."""
    args, beam_flags = parse_job(parser(), arguments)
    require_part(args, beam_flags)
    output = None if args.dry_run else args.output
    with lock_output(output, part=part_name(args), seconds=args.lock_seconds):
        manners = build_policy(args)
        _check(args)
        workers = local_workers(args.workers, beam_flags)
        if beam_flags and is_remote(args.output):
            raise InputError(
                f"--output {args.output}: with {beam_flags[0]} give a folder that every worker "
                "sees, or leave the flag out: this machine's workers write to a store"
            )
        # Slow to import, so it is imported after the arguments are checked.
        from vlmill.pipelines.crawl import job

        return job.run(args, manners, workers, beam_flags)


def _check(args: argparse.Namespace) -> None:
    if args.buckets is not None and args.buckets > MOST_BUCKETS:
        raise InputError(f"--buckets {args.buckets}: must be at most {MOST_BUCKETS}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    return run_command(run, argv)
