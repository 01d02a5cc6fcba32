"""Makes WordPiece vocabularies: from BERT's ``vocab.txt``, or trained on the given captions."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import to_path
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.tokenizer_files import (
    CONFIG,
    FULL,
    TokenizerFiles,
    config_text,
    read_tokenizer_files,
    tokenizer_files,
)

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
SPECIALS = 2  # tokens of every text: [CLS] and [SEP]
MAX_VOCABULARY_BYTES = 64 << 20
MAX_TOKENS = 1 << 20
NAMED = 5  # repeated tokens that a message names
_CAPITAL = re.compile("[A-Z]")


def is_cased(vocabulary: Iterable[str]) -> bool:
    """Returns whether a vocabulary is cased: a token other than ``[NAME]`` has a capital letter.

    BERT's files do not record it. The Chinese one has no capitals, and splits every Chinese
    character from its neighbours, as all of BERT's tokenizers do.
    """
    return any(
        _CAPITAL.search(token) and not (token.startswith("[") and token.endswith("]"))
        for token in vocabulary
    )


def usual_rules(vocabulary: Iterable[str]) -> dict[str, Any]:
    """Returns BERT's preparation of texts, inferred from the vocabulary: arguments of
    `BertNormalizer`. ``strip_accents=None`` removes accents where texts are lower-cased.
    """
    return {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": not is_cased(vocabulary),
    }


def bert_tokenizer(
    vocabulary: dict[str, int],
    rules: Mapping[str, Any] | None = None,
    added: Iterable[AddedToken] = (),
) -> Tokenizer:
    """Makes BERT's tokenizer over a vocabulary of token to id; encodes ``[CLS] text [SEP]``.

    Texts are lower-cased and lose their accents unless the vocabulary :func:`is_cased` or ``rules``
    (arguments of `BertNormalizer`) specify otherwise. The ``added`` tokens, which are in the
    vocabulary, are matched before a text is split.
    """
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(**usual_rules(vocabulary) | dict(rules or {}))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])],
    )
    tokenizer.add_tokens(list(added))
    return tokenizer


def train_vocabulary(texts: Iterable[str], size: int, max_characters: int = 1000) -> Tokenizer:
    """Trains a tokenizer with at most ``size`` tokens on ``texts``; the result is deterministic.

    Characters beyond the ``max_characters`` most frequent become [UNK]. Reads ``texts`` once and
    keeps its distinct words and their counts.
    """
    normalise = normalizers.BertNormalizer(lowercase=True).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = Counter(word for text in texts for word, _ in split(normalise(text)))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[:max_characters]
    alphabet = sorted(frequent)
    spellable = sorted(w for w in words if set(w) <= set(frequent))
    # The trainer numbers unseen characters in the order of a randomised hash table, and uses the
    # numbers to choose merges with equal counts. As special tokens, all characters have fixed
    # numbers.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*SPECIAL, *alphabet, *(f"##{c}" for c in alphabet)],
    )
    model = Tokenizer(models.WordPiece(unk_token=UNK))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.train_from_iterator(_repeat_words(spellable, words), trainer)
    return bert_tokenizer(model.get_vocab())


def _repeat_words(words: list[str], counts: Counter[str]) -> Iterable[str]:
    """Yields each word as often as it was seen, in lines short enough to stream."""
    for word in words:
        full, remainder = divmod(counts[word], 1000)
        for _ in range(full):
            yield " ".join([word] * 1000)
        yield " ".join([word] * remainder)


def read_vocabulary(
    path: str | Path, flag: str = "--vocab", settings_in: Path | None = None
) -> Tokenizer:
    """Reads the tokenizer of a BERT ``vocab.txt`` (a token per line, numbered from 0) or of a
    ``tokenizer.json``.

    Hugging Face's files next to it are applied (``tokenizer_config.json``, ``tokenizer.json``,
    ``added_tokens.json``), or the files in ``settings_in`` where it has none. If a token is on two
    lines the later one counts, with a warning, as in `transformers`; a number without a token gets
    the name ``[unusedN]``.

    Raises InputError for a file that is missing, too large, not UTF-8 or lacks a special token, and
    for settings next to it that cannot be followed.
    """
    path = to_path(path)
    folders = [folder for folder in (path.parent, settings_in) if folder is not None]
    folder = next((f for f in folders if tokenizer_files(f)), path.parent)
    files = read_tokenizer_files(folder, flag)
    if path.name == FULL:
        if not path.is_file():
            raise InputError(f"{flag} {path}: no such file; give a BERT vocab.txt")
        own_files = files if folder == path.parent else read_tokenizer_files(path.parent, flag)
        assert own_files.vocabulary is not None
        tokens = dict(own_files.vocabulary)
    else:
        tokens = _read_lines(path, flag)
        if files.vocabulary is not None and files.vocabulary != tokens:
            print_status(
                f"warning: {flag} {path} and {folder / FULL} differ in tokens or ids; "
                f"{path.name} is used"
            )
    if missing := [token for token in SPECIAL if token not in tokens]:
        raise InputError(f"{flag} {path} lacks {', '.join(missing)}; give a BERT vocab.txt")
    rules = usual_rules(tokens) | dict(files.rules)
    _merge_added(tokens, files, f"{flag} {path}")
    size = max(tokens.values()) + 1
    if size > MAX_TOKENS:
        raise InputError(f"{flag} {path}: {size} tokens, expected at most {MAX_TOKENS}")
    return bert_tokenizer(_fill_unused(tokens, size), rules, files.added.values())


def vocabulary_files(path: str | Path) -> list[Path]:
    """Returns the files that :func:`read_vocabulary` reads: the vocabulary and its neighbours."""
    path = to_path(path)
    return [path, *(file for file in tokenizer_files(path.parent) if file != path)]


def _read_lines(path: Path, flag: str) -> dict[str, int]:
    """Returns each token of a ``vocab.txt`` with the number of its last line, from 0."""
    try:
        if path.stat().st_size > MAX_VOCABULARY_BYTES:
            raise InputError(
                f"{flag} {path} is over {MAX_VOCABULARY_BYTES >> 20} MiB; give a vocab.txt"
            )
        # Only line feeds end a line: vocabularies contain other Unicode separators as tokens.
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{flag} {path} cannot be read: {error}; give a BERT vocab.txt") from None
    tokens = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocabulary: dict[str, int] = {}
    repeated = []
    for number, token in enumerate(tokens):
        if token in vocabulary:
            repeated.append(f"{token!r} is on lines {vocabulary[token] + 1} and {number + 1}")
        vocabulary[token] = number
    if repeated:
        more = f" (and {len(repeated) - NAMED} more)" if len(repeated) > NAMED else ""
        print_status(
            f"warning: {flag} {path}: {'; '.join(repeated[:NAMED])}{more}; the later "
            "line is used, as in Hugging Face's tokenizers, and the id of the earlier "
            "line stays unused"
        )
    return vocabulary


def _merge_added(tokens: dict[str, int], files: TokenizerFiles, where: str) -> None:
    """Gives the added tokens their numbers. Raises InputError if a number is in use."""
    names = {number: token for token, number in tokens.items()}
    for number, token in sorted(files.added.items()):
        existing_token, existing_number = names.get(number), tokens.get(token.content, number)
        if existing_token not in (None, token.content) or existing_number != number:
            has = (
                f"{number} is {existing_token!r}"
                if existing_number == number
                else f"it has the id {existing_number}"
            )
            raise InputError(
                f"{where}: the token {token.content!r} is added with the id {number}, "
                f"but in the vocabulary {has}; make the two files agree"
            )
        if number >= MAX_TOKENS:
            raise InputError(
                f"{where}: the token {token.content!r} is added with the id {number}, "
                f"expected less than {MAX_TOKENS}"
            )
        tokens[token.content] = number


def _fill_unused(tokens: Mapping[str, int], size: int) -> dict[str, int]:
    """Fills each number below ``size`` that has no token with ``[unusedN]``, with the first free N.

    BERT's unused tokens have such names, and no text contains them.
    """
    free = (name for n in itertools.count() if (name := f"[unused{n}]") not in tokens)
    missing = sorted(set(range(size)) - set(tokens.values()))
    return dict(tokens) | {next(free): number for number in missing}


def padded_vocabulary(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Returns the tokenizer with ``size`` tokens; no text contains the additional ones."""
    vocabulary = _fill_unused(tokenizer.get_vocab(), size)
    rules = {name: getattr(tokenizer.normalizer, name) for name in usual_rules(())}
    return bert_tokenizer(vocabulary, rules, tokenizer.get_added_tokens_decoder().values())


def vocabulary_text(tokenizer: Tokenizer) -> str:
    """Returns the content of ``vocab.txt``, which :func:`read_vocabulary` reads back."""
    numbered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return "".join(f"{token}\n" for token, _ in numbered)


def vocabulary_contents(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the files that :func:`read_vocabulary` reads back, by name.

    ``tokenizer_config.json`` is included if texts are prepared differently than the vocabulary
    implies, or if tokens are added.
    """
    files = {"vocab.txt": vocabulary_text(tokenizer)}
    config = config_text(tokenizer, usual_rules(tokenizer.get_vocab()))
    return files if config is None else files | {CONFIG: config}


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Holds each pair's ``[CLS] text [SEP]`` as int64 ids, and how many were ``cut`` to fit."""

    tokens: tuple[Ids, ...]
    cut: int


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> Texts:
    """Encodes texts as ids, cut at the end to ``max_tokens`` with [SEP] kept, as in training."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # truncation is state; the caller's stays
    tokenizer.enable_truncation(max_tokens)
    encoded = tokenizer.encode_batch(list(texts))
    return Texts(
        tokens=tuple(np.array(encoding.ids, dtype=np.int64) for encoding in encoded),
        cut=sum(bool(encoding.overflowing) for encoding in encoded),
    )
