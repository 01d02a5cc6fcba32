"""Starts new models for ``train-vl convert``: from BERT, BEiT or a ViT, and ``--backbone``.

It reads the source's weights and configuration, and checks that the new model fits them.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.inference.convert.arguments import (
    CONFIGS,
    chosen_experts,
    find_companion_file,
    preset_changes,
)
from vlmill.inference.convert.origins import (
    Converted,
    print_differences,
    start_warnings,
    unused_tensors,
)
from vlmill.models import VARIANTS, preset
from vlmill.models.beit.published import BEIT
from vlmill.models.beit.published import KNOWN as PATCHES
from vlmill.models.bert.published import BERT, DECODER_BIAS
from vlmill.models.convert.files import Unreadable, read_state, unwrap_network
from vlmill.models.convert.foreign import describe_foreign
from vlmill.models.convert.keymap import CheckpointMismatch, LoadTable
from vlmill.models.convert.names import DECODER
from vlmill.models.convert.names import KNOWN as WORDS
from vlmill.models.from_beit import initialise_from_beit, initialise_from_vit, vit_names
from vlmill.models.from_bert import Origin, initialise_from_bert, loaded_origins
from vlmill.models.vlbert.backbone import load_backbone
from vlmill.models.vlbert.config import VlBertEndToEndConfig
from vlmill.runtime.console.command import print_status
from vlmill.runtime.settings.plain_fields import (
    MAX_CONFIG_BYTES,
    flatten,
    override,
    read_yaml,
    to_plain,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

# Properties of the initial network that shapes do not show: keys of published configurations, and
# the last name of our field.
HEADS, ACTIVATION = ("num_attention_heads", "num_heads"), "hidden_act"


class Start(NamedTuple):
    """Describes a network that new models start from.

    ``prepare`` returns its tensors under their usual names, ``known`` are some of these,
    ``ignored`` are patterns of tensors without content, ``initialise`` copies them.
    """

    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    known: frozenset[str]
    ignored: tuple[str, ...]
    initialise: Callable[..., dict[str, Origin]]


# The sources of new models; the rows of `vlmill.models` have the names.
STARTS: dict[str, Start] = {
    "beit": Start(BEIT.prepare, PATCHES, BEIT.ignored, initialise_from_beit),
    "bert": Start(BERT.prepare, WORDS, BERT.ignored, initialise_from_bert),
    "vit": Start(vit_names, PATCHES, (), initialise_from_vit),
}
TIED = (DECODER, DECODER_BIAS)  # stored again under another name, so nothing is lost


def start_model(
    args: argparse.Namespace, weights: Path, words: Sequence[str], tokenizer: Tokenizer | None
) -> Converted:
    """Returns a new model that starts from BERT, BEiT or a ViT."""
    start, experts = STARTS[args.family], chosen_experts(words)
    published = read_weights(weights)
    try:
        published = unwrap_network(published, start.prepare, start.known)
    except ValueError as error:
        raise InputError(f"--checkpoint {weights}: {error}") from None
    state = start.prepare(published)
    changes = preset_changes(words)
    config = override(_with_vocabulary(preset(args.preset), state, tokenizer), changes)
    check_backbone(args, config)
    torch.manual_seed(args.seed or 0)
    variant = next(v for v in VARIANTS.values() if v.config is type(config))
    model: nn.Module = variant.model(config).eval()
    try:
        origins = start.initialise(model, published, *([] if experts is None else [experts]))
    except CheckpointMismatch:
        raise
    except ValueError as error:
        foreign = describe_foreign(published, args.family)
        raise InputError(f"--as {args.preset}: {error}{foreign}") from None
    check_source(find_companion_file(args.config, weights, CONFIGS), config)
    unused = unused_tensors(state, origins, (*start.ignored, *TIED))
    network_origins: Mapping[str, Origin] = {}
    network_unused: Sequence[str] = []
    if args.backbone is not None:
        network_origins, network_unused = start_region_network(args, model)
    for warning in start_warnings(state, origins, unused):
        print_status(f"warning: {warning}")
    print_differences(origins, [*unused, *network_unused])
    return Converted(model, {**origins, **network_origins}, [*unused, *network_unused])


def _with_vocabulary(config: Any, state: Mapping[str, Tensor], tokenizer: Tokenizer | None) -> Any:
    """Returns ``config`` with the number of words of the checkpoint's table, else of the
    vocabulary.
    """
    tables = [len(t) for name, t in state.items() if name.endswith("word_embeddings.weight")]
    sizes = [*tables, *([tokenizer.get_vocab_size()] if tokenizer is not None else [])]
    return override(config, [f"{field}={sizes[0]}" for field in vocabulary_sizes(config) if sizes])


def vocabulary_sizes(config: Any) -> dict[str, int]:
    """Returns the field (at any depth) with the model's number of words, and its value."""
    fields = flatten(to_plain(config))
    return {name: size for name, size in fields.items() if name.split(".")[-1] == "vocab_size"}


