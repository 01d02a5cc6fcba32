"""Finds nearest images by region features: python -m vlmill.pipelines.nearest_images --help"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.runtime.console.command import (
    Parser,
    add_count,
    run_command,
)
from vlmill.runtime.console.cost import add_force
from vlmill.runtime.cores import all_cores
from vlmill.runtime.units.flags import add_run_flags, lock_job
from vlmill.schemas.errors import InputError

DESCRIPTION = """\
Lists the most similar images of each image, which ViLBERT's fine-tuning for retrieval uses for hard
negatives, by the Euclidean distance between means of region features. The result is exact, nearest
first, ties by image_id. An image is not in its own list.
"""
EPILOG = """\
examples:
  python -m vlmill.pipelines.nearest_images --regions flickr/regions --pairs flickr/pairs \\
      --images flickr/images --output flickr/neighbours
  python -m vlmill.pipelines.nearest_images --import hard_negative.pkl --id-prefix flickr30k/ \\
      --output published

With --pairs, an image is compared only with images of the same split (a pair without a split
belongs to `train`), so a list for training names no test image. Images without a box (no_boxes),
with features that are NaN or infinite (not_finite), without a pair (no_text) or with pairs of
several splits (id_conflict) are rejected.

The mean excludes the row of a full image. Tables of `extract-rois run` have no such row; imported
ones may have it as row 0. `auto` treats row 0 as the full image if its box covers the full image
in every row of the table, which no detector produces.

Equal vectors have distance 0. Distances are computed in float64 and rounded to float32, so the
rows do not depend on --threads.

Writes DIR/neighbours-*.parquet (by split, then image_id), rejects-*.parquet, report.html (50
images with their nearest, histograms of distances) and, last, _manifest.json. The same command
continues a killed run, to the same rows. Time grows with the square of the number of images.
Disk: 8 bytes for each image and feature until the run has finished (2.4 GB twice for 300,000
images and 2048 features). Memory: about 300 bytes per image, 64 MB of vectors, 100 MB for a block
of 1,024 searches; the vectors are memory-mapped.

--import reads the list of ViLBERT's authors as plain data: no code in it runs. It has no
distances, so they are null.
"""


def parser() -> Parser:
    """Returns the parser of the job's flags."""
    p = Parser(
        prog="python -m vlmill.pipelines.nearest_images",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("--regions", metavar="R", help="regions table: a folder, a file or a glob")
    source.add_argument(
        "--import",
        dest="published",
        metavar="FILE",
        help="published hard_negative.pkl, instead of --regions",
    )
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the output")
    add_count(p, "--top", "number of nearest images per image", default=100)
    p.add_argument("--pairs", metavar="P", help="pairs table, for the split of each image")
    p.add_argument("--images", metavar="I", help="images table, to show images in the report")
    p.add_argument(
        "--full-image",
        choices=("auto", "first", "none"),
        default="auto",
        help="first: row 0 of each image is the full image; none: row 0 is a region "
        "(default: auto)",
    )
    add_count(p, "--threads", "number of threads; the rows stay the same", default=all_cores())
    p.add_argument(
        "--search-device",
        default="cpu",
        metavar="DEVICE",
        help="device of the search: cpu, or cuda, cuda:1, ... with faiss-gpu; the rows stay the "
        "same (default: cpu)",
    )
    add_count(p, "--images-per-shard", "number of images per shard", default=10_000)
    p.add_argument(
        "--id-prefix",
        default="",
        metavar="TEXT",
        help="prefix for each id of --import, such as flickr30k/",
    )
    add_run_flags(p)
    add_force(p)
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job."""
    args = parser().parse_args(arguments)
    check(args)
    with lock_job(args):
        return _run(args)


def check(args: argparse.Namespace) -> None:
    """Raises InputError for invalid values."""
    if args.published is not None:
        for flag in ("--pairs", "--dry-run", "--part"):
            if getattr(args, flag.removeprefix("--").replace("-", "_")):
                raise InputError(f"{flag} goes with --regions; --import reads a finished list")
    elif args.id_prefix:
        raise InputError("--id-prefix goes with --import; --regions has its own ids")


def _run(args: argparse.Namespace) -> int:
    # pyarrow and FAISS are slow to import, so they are imported after the arguments are checked.
    from vlmill.runtime.files.reading import require_tables

    require_tables({"--regions": args.regions, "--pairs": args.pairs, "--images": args.images})
    if args.published is not None:
        from vlmill.pipelines.nearest_images.published import run_import

        return run_import(args)
    from vlmill.pipelines.nearest_images import job

    return job.run(args)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
