"""Downloads pages and images into web archives: python -m vlmill.pipelines.crawl --help"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.web.fetching.flags import add_buckets, add_policy_flags, build_policy
from vlmill.runtime.console.command import (
    Parser,
    add_count,
    run_command,
)
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.flags import (
    add_run_flags,
    local_workers,
    lock_job,
)
from vlmill.runtime.units.launch.loading import parse_job
from vlmill.schemas.errors import InputError

# As `resizing` has them; it is not imported for the help, because it loads slowly.
MODES = ("keep_ratio", "border", "center_crop", "keep_ratio_largest", "no")
ENCODINGS = ("jpeg", "webp", "png")
LARGEST_SIDE = 10_000
FORMATS = ("csv", "tsv", "json", "jsonl", "parquet", "xlsx")


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
        "  python -m vlmill.pipelines.crawl --input urls.parquet --contact me@example.org \\\n"
        "      --resize 256 --output out/pairs\n"
        "\n"
        "--urls accepts a text file (one URL per line, gzipped or not), a Parquet file with a "
        "column of URLs,\n"
        "the rejects of an earlier crawl (to repeat transient failures), or its outcomes (to "
        "download again\n"
        "what has changed).\n"
        "--input writes pairs and images, which train-vl reads; --urls writes archives.\n"
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
    sources = p.add_mutually_exclusive_group(required=True)
    sources.add_argument("--urls", metavar="FILE", help="list of URLs, table, or glob (see below)")
    sources.add_argument(
        "--input",
        metavar="TABLE",
        help="table with a column of image URLs and one of captions: CSV, TSV, JSON, JSON lines, "
        "Parquet or a folder of Parquet files; writes pairs and images",
    )
    p.add_argument(
        "--url-column",
        metavar="NAME",
        help="column of URLs of --input (default: the only one with a usual name, such as url or "
        "image_url), or of a Parquet file of --urls (default: url, URL or image_url)",
    )
    p.add_argument(
        "--caption-column",
        metavar="NAME",
        help="column of captions of --input (default: the only one with a usual name, such as "
        "caption or text)",
    )
    p.add_argument(
        "--contact",
        required=True,
        metavar="ADDRESS",
        help="e-mail address or page for site owners, sent in the user agent",
    )
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the output")
    _add_scope(p)
    _add_images(p)
    add_policy_flags(p)
    add_allow_address(p)
    add_buckets(p)
    add_count(p, "--workers", "number of processes, each with one bucket (default: one per core)")
    add_count(
        p,
        "--warc-bytes",
        "size in bytes at which a WARC file is closed (default: 1 GiB)",
        default=1 << 30,
    )
    add_run_flags(p)
    return p


def _add_scope(p: argparse.ArgumentParser) -> None:
    add_count(
        p,
        "--follow",
        "depth of links to follow from listed pages",
        least=0,
        default=0,
        metavar="DEPTH",
    )
    p.add_argument("--same-host", action="store_true", help="follow only links to the same host")
    add_count(
        p,
        "--max-pages-per-host",
        "largest number of followed pages per host, in addition to the listed pages",
        least=0,
        default=1_000,
    )
    add_count(
        p,
        "--addresses",
        "number of addresses to try per image, the largest first, until one of them gives the "
        "image (default: 4; 0: no images)",
        least=0,
        default=4,
    )


def _add_images(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("tables of --input, and their images")
    group.add_argument(
        "--format", choices=FORMATS, help="format of the table (default: by its name and content)"
    )
    group.add_argument(
        "--delimiter", metavar="C", help="separator of columns in CSV and TSV (default: detected)"
    )
    group.add_argument(
        "--encoding", metavar="NAME", help="encoding of CSV and TSV (default: detected)"
    )
    group.add_argument(
        "--resize",
        type=parse_side,
        metavar="SIZE",
        help="scale images to SIZE pixels and encode them again (default: images stay as received)",
    )
    group.add_argument(
        "--resize-mode",
        choices=MODES,
        help="keep_ratio: SIZE is the smaller side; keep_ratio_largest: the larger side; border: "
        "as that, with a white border to a square; center_crop: as keep_ratio, cropped to a "
        "square; no: the size stays (default: keep_ratio)",
    )
    group.add_argument(
        "--only-larger", action="store_true", help="do not enlarge images smaller than SIZE"
    )
    group.add_argument(
        "--encode",
        choices=ENCODINGS,
        help="format of all stored images (default: jpeg for resized images, else as received)",
    )
    group.add_argument(
        "--quality",
        type=int,
        metavar="Q",
        help="quality of JPEG and WebP, 1 to 100, or the compression level of PNG, 0 to 9 "
        "(default: 95; PNG: 6)",
    )
    add_count(
        group,
        "--min-side",
        "drop images with a side of PX pixels or less",
        least=0,
        default=0,
        metavar="PX",
    )
    add_count(
        group, "--rows-per-shard", "number of rows in a file of pairs and of images", default=10_000
    )
    group.add_argument(
        "--keep-archives",
        action="store_true",
        help="keep the WARC files, which are otherwise deleted when the tables are complete",
    )


_OF_TABLES = (
    *("caption_column", "format", "delimiter", "encoding"),
    *("resize", "resize_mode", "only_larger", "encode", "quality"),
)


def require_source(args: argparse.Namespace) -> None:
    """Raises InputError for flags that do not go with the source of URLs, or with each other."""
    if args.input is None:
        for name in (*_OF_TABLES, "keep_archives"):
            if getattr(args, name):
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} goes with --input; --urls writes archives only")
        return
    if args.follow:
        raise InputError(f"--follow {args.follow}: --input has URLs of images; use --urls")
    for name in ("resize_mode", "only_larger"):
        if getattr(args, name) and args.resize is None:
            raise InputError(f"--{name.replace('_', '-')} goes with --resize SIZE; give it, too")
    highest = 9 if args.encode == "png" else 100
    lowest = 0 if args.encode == "png" else 1
    if args.quality is not None and not lowest <= args.quality <= highest:
        raise InputError(f"--quality {args.quality}: must be {lowest} to {highest}")
    if args.quality is not None and args.resize is None and args.encode is None:
        raise InputError("--quality goes with --resize or --encode; give one of them, too")


def parse_side(text: str) -> int:
    """Reads ``--resize``. Raises argparse's error for an invalid size."""
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_SIDE:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 to {LARGEST_SIDE} pixels")
    return int(text)


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job; flags that the job does not define go to Beam."""
    args, beam_flags = parse_job(parser(), arguments)
    require_source(args)
    with lock_job(args, beam_flags):
        manners = build_policy(args)
        workers = local_workers(args.workers, beam_flags)
        # Slow to import, so it is imported after the arguments are checked.
        from vlmill.pipelines.crawl import job

        return job.run(args, manners, workers, beam_flags)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