def check_source(path: Path | None, config: Any) -> None:
    """Raises InputError if the start is a network with other heads or another activation.

    Its tensors have the same shapes, but another meaning. ``path`` is the source's published
    configuration, None without one; ``config`` is the new model's.
    """
    if path is None:
        return
    published = read_published_config(path)
    fields = flatten(to_plain(config))
    heads = next((published[key] for key in HEADS if key in published), None)
    act = published.get(ACTIVATION)
    for key, source_value, name, usual in (
        ("num_attention_heads", heads, "num_heads", None),
        (ACTIVATION, act, "act", "gelu"),
    ):
        model_value = next(
            (v for field, v in fields.items() if field.split(".")[-1] == name), usual
        )
        if source_value is not None and model_value is not None and source_value != model_value:
            field = next((f for f in fields if f.split(".")[-1] == name), None)
            remedy = (
                f"add {field}={source_value}"
                if field
                else f"start from a network with {model_value}"
            )
            raise InputError(
                f"--config {path}: {key}={source_value}, the new model has {model_value}; {remedy}"
            )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file. Raises InputError for a file with other content."""
    file = Path(os.fspath(path))  # in a store: its copy
    try:
        return read_state(file)
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"--checkpoint {error}".replace(str(file), str(path))) from None


def read_published_config(path: Path) -> dict[str, Any]:
    """Returns a published configuration, JSON or YAML. Raises InputError for other files."""
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"--config {path} has over {MAX_CONFIG_BYTES} bytes; give a JSON file")
        config = read_json(path)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--config {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"--config {path} has no fields; give the published configuration")
    return config


def check_backbone(args: argparse.Namespace, config: Any) -> None:
    """Raises InputError for a new model without the ``--backbone`` that it needs, or with another.

    Stages that are never trained must not hold random weights.
    """
    if not isinstance(config, VlBertEndToEndConfig):
        if args.backbone is not None:
            raise InputError(
                f"--backbone {args.backbone}: {args.preset} has no region network; give it with "
                "--as vl-bert-base-end-to-end or vl-bert-large-end-to-end"
            )
    elif args.backbone is None and config.cnn.frozen_stages:
        raise InputError(
            f"--as {args.preset}: the first {config.cnn.frozen_stages} stages of its region "
            "network are never trained; give --backbone FILE (a ResNet or a detector), or "
            "cnn.frozen_stages=0 to train all of it from random weights"
        )
    if args.backbone is None and args.backbone_conventions is not None:
        raise InputError("--backbone-conventions: needs --backbone FILE")


def start_region_network(
    args: argparse.Namespace, model: Any
) -> tuple[dict[str, Origin], list[str]]:
    """Loads ``--backbone``; returns the parameters' origins and the file's unused tensors.

    Raises InputError for a file that does not match, with the fields to change.
    """
    network: nn.Module = model.cnn
    table = _loaded(args, network)
    origins = loaded_origins(network, [], table)
    unused = [name for name in table.unexpected if not name.endswith("num_batches_tracked")]
    return {f"cnn.{name}": origin for name, origin in origins.items()}, unused


def _loaded(args: argparse.Namespace, network: Any) -> LoadTable:
    path = args.backbone
    if not path.is_file():
        raise InputError(f"--backbone {path}: no such file; give a ResNet's or a detector's")
    try:
        return load_backbone(network, Path(os.fspath(path)), args.backbone_conventions)
    except CheckpointMismatch as error:
        if args.explain:
            print(error.table)
        raise InputError(
            f"--backbone {path}: {_what_differs(error.table)}; give a complete ResNet"
        ) from None
    except Unreadable as error:
        raise InputError(f"--backbone {path} cannot be read ({error}); give another file") from None
    except ValueError as error:
        raise InputError(f"--backbone {path}: {error}") from None


def _what_differs(table: LoadTable) -> str:
    """Describes the first tensor of another shape, or else the first missing ones."""
    for name, (here, there) in sorted(table.mismatched.items())[:1]:
        return f"{name} is {list(here)} here, {list(there)} in the file"
    names = [n[0] for n in table.missing.values() if not n[0].endswith("num_batches_tracked")]
    more = f" and {len(names) - 1} tensors more" if len(names) > 1 else ""
    return f"it lacks {names[0]}{more}"
