"""Image-text pairs from web archives: python -m vlmill.pipelines.web_pairs --help"""

import argparse
import dataclasses
from collections.abc import Sequence

from vlmill.pipelines.launch.loading import parsed, quiet_beam_import
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.archives import require_archive
from vlmill.schemas.console.command import Parser, run_command
from vlmill.schemas.console.cost import add_dry_run
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.lock import locked


def parser() -> Parser:
    """Returns the parser of the flags that the job takes itself."""
    rules = WebPairRules()
    p = Parser(
        prog="python -m vlmill.pipelines.web_pairs",
        description="Image-text pairs from the pages and pictures in WARC files: pages in one "
        "language, their dominant pictures of more than 300 pixels a side, the best text of each.",
        epilog="Example:\n  python -m vlmill.pipelines.web_pairs --warc 'crawl/*.warc.gz' "
        "--output out/pairs\n\nWrites the tables pairs, images and rejects, funnel.json (in = out "
        "+ rejects for each stage),\nreport.html and _manifest.json. The same archives and "
        "settings give the same bytes.\nPictures are taken from the same archives; none is "
        "fetched. Other flags (--runner, ...) go to Apache Beam.\nMemory: one record (32 MiB at "
        "most) and one decoded picture a worker, plus one shard's rows.",
        allow_abbrev=False,
    )
    p.add_argument("--warc", required=True, metavar="GLOB", help="archives: a path or a glob")
    p.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    p.add_argument("--shards", type=int, default=1, help="files of each table (1)")
    p.add_argument("--language", help=f"ISO 639-1 code of the pages to keep ({rules.language})")
    p.add_argument(
        "--min-side",
        dest="min_side_px",
        type=int,
        metavar="PX",
        help=f"both sides of a picture must be above this ({rules.min_side_px})",
    )
    p.add_argument(
        "--max-images-per-text",
        type=int,
        metavar="N",
        help=f"a text of more pictures is dropped with all of them ({rules.max_images_per_text})",
    )
    p.add_argument(
        "--min-score", type=float, help=f"pairs below this go, 0 to 1 ({rules.min_score})"
    )
    p.add_argument(
        "--fresh", action="store_true", help="delete what an earlier run left in --output"
    )
    add_dry_run(p)
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses, and runs the job; the flags that are not its own go to Beam."""
    args, beam_flags = parsed(parser(), arguments)
    with locked(None if args.dry_run else args.output):
        return _run(args, beam_flags)


def _run(args: argparse.Namespace, beam_flags: Sequence[str]) -> int:
    rules = rules_of(args)
    if args.shards < 1:
        raise InputError(f"--shards {args.shards}: must be at least 1")
    require_archive(args.warc)
    # Beam takes seconds to load: not before the arguments are known to be good.
    with quiet_beam_import():
        from vlmill.pipelines.web_pairs import job

    return job.run(args, rules, beam_flags)


def rules_of(args: argparse.Namespace) -> WebPairRules:
    """Builds the rules that the flags change. Raises InputError for values that make none."""
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(WebPairRules)
        if getattr(args, field.name, None) is not None
    }
    try:
        return WebPairRules(**values)
    except ValueError as error:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
        raise InputError(f"{flags}: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(run, argv)
