"""Runs ``train-vl convert``: imports and exports checkpoints, and starts models from others.

It checks that a published checkpoint's vocabulary is the model's.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from vlmill.inference.convert.arguments import (
    CONFIGS,
    SUFFIX,
    VOCABULARIES,
    find_companion_file,
    weights_file,
)
from vlmill.inference.convert.origins import Converted, explain, print_differences, summary
from vlmill.inference.convert.starts import (
    read_published_config,
    read_weights,
    start_model,
    vocabulary_sizes,
)
from vlmill.models import PRESETS, preset
from vlmill.models.config_checks import nearest
from vlmill.models.convert.files import INDEX, shard_files
from vlmill.models.convert.foreign import describe_foreign
from vlmill.models.from_bert import loaded_origins
from vlmill.models.published import (
    FAMILIES,
    CheckpointMismatch,
    export_reference,
    find_family,
    read_reference,
)
from vlmill.models.registry import find_variant
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.digests import file_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.settings.plain_fields import override
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    read_model_config,
    save_checkpoint,
    save_tensors,
)
from vlmill.train.checkpoints.folders import SETTINGS
from vlmill.train.loading.vocabulary import padded_vocabulary, read_vocabulary, vocabulary_files

# A table is padded to a multiple of 8 (or 64, 128, ...), or a few tokens were added to it.
PADDED_TO, MOST_PADDING, ADDED_SHARE = 8, 1024, 4


def published_tokenizer(args: argparse.Namespace, vocabulary: Path, weights: Path) -> Tokenizer:
    """Returns the tokenizer of ``--vocab``; without settings in its folder, those of a BERT's
    folder.
    """
    return read_vocabulary(
        vocabulary, settings_in=weights.parent if args.family == "bert" else None
    )


def fitting_vocabulary(
    args: argparse.Namespace, model: Any, tokenizer: Tokenizer | None
) -> Tokenizer:
    """Returns the vocabulary for a folder: the model's, or one for the stages after BEiT."""
    sizes = vocabulary_sizes(model.config)
    if tokenizer is None:
        which = "that was published with it" if sizes else "of the texts to come"
        raise InputError(
            f"--vocab: none was given and the folder of {args.checkpoint} has none; give the "
            f"vocab.txt {which}, or --output FILE{SUFFIX} for the weights only"
        )
    tokens = tokenizer.get_vocab_size()
    size = next(iter(sizes.values()), tokens)
    if size == tokens:
        return tokenizer
    if not _is_padding(tokens, size):
        remedy = "give the vocabulary that belongs to it"
        if size > tokens:
            remedy += ", or, if this is it, append a line [unused..] for each row without a token"
        raise InputError(f"--vocab has {tokens} tokens, the checkpoint {size}; {remedy}")
    print_status(
        f"warning: --vocab has {tokens} tokens, the checkpoint's table {size} rows; the "
        f"{size - tokens} at its end have no token and stay unused ([unused..] in vocab.txt)"
    )
    return padded_vocabulary(tokenizer, size)


def _is_padding(tokens: int, rows: int) -> bool:
    """Returns whether a table has more rows than its vocabulary has tokens for a known reason.

    The published vocabularies (cased, uncased, Chinese, ...) differ by more.
    """
    padding = rows - tokens
    known = rows % PADDED_TO == 0 or padding * ADDED_SHARE <= tokens
    return 0 < padding < MOST_PADDING and known


