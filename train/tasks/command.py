"""Declares the arguments of ``train-vl evaluate``, and runs it."""

import argparse
from dataclasses import fields

from vlmill.runtime.console.command import add_lock_seconds, path_or_url
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.checkpoints.named import CHECKPOINT_HELP
from vlmill.train.tasks.registry import TASKS

EPILOG = """\
examples:
  train-vl evaluate retrieval --checkpoint demo/trained --pairs demo/pairs \\
      --regions demo/regions --images demo/pairs --output demo/after
  train-vl evaluate vqa --checkpoint runs/vqa --examples vqa --regions regions \\
      --split val2014 --output runs/vqa-val
  train-vl evaluate classification --checkpoint runs/labels --examples own --split test \\
      --regions regions --output runs/labels-test
  train-vl evaluate refcoco --checkpoint runs/refcoco --examples refcoco \\
      --regions detected --split testA --output runs/refcoco-testA
  train-vl evaluate glue --checkpoint runs/glue-rte --examples glue --split dev \\
      --scores 'runs/glue-*-dev' --output runs/glue-rte-dev

Writes metrics.json, report.html, rejects, and the submission file of a server
(vqa_SPLIT_result.json, vcr_SPLIT.csv, nlvr2_SPLIT.csv, RTE.tsv), or the predictions
(classification_SPLIT.jsonl); retrieval also neighbours.json (the first five results of every
query). The inputs are prepared as in the checkpoint's training;
those of a converted checkpoint as in its paper or code.

Retrieval: models of regions, and VLMo without a contrastive head, read every text with every
image, so time grows with the product of both numbers. VLMo's contrastive head reads each of them
once. With --rerank the matching head reads only the best candidates; --first-stage selects them
for any model. The largest possible loss of recall is printed. The same command continues a killed
evaluation. Pairs and images that the checkpoint was trained on are counted and reported. Memory:
the scores (4 bytes per pair, 20 with --rerank), the texts and one batch.

Other tasks predict every row of --examples, and score the splits whose labels are public. Examples
without their image are an error unless you pass --missing skip. GLUE has no images.
"""


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl evaluate`` on a subcommand's parser."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("task", choices=TASKS, help="task to evaluate")
    add("--checkpoint", type=path_or_name, required=True, metavar="DIR", help=CHECKPOINT_HELP)
    add_allow_address(parser)
    add("--pairs", help="retrieval: table of image-text pairs: a folder, a file or a glob")
    add("--examples", help="all tasks except retrieval: table of examples, written by `manifest`")
    add(
        "--labels",
        type=path_or_url,
        metavar="FILE",
        help="vqa, classification, entailment: list of answers or classes of a converted "
        "checkpoint, in its order (a JSON list, or one per line)",
    )
    add(
        "--missing",
        choices=("error", "skip"),
        default="error",
        help="all tasks except retrieval: end with an error if an example has no image, or skip "
        "such examples and list them in `rejects` (default: error)",
    )
    add("--regions", help="table of the images' regions, for models that read them")
    add("--annotated-regions", help="table of regions at annotated boxes (RefCOCO+, VCR)")
    add(
        "--boxes",
        choices=("detected", "annotated"),
        help="refcoco: boxes to select from (default: as in training)",
    )
    add(
        "--iou",
        choices=("exact", "released", "vlbert", "mattnet"),
        help="refcoco: rule for a correct box (default: exact, IoU of at least 0.5 without "
        "an added pixel)",
    )
    add(
        "--scores",
        metavar="DIR",
        help="vcr: evaluation folder of the other sub-task, for combined metrics; glue: "
        "pattern of the other tasks' evaluation folders, for averages",
    )
    add("--images", help="table of images, for VLMo; other models show them in the report")
    add("--split", help="evaluate only pairs or examples of this split (default: all)")
    add("--output", type=path_or_url, required=True, help="folder for the output")
    add("--device", default="cpu", help="device: cpu, cuda, cuda:1, ... (default: cpu)")
    add(
        "--batch-size", type=int, default=64, help="number of pairs in a forward pass (default: 64)"
    )
    add(
        "--max-regions",
        type=int,
        metavar="N",
        help="largest number of regions per image; the first ones are kept (default: as in "
        "training)",
    )
    add(
        "--rerank",
        type=int,
        metavar="K",
        help="retrieval: rank the best K of each query by the matching head, and the "
        "others after them; the K are selected by VLMo's contrastive head or by "
        "--first-stage",
    )
    add(
        "--first-stage",
        metavar="DIR|words",
        help="retrieval: how the K of --rerank are selected: the checkpoint of a VLMo, "
        "which reads --images, or `words`: classes of the regions that a text names "
        "(needs --class-names)",
    )
    add(
        "--class-names",
        metavar="FILE",
        help="retrieval: file with the names of the detector's classes, one per line, "
        "synonyms separated by commas",
    )
    add(
        "--fold-images",
        type=int,
        metavar="N",
        help="also report the mean over consecutive blocks of N images (COCO 1K: 1000)",
    )
    add("--fresh", action="store_true", help="replace an earlier evaluation")
    add_lock_seconds(parser)


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs the subcommand that :func:`add_evaluate_arguments` declares; returns the exit status."""
    find_checkpoint(args.checkpoint)
    row = TASKS[args.task]
    if row.evaluate is not None:
        return row.evaluate(args)
    if args.examples is None:
        raise InputError(f"--examples is missing: {args.task} reads {row.examples}")
    # pyarrow and torch load slowly: not before the arguments are known to be valid.
    from vlmill.runtime.files.reading import find_shards, require_tables
    from vlmill.schemas.tables import TABLES

    find_shards(args.examples, TABLES[row.examples], "--examples")
    tables = ("regions", "annotated_regions", "images")
    require_tables({f"--{name.replace('_', '-')}": getattr(args, name) for name in tables})
    from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
    from vlmill.train.tasks.evaluating.job import evaluate_task

    names = {field.name for field in fields(EvaluationOptions)}
    evaluate_task(EvaluationOptions(**{n: v for n, v in vars(args).items() if n in names}))
    return 0
