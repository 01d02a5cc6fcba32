"""Makes WordPiece vocabularies: from BERT's ``vocab.txt``, or one trained on the captions at
hand.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.paths import path_of

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
MAX_VOCABULARY_BYTES = 64 << 20
MAX_TOKENS = 1 << 20
_CAPITAL = re.compile("[A-Z]")


def is_cased(vocabulary: Iterable[str]) -> bool:
    """Says whether a vocabulary tells capitals apart: a token other than ``[NAME]`` has one.

    BERT's files do not say which they are. The Chinese one has no capitals, and splits every
    Chinese character from its neighbours, as all of BERT's tokenizers do.
    """
    return any(
        _CAPITAL.search(token) and not (token.startswith("[") and token.endswith("]"))
        for token in vocabulary
    )


def bert_tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Makes BERT's tokenizer over a vocabulary of token to id; encodes ``[CLS] text [SEP]``.

    Texts are lower-cased and lose their accents unless the vocabulary :func:`is_cased`.
    """
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not is_cased(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])],
    )
    return tokenizer


def train_vocabulary(texts: Iterable[str], size: int, max_characters: int = 1000) -> Tokenizer:
    """Trains a tokenizer with at most ``size`` tokens on ``texts``; the same texts give the same.

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
    # The trainer numbers unseen characters in the order of a randomised hash table, and merges are
    # chosen by number when counts tie. Given as special tokens, all characters have their number.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*SPECIAL, *alphabet, *(f"##{c}" for c in alphabet)],
    )
    model = Tokenizer(models.WordPiece(unk_token=UNK))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.train_from_iterator(_repeated(spellable, words), trainer)
    return bert_tokenizer(model.get_vocab())


def _repeated(words: list[str], counts: Counter[str]) -> Iterable[str]:
    """Returns each word as often as it was seen, in lines short enough to stream."""
    for word in words:
        full, rest = divmod(counts[word], 1000)
        for _ in range(full):
            yield " ".join([word] * 1000)
        yield " ".join([word] * rest)


def read_vocabulary(path: str | Path, flag: str = "--vocab") -> Tokenizer:
    """Reads the tokenizer of a BERT ``vocab.txt``: a token a line, numbered from 0.

    Raises InputError for a file that is missing, too large, not UTF-8, has a token twice or lacks
    a special token.
    """
    path = path_of(path)
    try:
        if path.stat().st_size > MAX_VOCABULARY_BYTES:
            raise InputError(
                f"{flag} {path} is over {MAX_VOCABULARY_BYTES >> 20} MiB; give a vocab.txt"
            )
        # Only line feeds end a line: vocabularies hold other separators of Unicode as tokens.
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{flag} {path} cannot be read: {error}; give a BERT vocab.txt") from None
    tokens = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens) or len(tokens) > MAX_TOKENS:
        raise InputError(
            f"{flag} {path}: a token stands there twice, or over {MAX_TOKENS} tokens do"
        )
    if missing := [token for token in SPECIAL if token not in vocabulary]:
        raise InputError(f"{flag} {path} lacks {', '.join(missing)}; give a BERT vocab.txt")
    return bert_tokenizer(vocabulary)


def vocabulary_text(tokenizer: Tokenizer) -> str:
    """Returns the content of ``vocab.txt``: what :func:`read_vocabulary` reads back."""
    numbered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return "".join(f"{token}\n" for token, _ in numbered)
