"""Declares the arguments of ``train-vl finetune``, and runs it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from vlmill.runtime.console.command import add_lock_seconds, path_or_url, print_status
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate
from vlmill.runtime.files.mirror import (
    mirror_output,
    named_from,
    require_one_process,
    restore_paths,
)
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.settings.plain_fields import read_yaml
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.folders import SETTINGS, find_checkpoint, saved_model, saved_variant
from vlmill.train.checkpoints.named import CHECKPOINT_HELP
from vlmill.train.devices.flags import add_device_batch, device_batch_words
from vlmill.train.recipes import change_recipe
from vlmill.train.recipes.without_effect import without_effect
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.choice import (
    Fit,
    choose_recipe,
    count_examples,
    find_task,
    fit_recipe,
    has_gpu,
    has_labels,
)
from vlmill.train.tasks.registry import TASKS, read_task_recipe, task_recipe_named

INPUTS = ("regions", "annotated_regions", "images", "negatives", "labels")  # flags of tables
HELP = """\
Fine-tune a pretrained model on a task's examples.

example:
  train-vl finetune --init runs/small --examples own --images own --output runs/tuned
  train-vl finetune vqa-vilbert-small --init runs/small --examples vqa/questions \\
      --regions regions --output runs/vqa steps=600 optimizer.lr=1e-4
  train-vl finetune retrieval-vilbert-small --init runs/small --examples pairs \\
      --regions regions --negatives neighbours --output runs/retrieval
  train-vl finetune glue-bert-small --init runs/bert --examples glue --output runs/rte \\
      settings.task=rte

TASK-MODEL is a recipe (`train-vl recipes`). TASK alone uses the recipe for the variant and size of
--init, and without TASK the table of --examples determines it. Such a recipe is fitted to the data
(batch size, steps, warm-up, precision, validation), and each fitted field is printed. --examples is
a table of `manifest`; a table is a folder, a file or a glob. The same command on the same --output
continues a killed run, with the same losses. DIR gets checkpoints/, log.jsonl, recipe.yaml, rejects
and report.html, and can be used as --checkpoint and --init.

Examples of a validation or test split are not used for training. validate_every=N measures the
validation examples and keeps the best checkpoint. patience=N ends the run after N measurements
without improvement. seeds=[0,1,2] trains once per seed and reports the spread of the results.

Memory is bounded by the batch, plus about 60 bytes per example and 150 per image.
"""


def add_finetune_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl finetune`` on a subcommand's parser."""
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="TASK[-MODEL]|field=value",
        help="name of a recipe (see `train-vl recipes`), and changes to its fields",
    )
    add("--config", metavar="FILE", help="recipe in a YAML file, instead of TASK-MODEL")
    add("--init", metavar="DIR", help=f"start from the weights of a checkpoint: {CHECKPOINT_HELP}")
    add_allow_address(parser)
    add("--examples", required=True, metavar="TABLE", help="table of the task's examples")
    add("--regions", metavar="TABLE", help="table of the images' regions")
    add(
        "--annotated-regions",
        metavar="TABLE",
        help="table of regions at annotated boxes (feeding.boxes: RefCOCO+, VCR)",
    )
    add("--images", metavar="TABLE", help="table of images, for models that read pixels")
    add(
        "--negatives",
        metavar="TABLE",
        help="retrieval with ViLBERT and InterBERT: table of nearest images (`python -m "
        "vlmill.pipelines.nearest_images`)",
    )
    add(
        "--labels",
        type=path_or_url,
        metavar="FILE",
        help="vqa, classification, entailment: list of answers or classes to learn, a JSON list "
        "or one per line (default for vqa: that of --init, else labels.json in the folder of "
        "--examples, else the frequent answers; for the others the classes of the examples)",
    )
    add(
        "--missing",
        choices=("error", "skip"),
        default="skip",
        help="what to do with examples without their image: end with an error, or skip "
        "them and list them in `rejects` "
        "(default: skip)",
    )
    add("--vocab", metavar="FILE", help="BERT vocab.txt (only without --init)")
    add_device_batch(parser)
    add("--output", type=path_or_url, required=True, metavar="DIR")
    add_lock_seconds(parser)
    add("--fresh", action="store_true", help="delete the run in DIR and start over")
    add(
        "--stopped-status",
        type=int,
        default=0,
        metavar="N",
        help="exit status after a signal stopped the run and its checkpoint was saved (default: 0)",
    )
    add_cost_arguments(parser)


