"""Image-text pairs from web archives: python -m vlmill.pipelines.web_pairs --help"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.filters.flags import (
    add_filter_arguments,
    add_scoring_arguments,
    choose_filters,
    scores_again,
)
from vlmill.pipelines.rules import DETECTORS, WebPairRules
from vlmill.pipelines.web.fetching.flags import add_buckets, add_policy_flags, build_policy
from vlmill.pipelines.web.texts.language import parse_languages
from vlmill.pipelines.web_pairs.archives import add_archive_arguments, require_archives
from vlmill.pipelines.web_pairs.rules_file import RulesFile, read_rules_file
from vlmill.runtime.console.command import (
    Parser,
    add_count,
    run_command,
)
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.copies import full_disk_reason
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.paths import require_local
from vlmill.runtime.net.remote_file import Unreachable
from vlmill.runtime.units.flags import (
    add_run_flags,
    add_workers,
    local_workers,
    lock_job,
)
from vlmill.runtime.units.launch.loading import parse_job, quiet_beam_import
from vlmill.schemas.errors import InputError

SCORED_TEXTS = 5  # of each image, from which a scorer chooses


def parser() -> Parser:
    """Returns the parser of the job's own flags."""
    p = Parser(
        prog="python -m vlmill.pipelines.web_pairs",
        description="Mines image-text pairs from the pages and images in WARC files: pages in the "
        "given languages, their dominant images of more than 300 pixels a side, and "
        "the best text of each image.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.web_pairs --warc 'crawl/*.warc.gz' --output out/pairs\n"
        "From Common Crawl's list of archives, or from the records of an index only:\n"
        "  --warc @warc.paths.gz\n"
        "  --index cdx-00000.gz\n"
        "From links with alternative texts, or from a table of image URLs with texts:\n"
        "  --wat @wat.paths.gz --fetch --contact me@example.org\n"
        "  --table urls.parquet --fetch --contact me@example.org\n"
        "\n"
        "Writes the tables pairs, images and rejects, funnel.json (in = out + rejects for each "
        "stage),\n"
        "metrics.json, report.html and _manifest.json. The same archives and settings give the "
        "same bytes.\n"
        "The same command continues a killed job. If you add archives to a finished output, only "
        "these are\n"
        "mined; this needs work/ in --output, which is small: remove it when you will not add "
        "more.\n"
        "Images come from the same archives; --fetch downloads missing ones. Other flags "
        "(--runner, ...) go\n"
        "to Apache Beam.\n"
        "Memory of a worker: one record (32 MiB at most), one decoded image and 150 MB of rows; "
        "in addition\n"
        "100 bytes per pair to find similar images, and 20 bytes per record for --index.",
        allow_abbrev=False,
    )
    add_archive_arguments(p)
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the output")
    add_fetch(p)
    add_filter_arguments(p)
    add_count(p, "--shards", "number of files per table (default: one for each 512 MB of archives)")
    add_workers(p)
    p.add_argument(
        "--format",
        choices=("parquet", "webdataset"),
        default="parquet",
        help="webdataset: write images with their texts as tar shards instead of the table "
        "of images (default: parquet)",
    )
    _add_rules(p)
    _add_sets(p)
    add_run_flags(p)
    add_scoring_arguments(p)
    return p


def _add_rules(p: Parser) -> None:
    """Adds the flags that select pages, images and texts."""
    rules, group = WebPairRules(), p.add_argument_group("pages, images and texts")
    group.add_argument(
        "--rules",
        metavar="FILE",
        help="TOML or JSON file that sets any threshold by its name, and word lists by language "
        "(docs/web-pairs.md lists them); the flags of this command have priority",
    )
    group.add_argument(
        "--language",
        metavar="CODES",
        help="comma-separated ISO 639 codes of the pages to keep, or any (default: "
        f"{rules.language})",
    )
    group.add_argument(
        "--language-detector",
        choices=DETECTORS,
        help="language detector; langdetect is slower and less accurate (default: "
        f"{rules.language_detector})",
    )
    group.add_argument(
        "--min-side",
        dest="min_side_px",
        type=int,
        metavar="PX",
        help=f"drop images with a side of PX pixels or less (default: {rules.min_side_px})",
    )
    group.add_argument(
        "--min-words",
        type=int,
        metavar="N",
        help=f"smallest number of words of a text (default: {rules.min_words})",
    )
    group.add_argument(
        "--max-words",
        type=int,
        metavar="N",
        help="largest number of words of an image's own text (alt text, caption, title) "
        f"(default: {rules.max_words}); sentences of the surrounding text have at most "
        f"{rules.max_surrounding_words}",
    )
    group.add_argument(
        "--max-images-per-text",
        type=int,
        metavar="N",
        help="drop a text, and its images, if it belongs to more than N images (default: "
        f"{rules.max_images_per_text})",
    )
    group.add_argument(
        "--min-score",
        type=float,
        help=f"lowest score of a pair, 0 to 1 (default: {rules.min_score})",
    )
    group.add_argument(
        "--keep-texts",
        type=int,
        metavar="N",
        help="number of texts of each image to write, with their features, to the table that "
        f"--candidates reads (default: {rules.keep_texts}, which writes no table; with --scorer: "
        f"{SCORED_TEXTS})",
    )
    group.add_argument(
        "--ignore-opt-outs",
        action="store_true",
        default=None,
        help="also mine pages and images whose owners forbid it (X-Robots-Tag, meta "
        "robots, TDM reservation)",
    )


