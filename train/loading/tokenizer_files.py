"""Reads and writes Hugging Face's files next to a BERT ``vocab.txt``: the preparation of texts, and
the tokens that are added to the vocabulary.

``tokenizer_config.json`` has priority over ``tokenizer.json``, as in `transformers`. A setting that
vlmill cannot follow is an error or a warning with the file and the key.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from vlmill.runtime.console.command import print_status
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

CONFIG, FULL, ADDED = "tokenizer_config.json", "tokenizer.json", "added_tokens.json"
TOKENIZER_FILES = (CONFIG, FULL, ADDED)
MAX_BYTES = 64 << 20

# Keys of tokenizer_config.json, the matching keys of tokenizer.json's normalizer, and the argument
# of `tokenizers.normalizers.BertNormalizer`.
RULES = {
    "do_lower_case": ("lowercase", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "tokenize_chinese_chars": ("handle_chinese_chars", "handle_chinese_chars"),
    "clean_text": ("clean_text", "clean_text"),
}
# The special tokens that models and masking use.
SPECIAL_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
WORDPIECE = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
# Settings of tokenizer_config.json without effect here, and the values that request nothing.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    "wordpieces_prefix": ("##",),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "do_word_tokenize": (True,),
    "do_subword_tokenize": (True,),
    "add_prefix_space": (None, False),
    "split_special_tokens": (None, False),
}
# Classes of `transformers` that split texts as BERT's tokenizer does.
LIKE_BERT = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "ConvBert", "DistilBert", "DPRContextEncoder", "DPRQuestionEncoder"),
        *("DPRReader", "Electra", "Funnel", "LayoutLM", "Lxmert", "MobileBert", "Realm"),
        *("Retribert", "RoFormer", "Splinter", "SqueezeBert", "PreTrained"),
    )
) | {"TokenizersBackend"}


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """Holds the contents of the files next to a vocabulary.

    rules: arguments of `BertNormalizer` that a file gives. added: further tokens by their ids,
    matched in texts before these are split. vocabulary: tokenizer.json's tokens with their ids,
    None without that file.
    """

    rules: Mapping[str, bool | None] = field(default_factory=dict)
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    vocabulary: Mapping[str, int] | None = None


def tokenizer_files(folder: Path) -> list[Path]:
    """Returns Hugging Face's tokenizer files that exist in ``folder``."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def read_tokenizer_files(folder: Path, flag: str) -> TokenizerFiles:
    """Reads the tokenizer files of ``folder``; all of them may be missing.

    Raises InputError for a file that is not a JSON object, for a value of another type, for another
    type of tokenizer, and for two tokens with one id.
    """
    files = {path.name: _json_object(path, flag) for path in tokenizer_files(folder)}
    rules: dict[str, bool | None] = {}
    added: dict[int, AddedToken] = {}
    vocabulary = None
    if FULL in files:
        where = f"{flag} {folder / FULL}"
        vocabulary = _full_vocabulary(files[FULL], where)
        normalizer = _bert_normalizer(files[FULL], where)
        settings = {key: normalizer[name] for key, (name, _) in RULES.items() if name in normalizer}
        rules |= _rules(settings, where)
        _add(added, _parse_tokens(files[FULL].get("added_tokens") or [], where), where)
    if ADDED in files:
        where = f"{flag} {folder / ADDED}"
        tokens = {_token_id(number, where): name for name, number in files[ADDED].items()}
        if len(tokens) < len(files[ADDED]):
            raise InputError(f"{where}: two tokens have the same id; give each token its own id")
        # tokenizer.json has more settings of a token.
        _add(added, {n: AddedToken(t) for n, t in tokens.items() if n not in added}, where)
    if CONFIG in files:
        where = f"{flag} {folder / CONFIG}"
        _check_config(files[CONFIG], where)
        rules |= _rules({key: files[CONFIG][key] for key in RULES if key in files[CONFIG]}, where)
        entries_by_id = files[CONFIG].get("added_tokens_decoder") or {}
        if not isinstance(entries_by_id, dict):
            raise InputError(f"{where}: added_tokens_decoder must be an object of id and token")
        entries = [
            {"id": number} | _object(entry, where) for number, entry in entries_by_id.items()
        ]
        _add(added, _parse_tokens(entries, where), where)
    special = set(SPECIAL_NAMES.values())  # never matched in texts, which are untrusted
    plain_tokens = {
        number: token for number, token in added.items() if token.content not in special
    }
    return TokenizerFiles(rules=rules, added=plain_tokens, vocabulary=vocabulary)


