"""Checks the arguments of ``convert`` before torch is loaded, and finds their files."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from vlmill.extract.weights import select_weights
from vlmill.models.config_checks import nearest
from vlmill.models.registry import EXPERT_STARTS, PRESETS, STARTS
from vlmill.runtime.files.atomic import WHOLE
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, TOKENIZER, VOCABULARY

SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".pkl", ".model", ".ckpt")
# Files next to the weights that a trainer writes to continue.
TRAINER_FILES = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state)\b.*|.*_optim_states\..*"
)
ADAPTER = "adapter_model."  # weights of LoRA, which are added to the weights of another file
SHARD = re.compile(r"-\d+-of-\d+\.")
CONFIGS = ("config.json", "bert_config.json")
VOCABULARIES = ("vocab.txt", "tokenizer.json")
SUFFIX = ".safetensors"
# VLMo's feed-forward parts that start from --family beit or vit.
EXPERTS_FIELD, EXPERTS = "experts", ("image", "all")


def check_arguments(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Raises InputError for arguments that contradict each other or name a missing file."""
    if args.output is None and (args.to == "reference" or not args.explain):
        raise InputError("--output is missing; give it, or --explain to only read")
    if args.preset is None and args.family == "vit":
        raise InputError("--family vit: vlmill has no ViT; start a VLMo with --as PRESET")
    if args.preset is not None and args.family not in STARTS:
        known = " or ".join(sorted(STARTS))
        raise InputError(f"--as {args.preset}: models start from --family {known}")
    if args.preset is not None and args.to == "reference":
        raise InputError("--as and --to reference: convert in two commands, first with --as")
    if args.omit and args.to != "reference":
        raise InputError(f"--omit {args.omit[0]}: add --to reference")
    if args.preset is not None and args.preset not in PRESETS:
        raise InputError(f"--as {args.preset}: no such preset; {nearest(args.preset, PRESETS)}")
    if args.backbone is not None and args.preset is None:
        raise InputError(
            f"--backbone {args.backbone}: it is for starting a new model with --as PRESET"
        )
    if args.seed is not None and args.preset is None:
        raise InputError(f"--seed {args.seed}: only new weights are random; give --as PRESET too")
    _check_export(args, words)
    _check_experts(args, chosen_experts(words))
    if words and args.preset is None and str(args.config) not in PRESETS:
        raise InputError(f"{words[0]}: fields are changed with --as PRESET or --config PRESET")
    if stray := [word for word in words if "=" not in word]:
        raise InputError(f"{stray[0]}: expected field=value")
    if args.output is not None and args.output.suffix != SUFFIX:
        if args.to == "reference":
            raise InputError(f"--output {args.output}: --to reference writes one FILE{SUFFIX}")
        _require_free(args.output)
    if args.to != "reference" or not (args.checkpoint / SETTINGS).is_file():
        weights_file(args.checkpoint)


def _check_export(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Refuses arguments that have no effect on a vlmill checkpoint, which is complete."""
    if args.to != "reference" or not (args.checkpoint / SETTINGS).is_file():
        return
    flag_values = {
        "--config": args.config,
        "--vocab": args.vocab,
        "--explain": args.explain or None,
    }
    unused = [flag for flag, value in flag_values.items() if value is not None]
    if unused or words:
        raise InputError(
            f"{(*unused, *words)[0]}: {args.checkpoint} is vlmill's own checkpoint, which is "
            "exported unchanged; remove it"
        )


def _check_experts(args: argparse.Namespace, experts: str | None) -> None:
    if experts is None:
        return
    if args.preset is None or args.family not in EXPERT_STARTS:
        raise InputError(
            f"{EXPERTS_FIELD}={experts}: only with --family {' or '.join(EXPERT_STARTS)}, and --as"
        )
    if experts not in EXPERTS:
        raise InputError(f"{EXPERTS_FIELD}={experts}: expected {' or '.join(EXPERTS)}")


def chosen_experts(words: Sequence[str]) -> str | None:
    """Returns the last value of ``experts=`` among the words; None without."""
    parted = [word.partition("=") for word in words]
    return next((value for name, _, value in reversed(parted) if name == EXPERTS_FIELD), None)


def preset_changes(words: Sequence[str]) -> list[str]:
    """Returns the words that change the preset's fields."""
    return [word for word in words if word.partition("=")[0] != EXPERTS_FIELD]


def _require_free(output: Path) -> None:
    """Refuses a folder that holds files other than an earlier conversion, since replacing the
    folder deletes them.
    """
    try:
        names = {path.name for path in output.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise InputError(f"--output {output} is a file; give a folder or FILE{SUFFIX}") from None
    if not names <= {MODEL, SETTINGS, VOCABULARY, TOKENIZER, WHOLE}:
        raise InputError(f"--output {output} has other files; give a new folder")


def weights_file(checkpoint: Path) -> Path:
    """Returns the file of weights of ``--checkpoint``: itself, or the one in that folder."""
    if not checkpoint.is_dir():
        if not checkpoint.is_file():
            raise InputError(f"--checkpoint {checkpoint}: no such file")
        return checkpoint
    if (checkpoint / SETTINGS).is_file():
        raise InputError(
            f"--checkpoint {checkpoint} is already in vlmill's format; add --to "
            "reference to export it"
        )
    names = [path.name for path in checkpoint.iterdir() if path.is_file()]
    candidates = [n for n in names if not TRAINER_FILES.fullmatch(n) and not n.startswith(ADAPTER)]
    name = select_weights(candidates, f"--checkpoint {checkpoint}", SUFFIXES)
    if name is None:
        raise InputError(f"--checkpoint {checkpoint} {_why_without_weights(checkpoint, names)}")
    return checkpoint / name


def _why_without_weights(folder: Path, names: Sequence[str]) -> str:
    """Returns why no file of a folder is the checkpoint, and the remedy."""
    if any(name.startswith(ADAPTER) for name in names):
        return "holds an adapter (LoRA) only; merge it into its model and give that"
    if shards := sorted(name for name in names if SHARD.search(name)):
        return f"has shards ({shards[0]}) and no .index.json of them; add the index"
    inner = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and any(file.suffix in SUFFIXES for file in path.iterdir())
    )
    if inner:
        return f"has no weights, its folder {inner[-1]} has; give {folder / inner[-1]}"
    return f"has no file of weights ({', '.join(SUFFIXES)}); give the file"


def find_companion_file(path: Path | None, weights: Path, names: Sequence[str]) -> Path | None:
    """Returns the given file, or one of these names in the weights' folder, or None."""
    candidates = [weights.with_name(name) for name in names]
    return path or next((file for file in candidates if file.is_file()), None)
