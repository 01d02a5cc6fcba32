"""Declares and runs the ``train-vl`` command."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vlmill.inference.convert.command import add_convert_arguments, run_convert
from vlmill.inference.export.command import EXPORT_HELP, add_export_arguments, run_export
from vlmill.inference.push.command import PUSH_HELP, add_push_arguments, run_push
from vlmill.inference.search.command import (
    EMBED_HELP,
    SCORE_HELP,
    SEARCH_HELP,
    add_embed_arguments,
    add_score_arguments,
    add_search_arguments,
    run_embed,
    run_score,
    run_search,
)
from vlmill.inference.service.command import SERVE_HELP, add_serve_arguments, run_serve
from vlmill.inference.show.command import add_show_arguments, run_show
from vlmill.runtime.console.command import (
    Parser,
    add_lock_seconds,
    path_or_url,
    print_status,
    run_command,
)
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate
from vlmill.runtime.console.recipes import add_recipes_arguments, run_recipes
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.mirror import (
    mirror_output,
    named_from,
    require_one_process,
    restore_paths,
)
from vlmill.runtime.memory import keep_freed_memory
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.settings.plain_fields import from_plain, read_yaml
from vlmill.runtime.weights.listing import add_weights_arguments, list_weights
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import SETTINGS, find_checkpoint
from vlmill.train.checkpoints.named import CHECKPOINT_HELP, resolve_arguments
from vlmill.train.devices.flags import add_device_batch, device_batch_words
from vlmill.train.recipes import RECIPES, Recipe, change_recipe, recipe_named, require_sources
from vlmill.train.recipes.describe import HEAD, describe
from vlmill.train.recipes.without_effect import without_effect
from vlmill.train.tasks.command import add_evaluate_arguments, run_evaluate
from vlmill.train.tasks.finetuning.command import HELP as FINETUNE_HELP
from vlmill.train.tasks.finetuning.command import add_finetune_arguments, run_finetune
from vlmill.train.tasks.registry import task_recipe_named, task_recipes

PRETRAIN_HELP = """\
Pretrain a model on image-text pairs and the regions of their images.

example:
  train-vl pretrain imagebert-small --pairs demo/pairs --regions demo/regions \\
      --output runs/small steps=600 optimizer.lr=1e-3

A table is a folder, a file or a glob. The same command on the same --output continues a killed
run, with the same losses. DIR gets checkpoints/, log.jsonl (one line of JSON per logged step),
recipe.yaml, rejects and report.html, and can be used as --checkpoint and --init. SIGTERM and
SIGUSR1 save and exit with status 0, or with --stopped-status.

`train-vl recipes show RECIPE` prints the fields of a recipe. Often used: steps or epochs,
batch_size, optimizer.lr, seed, save_every, log_every, hard_negative_share, workers, precision. In
a recipe with several stages name the stage: stages.1.steps=100.

Pairs of a validation or test split (val, dev, test, testA, ...: docs/training.md) are not used for
training, and an unknown split is an error. train_splits=[train,val] and validation_splits=[minival]
select other splits.

Memory is bounded by the batch, plus about 60 bytes per pair and 150 per image.
"""

EXAMPLES = """\
examples:
  train-vl recipes
  train-vl pretrain imagebert-small --pairs demo/pairs --regions demo/regions --output runs/small
  train-vl evaluate retrieval --checkpoint runs/small --pairs demo/pairs --regions demo/regions \\
      --output runs/small-found
  train-vl convert --family bert --checkpoint bert-base-uncased/ --output ours/bert

`train-vl COMMAND --help` describes each command.
"""
RECIPES_HELP = """\
examples:
  train-vl recipes
  train-vl recipes show imagebert-small > mine.yaml
  train-vl pretrain --config mine.yaml --pairs demo/pairs --regions demo/regions --output runs/mine
