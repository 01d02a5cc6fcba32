"""Extracts regions of a table, locally or on Beam: python -m vlmill.pipelines.regions --help"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.extract.flags import add_engine, add_names
from vlmill.extract.from_flags import check_detector, make_config
from vlmill.runtime.console.command import (
    Parser,
    path_or_url,
    run_command,
)
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.flags import add_run_flags, lock_job
from vlmill.runtime.units.launch.loading import parse_job, require_flags


def parser() -> Parser:
    """Returns the parser of the job's flags, without Beam's."""
    p = Parser(
        prog="python -m vlmill.pipelines.regions",
        description="Detects regions in the images of a table and writes their features, like "
        "extract-rois run, in this process or on a Beam runner.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.regions --images out/pairs --weights detector.pth --output "
        "out/regions\n"
        "\n"
        "Writes regions, rejects and _manifest.json with the same bytes as extract-rois run on "
        "the same table;\n"
        "either command can continue a killed run of the other. A shard is the unit of work: "
        "lower\n"
        "--images-per-shard if there are more workers than shards. Other flags (--runner, ...) go "
        "to Apache\n"
        "Beam. Memory: one detector per worker process (about 1.5 GB with r101 at 600/1000 "
        "pixels), the images\n"
        "of --batch-size, and 400 bytes per image in the process that starts the job. The torch "
        "of a worker\n"
        "uses all cores: for several workers on one machine set OMP_NUM_THREADS.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--images", required=True, metavar="GLOB", help="images table: a folder, a file or a glob"
    )
    p.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the output"
    )
    add_run_flags(p, dry_run=False)
    add_allow_address(p)
    add_engine(p)
    add_names(p)
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job; flags that the job does not define go to Beam."""
    args, beam_flags = parse_job(parser(), arguments)
    require_flags(beam_flags)
    with lock_job(args, beam_flags):
        return _run(args, beam_flags)


def _run(args: argparse.Namespace, beam_flags: Sequence[str]) -> int:
    make_config(args)
    check_detector(args)
    # pyarrow and torch are slow to import, so they are imported after the arguments are checked.
    from vlmill.runtime.files.reading import find_shards
    from vlmill.schemas.tables import IMAGES

    tables = find_shards(args.images, IMAGES, "--images")
    from vlmill.pipelines.regions import job

    return job.run(args, tables, beam_flags)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