def _add_sets(p: Parser) -> None:
    """Adds the flags that assign pairs to splits and exclude images."""
    rules, group = WebPairRules(), p.add_argument_group("sets of pairs")
    group.add_argument(
        "--drop-near-duplicates",
        action="store_true",
        default=None,
        help="keep only the largest of images that look the same",
    )
    group.add_argument(
        "--hold-out",
        type=float,
        metavar="SHARE",
        help="fraction of the groups of similar images that get the split val (default: 0)",
    )
    group.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="FILE",
        help="ids, SHA-256 or URLs of images to exclude: a text file, one per line, or Parquet",
    )
    group.add_argument(
        "--exclude-hash",
        action="append",
        default=[],
        metavar="IMAGES",
        help="images table or folder; images that are similar to one of these are excluded",
    )
    group.add_argument(
        "--max-distance",
        type=int,
        metavar="BITS",
        help="largest number of differing bits of two hashes for --exclude-hash (default: "
        f"{rules.max_distance} of 64)",
    )


def add_fetch(p: Parser) -> None:
    """Declares the flags that fetch images missing from the archives."""
    p.add_argument(
        "--fetch",
        action="store_true",
        help="download candidate images that are not in the archives (Common Crawl's "
        "archives contain no images)",
    )
    p.add_argument(
        "--contact",
        metavar="ADDRESS",
        help="e-mail address or page for site owners (needed with --fetch)",
    )
    group = p.add_argument_group("politeness of --fetch (docs/crawl.md)")
    add_policy_flags(group)
    add_buckets(group)


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job; passes unknown flags to Beam."""
    args, beam_flags = parse_job(parser(), arguments)
    if scores_again(args):
        from vlmill.pipelines.web_pairs.choosing import choose_candidates
        from vlmill.pipelines.web_pairs.rescoring import rescore

        require_local("--output", args.output)
        with lock_output(args.output):
            return rescore(args) if args.candidates is None else choose_candidates(args)
    if args.part is not None and args.fetch:
        raise InputError("--part and --fetch do not go together; run --fetch on one machine")
    with lock_job(args, beam_flags):
        return _run(args, beam_flags)


def _run(args: argparse.Namespace, beam_flags: Sequence[str]) -> int:
    file = read_rules_file(args.rules)
    rules = build_rules(args, file)
    require_extra("mining", "fastwarc")  # before the lines about filters that are off
    choose_filters(args)
    require_archives(args)
    if args.fetch:
        if args.contact is None:
            raise InputError("--fetch needs --contact: an e-mail address or a page about you")
        build_policy(args)
    parse_languages(rules.language)
    local_workers(args.workers, beam_flags)
    # Beam takes seconds to load, so the arguments are checked first.
    with quiet_beam_import():
        from vlmill.pipelines.web_pairs import job

    try:
        return job.run(args, rules, file.languages, beam_flags)
    except Unreachable as error:
        raise OSError(str(error)) from None
    except OSError as error:
        if full_disk_reason(error) is None:
            raise
        raise OSError(
            f"{error}; free disk space at {args.output}, and the same command continues"
        ) from None


def build_rules(args: argparse.Namespace, file: RulesFile) -> WebPairRules:
    """Builds the rules from the flags, else from the file. Raises InputError for invalid values."""
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(WebPairRules)
        if getattr(args, field.name, None) is not None
    }
    if args.scorer is not None:  # the scorer chooses among several texts
        values.setdefault("keep_texts", file.values.get("keep_texts", SCORED_TEXTS))
    try:
        return WebPairRules(**(file.values | values))
    except ValueError as error:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
        raise InputError(f"{flags}: {error}") from None


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
