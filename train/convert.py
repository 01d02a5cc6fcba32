"""``train-vl convert``: published checkpoints to ours and back, and models that start from BERT."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vlmill.models import PRESETS, VARIANTS, preset
from vlmill.models.initialise import (
    Origin,
    initialise_from_bert,
    loaded_origins,
    unused_tensors,
)
from vlmill.models.reference import (
    FAMILIES,
    CheckpointMismatch,
    export_reference,
    read_reference,
)
from vlmill.models.reference.files import read_state
from vlmill.schemas.atomic import atomic_path
from vlmill.schemas.commands import InputError, Parser
from vlmill.train.checkpoint import (
    MODEL,
    SETTINGS,
    VOCABULARY,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
    save_tensors,
)
from vlmill.train.config import override
from vlmill.train.vocabulary import read_vocabulary

CONVERT_HELP = """\
Turn a published checkpoint into one of vlmill's, or back, or start a model from BERT.

examples:
  train-vl convert --family bert --checkpoint bert-base-uncased/ --output ours/bert
      DIR gets model.safetensors, checkpoint.json and vocab.txt: a --checkpoint and --init.
  train-vl convert --family bert --checkpoint pytorch_model.bin --vocab vocab.txt \\
      --as imagebert-base --output start/imagebert region_width=1024
      A new model of that preset with BERT's weights where its paper or code takes them;
      `train-vl pretrain imagebert --init start/imagebert ...` goes on from there.
  train-vl convert --family bert --checkpoint ours/bert --to reference --output bert.safetensors
      Our checkpoint under the official repository's names.
  train-vl convert --family bert --checkpoint pytorch_model.bin --as imagebert-base --explain
      Prints where each parameter comes from, and what of the file goes nowhere; without --output
      nothing is written.
"""

CONVERT_NOTES = f"""\
--checkpoint is a file (.safetensors, or PyTorch's, of which only tensors are read and nothing is
executed) or a folder that holds one; the configuration and the vocabulary are looked for beside
it. --output FILE.safetensors writes the weights alone. The same arguments write the same bytes.

families: {", ".join(sorted(FAMILIES))}
presets: {", ".join(sorted(PRESETS))}

Memory: about three times the checkpoint's size.
"""

OFFICIAL = {"bert": "bert"}  # the families of our variants
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
CONFIGS = ("config.json", "bert_config.json")
SUFFIX = ".safetensors"
MAX_CONFIG_BYTES = 1 << 20


class Converted(NamedTuple):
    """A model, where its parameters come from, and the file's tensors that went nowhere."""

    model: nn.Module
    origins: Mapping[str, Origin]
    unused: Sequence[str]


def add_convert_arguments(parser: Parser) -> None:
    """Declare the arguments of ``convert``."""
    parser.description, parser.epilog = CONVERT_HELP, CONVERT_NOTES
    parser.add_argument(
        "words", nargs="*", metavar="field=value", help="with --as: changes to the preset's fields"
    )
    parser.add_argument("--family", required=True, choices=sorted(FAMILIES), metavar="FAMILY")
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="FILE", help="what is converted"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the published configuration, JSON"
    )
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="the published vocab.txt")
    parser.add_argument(
        "--as", dest="preset", metavar="PRESET", help="start a model of this preset from BERT"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="with --as: of new weights (default: 0)"
    )
    parser.add_argument(
        "--to", choices=("vlmill", "reference"), default="vlmill", help="whose layout to write"
    )
    parser.add_argument("--output", type=Path, metavar="DIR|FILE.safetensors")
    parser.add_argument(
        "--explain", action="store_true", help="print where each parameter comes from"
    )


