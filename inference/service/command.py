"""Declares the arguments of ``train-vl serve``, and runs it."""

import argparse
import functools
from typing import TYPE_CHECKING

from vlmill.runtime.console.command import add_count, make_options, path_or_url
from vlmill.runtime.extras import require_extra
from vlmill.runtime.service.settings import (
    add_name_arguments,
    add_service_arguments,
    read_name_lists,
    read_service_settings,
)
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.checkpoints.named import CHECKPOINT_HELP

if TYPE_CHECKING:
    from vlmill.inference.service.questions import ModelOptions
    from vlmill.runtime.service.workers import Plan, WorkerContext

MODULE = "vlmill.inference.service.computing"  # what workers are forked from
BATCH_SECONDS = 1.0  # a batch is answered when its last question is: this bounds the wait

SERVE_HELP = """\
Serve scores, vectors, nearest images and answers of a checkpoint over HTTP.

examples:
  train-vl serve --checkpoint demo/trained --port 0
  train-vl serve --checkpoint runs/vilbert --detector detector.pth --classes objects_vocab.txt
  train-vl serve --checkpoint runs/vlmo --index own-index --device cuda:0,cuda:1 --token-file token
  train-vl serve --checkpoint runs/vlmo --index own-index --images own --pairs own --port 8081
  train-vl serve --checkpoint runs/vlmo --index own-index --reranker runs/interbert --regions own
  train-vl serve --checkpoint hf://me/vlmo-kites --port 8081
  train-vl serve --index items --port 8081

A checkpoint serves the paths that it has heads for: /v1/score, /v1/embed, /v1/search (with --index,
the output of `train-vl search --save-index`), /v1/answer, /v1/classify and /v1/entail; / is a page
to try the service. --index also serves /v1/similar, the items near an item or a user's history,
which needs no checkpoint. When DIR has another index, the service loads it while requests are
answered from the current one. The numbers equal those of `vlmill.load`. The address is printed as
soon as requests can be computed. SIGTERM ends the service after all accepted requests have a
response. The log is lines of JSON on standard error.
"""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl serve``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--checkpoint",
        type=path_or_name,
        metavar="DIR",
        help=f"{CHECKPOINT_HELP} (not needed for the similar items of --index)",
    )
    add(
        "--detector",
        type=path_or_name,
        metavar="FILE",
        help="for a model that reads regions: the --weights of their extraction",
    )
    add("--index", type=path_or_url, metavar="DIR", help="index for /v1/search and /v1/similar")
    add_count(
        parser,
        "--index-seconds",
        "time in seconds after which DIR is looked at for a new index",
        default=10,
        metavar="S",
    )
    add(
        "--reranker",
        type=path_or_name,
        metavar="DIR",
        help="checkpoint with a matching head, which ranks the best results of a text again for "
        "requests with `rerank`",
    )
    add(
        "--regions",
        metavar="TABLE",
        help="table of the regions of the index's images, for --reranker",
    )
    add(
        "--images",
        type=path_or_url,
        metavar="IMAGES",
        help="table of the index's images, to show them on the page, and for --reranker",
    )
    add(
        "--pairs",
        type=path_or_url,
        metavar="PAIRS",
        help="table with the captions of the index's images, to add them to search results",
    )
    add(
        "--device", default="cpu", help="device: cpu, cuda, or a list: cuda:0,cuda:1 (default: cpu)"
    )
    add_count(
        parser,
        "--batch-size",
        "largest number of images and texts (or pairs, for scores) in a forward pass; requests "
        "are combined up to about a second of work",
        default=64,
    )
    add_service_arguments(parser)
    add_name_arguments(parser)


def check_arguments(args: argparse.Namespace) -> None:
    """Raises InputError for arguments that do not go together, missing extras and tables."""
    if args.checkpoint is None:
        if args.index is None:
            raise InputError("nothing to serve: give --checkpoint DIR, --index DIR or both")
        if args.detector is not None:
            raise InputError("--detector goes with --checkpoint: only a model reads regions")
    else:
        find_checkpoint(args.checkpoint)
    if args.reranker is not None:
        if args.checkpoint is None or args.index is None:
            raise InputError("--reranker ranks results of texts; give --checkpoint and --index too")
        find_checkpoint(args.reranker)
    elif args.regions is not None:
        raise InputError("--regions goes with --reranker, which reads the regions")
    require_extra("service")
    if args.index is not None:
        require_extra("search")
    if args.regions is not None:
        from vlmill.runtime.files.reading import require_tables

        require_tables({"--regions": args.regions})


def run_serve(args: argparse.Namespace) -> int:
    """Runs ``train-vl serve``; returns the exit status."""
    settings = read_service_settings(args, batch=args.batch_size, batch_seconds=BATCH_SECONDS)
    check_arguments(args)
    # The service loads slowly: import it only after the arguments are checked.
    from vlmill.inference.service.app import model_service
    from vlmill.inference.service.questions import ModelOptions
    from vlmill.runtime.readers.class_names import require_names
    from vlmill.runtime.service.server import run_service

    index = None
    if args.index is not None:
        from vlmill.inference.service.served_index import Captions, ServedIndex

        captions = None if args.pairs is None else Captions(args.pairs)
        index = ServedIndex(
            args.index, seconds=args.index_seconds, limit=settings.queue, captions=captions
        )
    names = read_name_lists(args)
    shell, application = model_service(settings, index=index, images=args.images, **names)

    def check() -> None:
        require_names(names, shell.about.get("producer", {}), "--detector")

    plans = []
    if args.checkpoint is not None:
        options = make_options(ModelOptions, args)
        plans = [model_plan(options, name.strip()) for name in args.device.split(",")]
    return run_service(shell, application, plans, "train-vl serve", check=check)


def model_plan(options: "ModelOptions", device: str) -> "Plan":
    """Plans the worker of a device."""
    from vlmill.runtime.service.workers import Plan

    return Plan(name=device, module=MODULE, open=functools.partial(open_there, options, device))


def open_there(options: "ModelOptions", device: str) -> "WorkerContext":
    """Loads the checkpoint in the worker."""
    from vlmill.inference.service.computing import open_model

    return open_model(options, device)