def config_text(tokenizer: Tokenizer, usual: Mapping[str, bool | None]) -> str | None:
    """Returns a tokenizer_config.json for ``tokenizer``, which `transformers` reads, too.

    None if the tokenizer has the ``usual`` rules, which follow from its vocabulary, and no added
    token: then ``vocab.txt`` holds everything.
    """
    rules = {key: getattr(tokenizer.normalizer, name) for key, (_, name) in RULES.items()}
    added = tokenizer.get_added_tokens_decoder()
    normalizer_rules = {RULES[key][1]: value for key, value in rules.items()}
    if normalizer_rules == usual and not added:
        return None
    if rules["clean_text"]:
        del rules["clean_text"]  # not a setting of BertTokenizer
    token_entries = {str(number): _describe_token(token) for number, token in sorted(added.items())}
    settings = (
        {"tokenizer_class": "BertTokenizer"} | rules | {"added_tokens_decoder": token_entries}
    )
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _describe_token(token: AddedToken) -> dict[str, Any]:
    return {"content": token.content} | {name: getattr(token, name) for name in FLAGS}


def _json_object(path: Path, flag: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{flag} {path} is over {MAX_BYTES >> 20} MiB; remove the file")
        content = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{flag} {path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{flag} {path} is not a JSON object; remove the file or replace it")
    return content


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected an object for each added token, not {value!r}")
    return value


def _rules(settings: Mapping[str, Any], where: str) -> dict[str, bool | None]:
    """Returns the arguments of the normalizer by the keys of tokenizer_config.json.

    null means "not given", except for ``strip_accents``: there it means "where texts are
    lower-cased".
    """
    for key, value in settings.items():
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{where}: {key}={value!r}, expected true or false")
    return {
        RULES[key][1]: value
        for key, value in settings.items()
        if value is not None or key == "strip_accents"
    }


def _token_id(number: Any, where: str) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit():
        number = int(number)
    if type(number) is not int or number < 0:
        raise InputError(f"{where}: an added token has the id {number!r}, expected 0, 1, 2, ...")
    return number


def _parse_tokens(entries: Iterable[Any], where: str) -> dict[int, AddedToken]:
    tokens: dict[int, AddedToken] = {}
    for entry in entries:
        fields = _object(entry, where)
        content = fields.get("content")
        if not isinstance(content, str) or not content:
            raise InputError(f"{where}: an added token has no content, expected its text")
        flags = {name: fields[name] for name in FLAGS if isinstance(fields.get(name), bool)}
        tokens[_token_id(fields.get("id"), where)] = AddedToken(content, **flags)
    return tokens


def _add(added: dict[int, AddedToken], more: Mapping[int, AddedToken], where: str) -> None:
    """Adds ``more``. Raises InputError if another file has a different token or id."""
    numbers = {token.content: number for number, token in added.items()}
    for number, token in more.items():
        if number in added and added[number].content != token.content:
            raise InputError(
                f"{where}: id {number} is {token.content!r} here and "
                f"{added[number].content!r} in another file of the folder; remove one of the two"
            )
        if numbers.get(token.content, number) != number:
            raise InputError(
                f"{where}: {token.content!r} has the id {number} here and "
                f"{numbers[token.content]} in another file of the folder; remove one of the two"
            )
        added[number] = token


def _check_config(config: Mapping[str, Any], where: str) -> None:
    """Warns about settings without effect. Raises InputError for special tokens of other names."""
    for key, name in SPECIAL_NAMES.items():
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is not None and text != name:
            raise InputError(f"{where}: {key}={text!r}, expected {name}; give a BERT vocabulary")
    kind = str(config.get("tokenizer_class") or "BertTokenizer")
    if kind.removesuffix("Fast") not in LIKE_BERT:
        print_status(
            f"warning: {where}: tokenizer_class={kind} has no effect; texts are "
            "tokenised as in BERT"
        )
    for key, usual in WITHOUT_EFFECT.items():
        if key in config and config[key] not in usual:
            print_status(f"warning: {where}: {key}={json.dumps(config[key])} has no effect")


def _full_vocabulary(full: Mapping[str, Any], where: str) -> dict[str, int]:
    """Returns tokenizer.json's tokens with their ids. Raises InputError for another model."""
    model = full.get("model")
    kind = model.get("type", "WordPiece") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "WordPiece":
        raise InputError(f"{where}: model.type={kind!r}, expected WordPiece, as in BERT")
    for key, usual in WORDPIECE.items():
        if model.get(key, usual) != usual:
            raise InputError(f"{where}: model.{key}={model[key]!r}, expected {usual!r}, as in BERT")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(
        type(number) is int and number >= 0 for number in vocabulary.values()
    ):
        raise InputError(f"{where}: model.vocab must be an object of tokens and their ids")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise InputError(
            f"{where}: two tokens of model.vocab have the same id; give each token its own id"
        )
    return vocabulary


def _bert_normalizer(full: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns the settings of tokenizer.json's normalizer. Raises InputError for other rules."""
    normalizer: Any = {}
    for key, expected in (("pre_tokenizer", "BertPreTokenizer"), ("normalizer", "BertNormalizer")):
        normalizer = full.get(key)
        kind = normalizer.get("type") if isinstance(normalizer, dict) else None
        if kind != expected:
            raise InputError(
                f"{where}: {key}={kind or 'null'}, expected {expected}; texts can only "
                f"be tokenised as in BERT (remove {FULL} to use vocab.txt)"
            )
    assert isinstance(normalizer, dict)
    return normalizer