def run_convert(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Do what the arguments say; the exit status."""
    _check_arguments(args, words)
    if args.to == "reference" and (args.checkpoint / SETTINGS).is_file():
        return _export(args, _ours(args))
    weights = _weights_file(args.checkpoint)
    try:
        converted = _start(args, weights, words) if args.preset else _load(args, weights)
    except CheckpointMismatch as error:
        if args.explain:
            print(error.table)
        raise InputError(_in_one_line(args.checkpoint, error)) from None
    if args.explain:
        print("\n".join(explain(converted)))
    if args.output is None:
        return 0
    if args.to == "reference":
        return _export(args, converted.model)
    print(_write(args, converted, weights))
    return 0


def _check_arguments(args: argparse.Namespace, words: Sequence[str]) -> None:
    if args.output is None and not args.explain:
        raise InputError("--output: say where to write, or --explain to read only")
    if args.preset is None and words:
        raise InputError(f"{words[0]}: fields are changed with --as PRESET only")
    if args.preset is not None and args.family != "bert":
        raise InputError(f"--as {args.preset}: models start from --family bert, not {args.family}")
    if args.preset is not None and args.to == "reference":
        raise InputError("--as and --to reference: write ours first, then convert that")
    if args.preset is not None and args.preset not in PRESETS:
        raise InputError(f"--as {args.preset} is none of {', '.join(sorted(PRESETS))}")
    if stray := [word for word in words if "=" not in word]:
        raise InputError(f"{stray[0]}: want field=value")
    if args.to == "reference" and args.output is not None and args.output.suffix != SUFFIX:
        raise InputError(f"--output {args.output}: --to reference writes one FILE{SUFFIX}")
    if args.output is not None and args.output.suffix != SUFFIX:
        _require_free(args.output)


def _require_free(output: Path) -> None:
    """Refuse a folder that holds anything but an earlier conversion: replacing it deletes it."""
    try:
        held = {path.name for path in output.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise InputError(f"--output {output} is a file; give a folder or FILE{SUFFIX}") from None
    if not held <= {MODEL, SETTINGS, VOCABULARY}:
        raise InputError(f"--output {output} holds other files; give a new folder")


def _weights_file(checkpoint: Path) -> Path:
    """The file of weights that ``--checkpoint`` means."""
    if not checkpoint.is_dir():
        if not checkpoint.is_file():
            raise InputError(f"--checkpoint {checkpoint}: no such file")
        return checkpoint
    if (checkpoint / SETTINGS).is_file():
        raise InputError(
            f"--checkpoint {checkpoint} is vlmill's already; add --to reference to export it"
        )
    found = [checkpoint / name for name in WEIGHTS if (checkpoint / name).is_file()]
    if not found:
        raise InputError(f"--checkpoint {checkpoint} has no {' or '.join(WEIGHTS)}; give the file")
    return found[0]


def _beside(given: Path | None, weights: Path, names: Sequence[str]) -> Path | None:
    """The file that was given, or one of these names beside the weights."""
    candidates = [weights.with_name(name) for name in names]
    return given or next((path for path in candidates if path.is_file()), None)


def _load(args: argparse.Namespace, weights: Path) -> Converted:
    """A published checkpoint as it is."""
    path = _beside(args.config, weights, CONFIGS)
    if path is None:
        raise InputError(
            f"--config: none was given and {weights.parent} has no {' or '.join(CONFIGS)}; give "
            "the JSON file that was published with the checkpoint"
        )
    config = _read_config(path)
    state = _read_weights(weights)
    try:
        model, table = read_reference(args.family, state, config)
    except CheckpointMismatch:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"--config {path}: {error}") from None
    links = FAMILIES[args.family].links(model)
    return Converted(model, loaded_origins(model, links, table), table.unexpected)


def _start(args: argparse.Namespace, weights: Path, words: Sequence[str]) -> Converted:
    """A new model that starts from BERT."""
    state = _read_weights(weights)
    config = override(_with_words_of(state, preset(args.preset)), words)
    torch.manual_seed(args.seed)
    model = _variant(type(config))[1].model(config).eval()
    try:
        origins = initialise_from_bert(model, state)
    except CheckpointMismatch:
        raise
    except ValueError as error:
        raise InputError(f"--as {args.preset}: {error}") from None
    return Converted(model, origins, unused_tensors(state, origins))


def _with_words_of(state: Mapping[str, Tensor], config: Any) -> Any:
    """``config`` with as many words as the checkpoint's table has."""
    tables = [t for name, t in state.items() if name.endswith("word_embeddings.weight")]
    return override(config, [f"vocab_size={len(tables[0])}"]) if tables else config


def _variant(config: type[Any]) -> tuple[str, Any]:
    """The variant with this class of configurations."""
    return next((name, v) for name, v in VARIANTS.items() if v.config is config)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return read_state(path)
    except ValueError as error:
        raise InputError(f"--checkpoint {error}") from None


def _read_config(path: Path) -> Any:
    """A published configuration. Raises InputError for a file that is none."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"--config {path} has over {MAX_CONFIG_BYTES} bytes; give a JSON file")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--config {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"--config {path} holds no fields; give the published configuration")
    return config


def _in_one_line(checkpoint: Path, error: CheckpointMismatch) -> str:
    """What does not fit, with both shapes of the first tensor; the whole table is for --explain."""
    reason = str(error).splitlines()[0]
    for name, (want, came) in sorted(error.table.mismatched.items()):
        reason += f" ({name} is {list(want)} here, {list(came)} in the file)"
        break
    return f"--checkpoint {checkpoint}: {reason}; --explain lists all"


def explain(converted: Converted) -> Iterator[str]:
    """A line for each parameter with its shape and origin, then what was not used, and sums."""
    shapes = {name: list(p.shape) for name, p in converted.model.named_parameters()}
    widths = [max(map(len, column)) for column in (shapes, map(str, shapes.values()))]
    for name, origin in converted.origins.items():
        yield f"{name:{widths[0]}}  {shapes[name]!s:{widths[1]}}  {origin}"
    yield from (f"unused: {name}" for name in converted.unused)
    yield summary(converted)


def summary(converted: Converted) -> str:
    """How many parameters were loaded, are new, and how many of the file's tensors are unused."""
    loaded = sum(bool(origin.names) for origin in converted.origins.values())
    new = len(converted.origins) - loaded
    return f"{loaded} parameters loaded, {new} new, {len(converted.unused)} tensors unused"


def _export(args: argparse.Namespace, model: nn.Module) -> int:
    """Write ``model`` in the official layout."""
    if args.output is None:
        raise InputError("--output: say where to write")
    # The layout has parts of our tensors, and some twice, which the file format refuses.
    tensors = {name: t.clone() for name, t in export_reference(args.family, model).items()}
    with atomic_path(args.output) as temporary:
        save_tensors(tensors, temporary)
    print(f"{args.output}: {len(tensors)} tensors in the layout of {args.family}")
    return 0


def _ours(args: argparse.Namespace) -> nn.Module:
    """The model of a checkpoint of ours that ``--family`` has a layout for."""
    loaded = load_checkpoint(args.checkpoint)
    if OFFICIAL.get(loaded.variant) != args.family:
        own = OFFICIAL.get(loaded.variant)
        remedy = f"give --family {own}" if own else "it has no official layout"
        raise InputError(f"--checkpoint {args.checkpoint} is a {loaded.variant}; {remedy}")
    model: nn.Module = loaded.model
    return model


def _write(args: argparse.Namespace, converted: Converted, weights: Path) -> str:
    """Write ours, as a checkpoint's folder or weights alone; a sentence on it."""
    model, output = converted.model, args.output
    if output.suffix == SUFFIX:
        with atomic_path(output) as temporary:
            save_tensors(model.state_dict(), temporary)
        return f"{output}: {summary(converted)}"
    variants = [name for name, variant in VARIANTS.items() if variant.model is type(model)]
    if not variants:
        raise InputError(
            f"--output {output}: a {type(model).__name__} has no folder format; give FILE{SUFFIX}"
        )
    path = _beside(args.vocab, weights, ("vocab.txt",))
    if path is None:
        raise InputError(
            f"--vocab: none was given and {weights.parent} has no vocab.txt; give the one that "
            "was published with the checkpoint"
        )
    tokenizer = read_vocabulary(path)
    size = getattr(model.config, "vocab_size", None)
    if tokenizer.get_vocab_size() != size:
        raise InputError(
            f"--vocab {path} has {tokenizer.get_vocab_size()} tokens, the checkpoint {size}; give "
            "the vocabulary that belongs to it"
        )
    save_checkpoint(
        output,
        variant=variants[0],
        model=model,
        tokenizer=tokenizer,
        training=TrainingRecord(
            recipe=f"convert {args.family}", stage=args.preset or "", step=0, num_pairs=0
        ),
    )
    return f"{output}: {variants[0]}, {summary(converted)}"
