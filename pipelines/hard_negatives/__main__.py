"""Finds hard negatives of image-text pairs: python -m vlmill.pipelines.hard_negatives --help"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.hard_negatives.rules import WORDS, build_rules
from vlmill.runtime.console.command import (
    Parser,
    add_count,
    run_command,
)
from vlmill.runtime.cores import all_cores
from vlmill.runtime.units.flags import add_run_flags, lock_job
from vlmill.runtime.units.launch.loading import parse_job, require_flags


def parser() -> Parser:
    """Returns the parser of the job's flags, without Beam's."""
    p = Parser(
        prog="python -m vlmill.pipelines.hard_negatives",
        description="Finds, for each pair, the pairs with the most similar but not identical "
        "captions: cosine of TF-IDF vectors strictly below 0.5, the 30 best, never a "
        "caption of the same image. The search is exact; ties are in the order of the "
        "pairs. A text without an image counts as a separate image.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.hard_negatives --pairs out/pairs --output out/negatives\n"
        "\n"
        "Writes negatives, vocabulary, rejects, funnel.json, report.html and _manifest.json. The "
        "same command\n"
        "continues a killed run. Memory: 0.4 GB and 0.5 kB per caption, shared by all workers of a "
        "machine; disk: 1.2 kB per caption.\n"
        "Other flags (--runner, ...) go to Apache Beam.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--pairs",
        required=True,
        help="captions: a pairs table, or with --text-column any Parquet or TSV; a folder, "
        "a file or a glob",
    )
    p.add_argument("--output", required=True, help="folder for the output")
    p.add_argument(
        "--top", type=int, default=30, help="largest number of negatives per pair (default: 30)"
    )
    p.add_argument(
        "--below", default="0.5", help="upper limit of the cosine, exclusive (default: 0.5)"
    )
    p.add_argument(
        "--text-column",
        metavar="C",
        help="column of captions, for a table that is not a pairs table",
    )
    p.add_argument(
        "--id-column", metavar="C", help="column of ids in that table (default: row numbers from 0)"
    )
    p.add_argument(
        "--image-column",
        metavar="C",
        help="column of images in that table (default: each caption has its own image)",
    )
    p.add_argument("--images", help="images table, to show images in report.html")
    p.add_argument(
        "--tokenizer",
        default="words",
        help="how captions are split into words: words (two letters or more), whitespace "
        "(segmented text), jieba (Chinese), sudachi (Japanese), newmm (Thai) "
        "(default: words)",
    )
    p.add_argument(
        "--token-pattern", metavar="RE", help=f"regular expression of a word (default: {WORDS})"
    )
    add_count(
        p,
        "--document-parts",
        "number of parts of an index that does not fit into memory; the rows stay the same, the "
        "time grows at most by the square root of P, and each negative takes 12 bytes of disk per "
        "part",
        default=1,
        metavar="P",
    )
    add_count(
        p,
        "--workers",
        "number of processes that split words on this machine, and of threads that search in each "
        "process; the output stays the same (default: one per core)",
        default=all_cores(),
    )
    add_count(p, "--pairs-per-shard", "number of pairs per shard", default=50_000)
    add_run_flags(p)
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job; flags that the job does not define go to Beam."""
    args, beam_flags = parse_job(parser(), arguments)
    require_flags(beam_flags)
    with lock_job(args, beam_flags):
        return _run(args, beam_flags)


def _run(args: argparse.Namespace, beam_flags: Sequence[str]) -> int:
    rules = build_rules(args.top, args.below, args.tokenizer, args.token_pattern)
    # pyarrow and Beam are slow to import, so they are imported after the arguments are checked.
    from vlmill.pipelines.hard_negatives.source import build_source
    from vlmill.runtime.files.reading import require_tables

    source = build_source(args.pairs, args.id_column, args.image_column, args.text_column)
    source.require()
    require_tables({"--images": args.images})
    from vlmill.pipelines.hard_negatives import job

    return job.run(args, source, rules, beam_flags)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