"""
NOTES = (
    "In `model`, the sizes of the vocabulary and of the region features are replaced by "
    "the data's, and so is",
    "the number of classes if the data have more.",
    "train_splits, validation_splits: [] chooses by the names of the splits (docs/training.md).",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``train-vl`` and returns its exit status."""
    keep_freed_memory()
    return run_command(_main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = _parser()
    # Options may be between RECIPE and field=value, which argparse's subcommands do not allow:
    # the words after the first option come back as extras.
    args, extras = parser.parse_known_args(argv)
    takes_words = args.command in ("pretrain", "finetune", "convert")
    if stray := [word for word in extras if word.startswith("-") or not takes_words]:
        parser.error(f"unrecognized argument {stray[0]}")
    # A converted checkpoint is renamed to its path as a whole; the others fill a folder.
    output = None if getattr(args, "dry_run", False) else getattr(args, "output", None)
    seconds = getattr(args, "lock_seconds", None)
    with lock_output(output, alongside=args.command in ("convert", "export"), seconds=seconds):
        return _run(args, extras)


def _run(args: argparse.Namespace, extras: list[str]) -> int:
    if args.command == "weights":
        return list_weights("model", args.names)
    if args.command == "convert":
        return run_convert(args, [*args.words, *extras])
    resolve_arguments(args)
    if args.command == "pretrain":
        return _pretrain(args, [*args.words, *extras])
    if args.command == "finetune":
        return run_finetune(args, [*args.words, *extras])
    if args.command == "recipes":
        return _recipes(args)
    if args.command == "show":
        return run_show(args)
    if args.command == "embed":
        return run_embed(args)
    if args.command == "score":
        return run_score(args)
    if args.command == "search":
        return run_search(args)
    if args.command == "serve":
        return run_serve(args)
    if args.command == "export":
        return run_export(args)
    if args.command == "push":
        return run_push(args)
    return run_evaluate(args)


def _parser() -> Parser:
    parser = Parser(
        prog="train-vl",
        description="Train and evaluate vision-and-language models.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pretrain = commands.add_parser("pretrain", help="pretrain a model", description=PRETRAIN_HELP)
    _add_pretrain_arguments(pretrain)
    finetune = commands.add_parser(
        "finetune", help="fine-tune a checkpoint on a task", description=FINETUNE_HELP
    )
    add_finetune_arguments(finetune)
    evaluate = commands.add_parser("evaluate", help="measure a checkpoint on a task")
    add_evaluate_arguments(evaluate)
    embed = commands.add_parser(
        "embed", help="write the vectors of a checkpoint", description=EMBED_HELP
    )
    add_embed_arguments(embed)
    score = commands.add_parser(
        "score", help="score pairs with a checkpoint", description=SCORE_HELP
    )
    add_score_arguments(score)
    search = commands.add_parser("search", help="find the nearest vectors", description=SEARCH_HELP)
    add_search_arguments(search)
    serve = commands.add_parser(
        "serve", help="serve a checkpoint over HTTP", description=SERVE_HELP
    )
    add_serve_arguments(serve)
    convert = commands.add_parser(
        "convert", help="convert published checkpoints to vlmill's format and back"
    )
    add_convert_arguments(convert)
    add_show_arguments(commands.add_parser("show", help="show the contents of a run or checkpoint"))
    export = commands.add_parser(
        "export", help="export a checkpoint to ONNX", description=EXPORT_HELP
    )
    add_export_arguments(export)
    push = commands.add_parser("push", help="upload a checkpoint to the hub", description=PUSH_HELP)
    add_push_arguments(push)
    add_weights_arguments(
        commands.add_parser("weights", help="list published checkpoints and where they are")
    )
    recipes = commands.add_parser("recipes", help="list and show recipes", epilog=RECIPES_HELP)
    add_recipes_arguments(recipes)
    return parser


def _add_pretrain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE|field=value",
        help="name of a recipe (see `train-vl recipes`), and changes to its fields",
    )
    parser.add_argument("--config", metavar="FILE", help="recipe in a YAML file, instead of RECIPE")
    parser.add_argument(
        "--pairs",
        metavar="TABLE",
        help="table of image-text pairs; not needed by recipes of images only",
    )
    parser.add_argument("--regions", metavar="TABLE", help="table of the images' regions")
    parser.add_argument(
        "--images", metavar="TABLE", help="table of images, for recipes that read pixels"
    )
    parser.add_argument(
        "--missing",
        choices=("error", "skip"),
        default="skip",
        help="what to do with pairs without their image: end with an error, or skip "
        "them and list them in `rejects` (default: skip)",
    )
    parser.add_argument("--negatives", metavar="TABLE", help="table of the pairs' hard negatives")
    parser.add_argument(
        "--init", metavar="DIR", help=f"start from the weights of a checkpoint: {CHECKPOINT_HELP}"
    )
    parser.add_argument(
        "--vocab",
        metavar="FILE",
        help="BERT vocab.txt (default: that of --init, else trained on the pairs)",
    )
    add_device_batch(parser)
    parser.add_argument("--output", required=True, type=path_or_url, metavar="DIR")
    add_lock_seconds(parser)
    add_allow_address(parser)
    parser.add_argument("--fresh", action="store_true", help="delete the run in DIR and start over")
    parser.add_argument(
        "--stopped-status",
        type=int,
        default=0,
        metavar="N",
        help="exit status after a signal stopped the run and its checkpoint was saved, for "
        "scripts that restart it (default: 0)",
    )
    add_cost_arguments(parser)


def _pretrain(args: argparse.Namespace, words: list[str]) -> int:
    words = [*words, *device_batch_words(args)]
    recipe = _recipe(args.config, words)
    for sentence in without_effect(recipe, words, init=args.init, vocab=args.vocab):
        print_status(f"warning: {sentence}")
    require_sources(recipe, pairs=args.pairs, regions=args.regions, images=args.images)
    require_one_process(args.output)
    if args.init is not None:
        find_checkpoint(args.init, "--init")
    # pyarrow and torch load slowly: not before the arguments are known to be valid.
    from vlmill.runtime.files.reading import require_tables

    tables = ("pairs", "regions", "images", "negatives")
    require_tables({f"--{name}": getattr(args, name) for name in tables})
    from vlmill.train.run.device_batch import OutOfMemory
    from vlmill.train.run.inputs import Inputs
    from vlmill.train.run.job import pretrain
    from vlmill.train.run.loop import Stopped
    from vlmill.train.run.saving import HELD_OUT, PREPARED
    from vlmill.train.run.step import NonFiniteLoss

    where: dict[str, Any] = {
        name: named_from(args.output, getattr(args, name)) for name in (*tables, "init", "vocab")
    }
    inputs = Inputs(**where, missing=args.missing)
    try:
        if args.dry_run:
            from vlmill.train.run.dry_run import estimate_run

            return print_estimate(estimate_run(recipe, inputs), args.output)
        with mirror_output(args.output, without=(PREPARED, HELD_OUT), last=SETTINGS) as output:
            summary = restore_paths(
                pretrain(recipe, inputs, output, fresh=args.fresh, force=args.force)
            )
        if summary:  # by the first of several processes
            print(summary)
    except Stopped as error:
        print(error)
        stopped: int = args.stopped_status
        return stopped
    except (NonFiniteLoss, OutOfMemory) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


def _recipe(config: str | None, words: list[str]) -> Recipe:
    names = [word for word in words if "=" not in word]
    if (config is None) == (not names) or len(names) > 1:
        detail = f"got {', '.join(names)}" if names else "got none"
        both = " and --config" if config is not None and names else ""
        raise InputError(
            f"RECIPE: give one recipe or --config FILE ({detail}{both}); changes are field=value"
        )
    recipe = from_plain(Recipe, read_yaml(config)) if config else recipe_named(names[0])
    return change_recipe(recipe, [word for word in words if "=" in word])


def _recipes(args: argparse.Namespace) -> int:
    every: dict[str, Callable[[], Any]] = {**RECIPES, **task_recipes()}

    def find_recipe(name: str) -> Any:
        return task_recipe_named(name) if name in task_recipes() else recipe_named(name)

    def describe_recipes() -> Iterator[str]:
        for make in every.values():
            yield from describe(make())
        yield f"\n{HEAD}"

    return run_recipes(args, every, find_recipe, describe_recipes, NOTES)


if __name__ == "__main__":
    sys.exit(main())
