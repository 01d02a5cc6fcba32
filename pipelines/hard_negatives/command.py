"""Hard negatives of image-text pairs: python -m vlmill.pipelines.hard_negatives --help"""

import argparse
from collections.abc import Sequence

from vlmill.pipelines.hard_negatives.rules import rules_of
from vlmill.pipelines.launch.loading import parsed, quiet_beam_import
from vlmill.schemas.console.command import Parser, run_command
from vlmill.schemas.console.cost import add_dry_run
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.lock import locked


def parser() -> Parser:
    """Returns the parser of the flags that the job takes itself."""
    p = Parser(
        prog="python -m vlmill.pipelines.hard_negatives",
        description="For each pair, the pairs whose captions are most alike without being the "
        "same: cosine of TF-IDF vectors, strictly below 0.5, best 30, never a caption of the same "
        "picture. Exact; ties are in pair order.",
        epilog="Example:\n  python -m vlmill.pipelines.hard_negatives --pairs out/pairs --output "
        "out/negatives\n\nWrites negatives, rejects and _manifest.json. The same command "
        "continues a killed run.\nMemory: about 1 kB a caption in each worker process. Other flags "
        "(--runner, ...) go to Apache Beam.",
        allow_abbrev=False,
    )
    p.add_argument("--pairs", required=True, help="pairs table: a folder, a file or a glob")
    p.add_argument("--output", required=True, help="folder to write")
    p.add_argument("--top", type=int, default=30, help="negatives a pair at most (30)")
    p.add_argument("--below", default="0.5", help="cosine strictly below this (0.5)")
    p.add_argument(
        "--tokenizer", default="words", help="words, or space for segmented text (words)"
    )
    p.add_argument("--pairs-per-shard", type=int, default=50_000, help="pairs a shard (50000)")
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
    rules = rules_of(args.top, args.below, args.tokenizer)
    if args.pairs_per_shard < 1:
        raise InputError(f"--pairs-per-shard {args.pairs_per_shard}: must be at least 1")
    # pyarrow and Beam take their time: not before the arguments are known to be good.
    from vlmill.schemas.files.reading import require_tables

    require_tables({"--pairs": args.pairs})
    with quiet_beam_import():
        from vlmill.pipelines.hard_negatives import job

    return job.run(args, rules, beam_flags)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(run, argv)