def run_finetune(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs the subcommand that :func:`add_finetune_arguments` declares; returns the exit status."""
    words = [*words, *device_batch_words(args)]
    recipe = build_recipe(args, words)
    for sentence in without_effect(recipe, words, init=args.init, vocab=args.vocab):
        print_status(f"warning: {sentence}")
    require_one_process(args.output)
    # pyarrow and torch load slowly: not before the arguments are known to be valid.
    from vlmill.runtime.files.reading import find_shards, require_tables
    from vlmill.schemas.tables import TABLES

    row = TASKS[recipe.task]
    find_shards(args.examples, TABLES[row.examples], "--examples")
    if args.negatives is not None:
        if not row.negatives:
            raise InputError(f"--negatives {args.negatives}: {recipe.task} reads none")
        find_shards(args.negatives, TABLES[row.negatives], "--negatives")
    require_tables(
        {
            "--regions": args.regions,
            "--annotated-regions": args.annotated_regions,
            "--images": args.images,
        }
    )
    from vlmill.train.run.device_batch import OutOfMemory
    from vlmill.train.run.loop import Stopped
    from vlmill.train.run.saving import HELD_OUT, PREPARED
    from vlmill.train.run.step import NonFiniteLoss
    from vlmill.train.tasks.finetuning.job import TaskInputs, finetune_seeds

    input_values: dict[str, Any] = {
        field.name: getattr(args, field.name) for field in fields(TaskInputs)
    }
    for name in set(input_values) - {"missing", "labels"}:
        input_values[name] = named_from(args.output, input_values[name])
    try:
        if args.dry_run:
            from vlmill.train.tasks.finetuning.dry_run import estimate_finetuning

            return print_estimate(
                estimate_finetuning(recipe, TaskInputs(**input_values)), args.output
            )
        with mirror_output(args.output, without=(PREPARED, HELD_OUT), last=SETTINGS) as output:
            inputs = TaskInputs(**input_values)
            message = finetune_seeds(recipe, inputs, output, fresh=args.fresh, force=args.force)
            message = restore_paths(message)
    except Stopped as error:
        print(error)
        stopped: int = args.stopped_status
        return stopped
    except (NonFiniteLoss, OutOfMemory) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    if message:  # by the first of several processes
        print(message)
    return 0


def build_recipe(args: argparse.Namespace, words: Sequence[str]) -> TaskRecipe:
    """Returns the recipe that the words or a file name, with their changes; without a recipe's
    name, one that fits ``--init`` and ``--examples``. Raises InputError.
    """
    names = [word for word in words if "=" not in word]
    changes = [word for word in words if "=" in word]
    if len(names) > 1 or (names and args.config is not None):
        both = " and --config" if args.config is not None else ""
        raise InputError(
            f"TASK: give one task or recipe, or --config FILE (got {', '.join(names)}{both}); "
            "changes are field=value"
        )
    if args.config is not None:
        return change_recipe(read_task_recipe(read_yaml(args.config)), changes)
    is_recipe = bool(names) and names[0] not in TASKS
    if is_recipe or args.init is None:
        if not names:
            raise InputError("TASK: give one task or recipe, --config FILE, or --init DIR")
        return change_recipe(task_recipe_named(names[0]), changes)
    return build_fitted_recipe(args, next(iter(names), None), changes)


def build_fitted_recipe(
    args: argparse.Namespace, task: str | None, changes: Sequence[str]
) -> TaskRecipe:
    """Returns the recipe for ``--init`` and ``--examples``, fitted to the data, and prints it."""
    init = find_checkpoint(args.init, "--init")
    variant = saved_variant(init)
    if variant is None:
        raise InputError(f"--init {init}: {SETTINGS} names no variant; give another checkpoint")
    inputs = {flag for flag in INPUTS if getattr(args, flag) is not None}
    task = task or find_task(args.examples)
    recipe = choose_recipe(task, variant, saved_model(init), inputs)
    rows = count_examples(args.examples, TASKS[task].examples)
    if has_labels(args.examples):
        inputs.add("labels")
    recipe, fitted = fit_recipe(
        change_recipe(recipe, changes),
        Fit(rows=rows, inputs=inputs, has_gpu=has_gpu()),
        {word.partition("=")[0] for word in changes},
    )
    changed = f", with {', '.join(fitted)}" if fitted else ""
    print_status(f"recipe {recipe.name}: the one for {with_article(variant)} of this size{changed}")
    return recipe