def convert(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs the conversion; returns the exit status."""
    if args.to == "reference" and (args.checkpoint / SETTINGS).is_file():
        _export(args, _load_vlmill_model(args))
        return 0
    weights = weights_file(args.checkpoint)
    path = find_companion_file(args.vocab, weights, VOCABULARIES)
    tokenizer = None if path is None else published_tokenizer(args, path, weights)
    try:
        if args.preset is None:
            converted = _load(args, weights, words)
        else:
            converted = start_model(args, weights, words, tokenizer)
    except CheckpointMismatch as error:
        if args.explain:
            print(error.table)
        raise InputError(_in_one_line(args, error)) from None
    if args.explain:
        print("\n".join(explain(converted)))
    keeps_vocabulary = (
        args.output is not None and args.output.suffix != SUFFIX and args.to != "reference"
    )
    if args.vocab is not None and args.preset is None and not keeps_vocabulary:
        print_status(
            f"warning: --vocab {args.vocab} has no effect: only a folder keeps a vocabulary"
        )
    if args.output is None:
        return 0
    if args.to == "reference":
        _export(args, converted.model)
    else:
        shards = shard_files(weights) if weights.name.endswith(INDEX) else []
        files = [*(("--checkpoint", file) for file in (weights, *shards))]
        files += [("--backbone", args.backbone)]
        files += [("--vocab", file) for file in vocabulary_files(path)] if path is not None else []
        inputs = [file_input(flag, file) for flag, file in files if file is not None]
        print(_write(args, converted, tokenizer, inputs))
    return 0


def _load(args: argparse.Namespace, weights: Path, words: Sequence[str]) -> Converted:
    """Loads a published checkpoint unchanged."""
    path = find_companion_file(args.config, weights, CONFIGS)
    if path is None and FAMILIES[args.family].sizes is None:
        raise InputError(
            f"--config: none was given and {weights.parent} has no {' or '.join(CONFIGS)}; give "
            "the file published with the checkpoint, or the name of a preset"
        )
    config = None if path is None else _configuration(path, words)
    state = read_weights(weights)
    torch.manual_seed(0)  # of weights that the checkpoint lacks
    try:
        model, table = read_reference(args.family, state, config)
    except CheckpointMismatch:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        where = f"--checkpoint {weights}" if path is None else f"--config {path}"
        foreign = describe_foreign(state, args.family)
        raise InputError(f"{where}: {error}{foreign}") from None
    origins = loaded_origins(model, FAMILIES[args.family].links(model), table)
    print_differences(origins, table.unexpected)
    return Converted(model, origins, table.unexpected)


def _configuration(path: Path, words: Sequence[str]) -> Any:
    """Returns the configuration of ``--config``: a preset, a published file or a vlmill
    checkpoint.
    """
    if path.is_dir():
        return read_model_config(path, "--config")
    known = str(path) in PRESETS and not path.exists()
    if not known and not path.exists() and not path.suffix:
        raise InputError(
            f"--config {path}: no such file, and no preset; {nearest(str(path), PRESETS)}"
        )
    return override(preset(str(path)), words) if known else read_published_config(path)


def _in_one_line(args: argparse.Namespace, error: CheckpointMismatch) -> str:
    """Describes the mismatch, with both shapes of the first tensor; --explain prints the full
    table.
    """
    reason = str(error).splitlines()[0]
    for name, (expected, actual) in sorted(error.table.mismatched.items())[:1]:
        reason += f" ({name} is {list(expected)} here, {list(actual)} in the file)"
    names = [name for loaded in error.table.loaded.values() for name in loaded]
    foreign = describe_foreign([*names, *error.table.unexpected], args.family)
    return f"--checkpoint {args.checkpoint}: {reason}{foreign}; --explain lists all"


def _load_vlmill_model(args: argparse.Namespace) -> nn.Module:
    """Returns the model of a vlmill checkpoint, for which ``--family`` has a layout."""
    loaded = load_checkpoint(args.checkpoint)
    family = find_family(loaded.config)
    if family != args.family:
        remedy = f"give --family {family}" if family else "it has no official layout"
        raise InputError(f"--checkpoint {args.checkpoint} is of {loaded.variant}; {remedy}")
    model: nn.Module = loaded.model
    return model


def _export(args: argparse.Namespace, model: nn.Module) -> None:
    """Writes ``model`` in the official layout."""
    try:
        exported = export_reference(args.family, model, without=args.omit)
    except ValueError as error:
        raise InputError(f"--to reference: {error} (--omit NAME)") from None
    # The layout has views of our tensors, and some twice, which the file format refuses.
    tensors = {name: t.clone() for name, t in exported.items()}
    with atomic_path(args.output) as temporary:
        save_tensors(tensors, temporary)
    print(f"{args.output}: {len(tensors)} tensors in the layout of {args.family}")


def _write(
    args: argparse.Namespace,
    converted: Converted,
    tokenizer: Tokenizer | None,
    inputs: Sequence[Input],
) -> str:
    """Writes our model as a checkpoint folder or only its weights; returns a sentence about it."""
    model, output = converted.model, args.output
    if output.suffix == SUFFIX:
        with atomic_path(output) as temporary:
            save_tensors(model.state_dict(), temporary)
        return f"{output}: {summary(converted)}"
    variant = find_variant(model)
    if variant is None:
        raise InputError(
            f"--output {output}: a {type(model).__name__} has no folder format; give FILE{SUFFIX}, "
            "as which training takes a tokenizer of images"
        )
    tokenizer = fitting_vocabulary(args, model, tokenizer)
    save_checkpoint(
        output,
        model,
        CheckpointRecord(
            variant=variant,
            tokenizer=tokenizer,
            training=TrainingRecord(
                recipe=f"convert {args.family}", stage=args.preset or "", step=0, num_pairs=0
            ),
        ),
        inputs=inputs,
    )
    return f"{output}: {variant}, {summary(converted)}"
