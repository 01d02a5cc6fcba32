"""Defines the flags of ``manifest own``."""

import argparse

from vlmill.pipelines.manifest.flags import add_run_arguments, add_source, add_split_columns
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.reading.rows import FORMATS
from vlmill.runtime.console.command import path_or_url

OWN_HELP = """\
Converts your own examples and images to tables, the input of all other commands. The named columns
decide which table:

  --text-column                      captions: `pairs`
  --question-column --answer-column  questions about an image: `questions`
  --statement-column --label-column  statements about one or two images, true or false or of other
                                     classes: `statements`
  --label-column                     classes of an image, with its text if --text-column is given:
                                     `labels`

FILE is CSV (quoted), TSV (not quoted), JSON (a list of objects), JSON lines, Parquet or an Excel
workbook. Separator and encoding of CSV and TSV are detected and printed. A cell may be a list: each
of its captions is a pair, its answers are those of several annotators. The conversations of LLaVA
are read as captions or as questions: name their column. labels.json numbers answers and classes.

image_id is the value of --image-column. With --image-root DIR, the image is DIR/<value>, or that
name with .jpg, .jpeg, .png or another image extension; absolute paths below DIR are accepted. A row
is rejected if its image is missing, cannot be read, is animated, or is outside DIR. Images that
Parquet files hold are written without --image-root. Otherwise no table of images is written.
"""
OWN_EPILOG = """\
example:
  captions.csv:   file,caption,split
                  0001.jpg,"a red kite over the dunes",train
                  0002.jpg,"two children, one bucket",test

  python -m vlmill.pipelines.manifest own --input captions.csv --text-column caption \\
      --image-column file --image-root photos --output own

  python -m vlmill.pipelines.manifest own --input qa.jsonl --question-column question \\
      --answer-column answer --image-column image --image-root photos --output qa

then (docs/own-data.md):
  extract-rois run own --output regions --weights detector.pth
  train-vl pretrain imagebert-small --pairs own --regions regions --output trained
  train-vl evaluate retrieval --checkpoint trained --pairs own --regions regions --images own \\
      --split test --output results

A column named split marks rows for training (train, or empty), validation (val, dev, ...) or test;
docs/own-data.md lists all names. Case does not matter.

Writes DIR/TABLE-*.parquet, images-*.parquet, rejects-*.parquet, labels.json, funnel.json,
report.html and, last, _manifest.json. Every row of FILE is an example or a reject with its reason.
The same command continues a killed run, to the same bytes. Memory: about 300 bytes per row, and
the images of 16 rows; FILE and the images may be larger than memory.
"""


def add_own_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the flags of ``manifest own``."""
    p.description, p.epilog = OWN_HELP, OWN_EPILOG
    p.add_argument(
        "--input",
        required=True,
        type=path_or_url,
        metavar="FILE",
        help="file of rows: .csv, .tsv, .json, .jsonl, .parquet or .xlsx; or a folder or "
        "pattern of Parquet files, whose names may contain the split",
    )
    add_column_arguments(p)
    p.add_argument("--image-root", type=path_or_url, metavar="DIR", help="folder of the images")
    p.add_argument(
        "--image-prefix",
        default="",
        metavar="TEXT",
        help="beginning of image names to ignore under --image-root, such as C:\\data\\photos",
    )
    p.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the output"
    )
    add_split_columns(p)
    p.add_argument("--split", metavar="NAME", help="split of rows without one (default: null)")
    add_source(p, "own")
    p.add_argument(
        "--language", metavar="CODE", help="language of the captions, such as en (default: null)"
    )
    p.add_argument(
        "--format",
        choices=sorted(set(FORMATS.values())),
        help="format of FILE (default: from its extension)",
    )
    p.add_argument(
        "--delimiter",
        metavar="CHAR",
        help="separator of columns (default: detected: comma, tab, semicolon or vertical bar)",
    )
    p.add_argument("--sheet", metavar="NAME", help="sheet of an Excel workbook (default: first)")
    p.add_argument(
        "--no-header", action="store_true", help="FILE has no header; its columns are 1, 2, 3, ..."
    )
    p.add_argument(
        "--encoding", help="encoding of CSV and TSV (default: detected: utf-8, utf-16 or cp1252)"
    )
    add_run_arguments(p, rows_per_shard=10_000)


def add_column_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the flags that name columns, and the flags of lists and labels."""
    for flag, text in (
        ("--text-column", "column of captions, or of the texts of labelled images"),
        ("--question-column", "column of questions"),
        ("--answer-column", "column of answers"),
        ("--statement-column", "column of statements about the images"),
        ("--label-column", "column of classes; several columns of 0 and 1 are a class each"),
    ):
        repeatable = "" if flag in ("--question-column", "--statement-column") else " (repeatable)"
        p.add_argument(flag, action="append", default=[], metavar="C", help=text + repeatable)
    p.add_argument(
        "--image-column",
        required=True,
        action="append",
        metavar="C",
        help="column of images; its value becomes image_id (repeatable for statements and labels)",
    )
    p.add_argument(
        "--id-column", metavar="C", help="column of ids (default: a hash of image_id and text)"
    )
    p.add_argument(
        "--list-separator",
        metavar="TEXT",
        help="separator of several answers or classes in one cell, such as ;",
    )
    p.add_argument(
        "--min-questions",
        type=int,
        default=1,
        metavar="N",
        help="number of questions that an answer needs to be in labels.json (default: 1)",
    )
    add_labels(p)
