"""The vocabulary of a converted checkpoint, and whether it is the model's."""

import argparse
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vlmill.inference.convert.arguments import SUFFIX
from vlmill.runtime.console.command import print_status
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.loading.vocabulary import padded_vocabulary, read_vocabulary

# A table is padded to a multiple of 8 (or 64, 128, ...), or a few tokens were added to it.
PADDED_TO, MOST_PADDING, ADDED_SHARE = 8, 1024, 4


def published_tokenizer(args: argparse.Namespace, vocabulary: Path, weights: Path) -> Tokenizer:
    """The tokenizer of ``--vocab``; without settings beside it, those of a BERT's own folder."""
    return read_vocabulary(
        vocabulary, settings_in=weights.parent if args.family == "bert" else None
    )


def vocabulary_sizes(config: Any) -> dict[str, int]:
    """The field (at any depth) that says how many words the model has, with its value."""
    fields = flatten(to_plain(config))
    return {name: size for name, size in fields.items() if name.split(".")[-1] == "vocab_size"}


def fitting_vocabulary(
    args: argparse.Namespace, model: Any, tokenizer: Tokenizer | None
) -> Tokenizer:
    """The vocabulary that goes into a folder: the model's, or one for the stages after BEiT."""
    sizes = vocabulary_sizes(model.config)
    if tokenizer is None:
        which = "that was published with it" if sizes else "of the texts to come"
        raise InputError(
            f"--vocab: none was given and the folder of {args.checkpoint} has none; give the "
            f"vocab.txt "
            f"{which}, or --output FILE{SUFFIX} for the weights only"
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
    """Says whether a table has more rows than its vocabulary has tokens for a known reason.

    The published vocabularies (cased, uncased, Chinese, ...) differ by more.
    """
    padding = rows - tokens
    known = rows % PADDED_TO == 0 or padding * ADDED_SHARE <= tokens
    return 0 < padding < MOST_PADDING and known
