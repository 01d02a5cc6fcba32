import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.models.bert_files import transformers

from vlmill.schemas.errors import InputError
from vlmill.train.loading.vocabulary import (
    SPECIAL,
    bert_tokenizer,
    padded_vocabulary,
    read_vocabulary,
    train_vocabulary,
    vocabulary_contents,
    vocabulary_text,
)

TEXTS = ["A dog runs in the park", "A dog and a CAT", "the cat runs", "Éclairs in the park"]
IN_ANOTHER_PROCESS = """
import sys
from vlmill.train.loading.vocabulary import train_vocabulary, vocabulary_text
sys.stdout.buffer.write(vocabulary_text(train_vocabulary(sys.argv[1:], 60)).encode())
"""


def test_special_tokens_come_first_and_frequent_words_are_whole() -> None:
    tokenizer = train_vocabulary(TEXTS, 60)
    tokens = vocabulary_text(tokenizer).splitlines()
    assert tuple(tokens[:5]) == SPECIAL
    assert len(tokens) == len(set(tokens)) <= 60
    assert tokenizer.encode("The DOG").tokens == ["[CLS]", "the", "dog", "[SEP]"]


def test_every_process_trains_the_same_vocabulary() -> None:
    # The trainer's own hash tables are seeded anew in each process.
    made = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, *TEXTS], capture_output=True, check=True
        ).stdout
        for _ in range(3)
    }
    assert made == {vocabulary_text(train_vocabulary(TEXTS, 60)).encode()}


def test_rare_characters_become_unknown() -> None:
    tokenizer = train_vocabulary(["aa aa bb bb", "z"], 60, max_characters=2)
    assert tokenizer.encode("aa z").tokens == ["[CLS]", "aa", "[UNK]", "[SEP]"]


def test_no_text_gives_the_special_tokens() -> None:
    assert vocabulary_text(train_vocabulary([], 60)).splitlines() == list(SPECIAL)


def test_a_vocabulary_comes_back_from_its_file(tmp_path: Path) -> None:
    tokenizer = train_vocabulary(TEXTS, 60)
    (tmp_path / "vocab.txt").write_text(vocabulary_text(tokenizer), encoding="utf-8", newline="")
    back = read_vocabulary(tmp_path / "vocab.txt")
    assert back.get_vocab() == tokenizer.get_vocab()
    text = "The cat's éclairs, in A PARK!"
    assert back.encode(text).ids == tokenizer.encode(text).ids


def test_hostile_text_is_tokenised() -> None:
    tokenizer = bert_tokenizer({token: i for i, token in enumerate(SPECIAL)})
    assert tokenizer.encode("a" * 100_000).tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert tokenizer.encode("\x00\u200b \u2028").tokens == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"lacks \[MASK\]"),
        (b"\xff\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_vocabulary(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_vocabulary(tmp_path / "missing.txt")


WORDS = (*SPECIAL, "the", "cafe", "café", "Café", "über", "uber", "好", "好好", "##s")
SENTENCE = "The Café über cafe 好好 [DEC] uber"


def write_files(folder: Path, words: tuple[str, ...] = WORDS, **files: dict[str, Any]) -> Path:
    """A vocab.txt of ``words`` with the JSON files of these names beside it."""
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in words), encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "vocab.txt"


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": True, "strip_accents": True},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
)
def test_texts_are_prepared_as_tokenizer_config_says(
    settings: dict[str, bool], tmp_path: Path
) -> None:
    path = write_files(tmp_path, tokenizer_config=settings)
    expected = transformers().BertTokenizer(str(path), **settings)(SENTENCE)["input_ids"]
    assert read_vocabulary(path).encode(SENTENCE).ids == expected
    # And as tokenizer.json says it, without the other file.
    path.with_name("tokenizer_config.json").unlink()
    full = {
        "model": {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(WORDS)}},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "normalizer": {
            "type": "BertNormalizer",
            "lowercase": settings["do_lower_case"],
            "strip_accents": settings.get("strip_accents"),
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        },
    }
    path.with_name("tokenizer.json").write_text(json.dumps(full))
    assert read_vocabulary(path).encode(SENTENCE).ids == expected
    path.unlink()
    assert read_vocabulary(path.with_name("tokenizer.json")).encode(SENTENCE).ids == expected


def test_tokenizer_config_counts_before_tokenizer_json(tmp_path: Path) -> None:
    full = {
        "model": {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(WORDS)}},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "normalizer": {"type": "BertNormalizer", "lowercase": False, "strip_accents": False},
    }
    path = write_files(tmp_path, tokenizer=full, tokenizer_config={"do_lower_case": True})
    assert read_vocabulary(path).encode("The Café").tokens[1:-1] == ["the", "café"]


def test_settings_and_added_tokens_come_back_from_their_files(tmp_path: Path) -> None:
    added = {"[DEC]": len(WORDS) + 1, "[ENC]": len(WORDS)}
    settings = {"do_lower_case": True, "strip_accents": False}
    path = write_files(tmp_path, added_tokens=added, tokenizer_config=settings)
    tokenizer = read_vocabulary(path)
    there = transformers().BertTokenizer.from_pretrained(str(tmp_path))
    for text in (SENTENCE, "the[ENC]the [dec]s", "[MASK]"):
        if text != "[MASK]":
            assert tokenizer.encode(text).ids == there(text)["input_ids"]
    assert tokenizer.get_vocab_size() == len(WORDS) + 2
    (tmp_path / "again").mkdir()
    for name, content in vocabulary_contents(tokenizer).items():
        (tmp_path / "again" / name).write_text(content, encoding="utf-8", newline="")
    again = read_vocabulary(tmp_path / "again" / "vocab.txt")
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.encode(SENTENCE).ids == tokenizer.encode(SENTENCE).ids
    # A caption is anybody's: BERT's own special tokens are never matched in it.
    assert tokenizer.encode("[MASK]").tokens[1:-1] == ["[UNK]"] * 3


def test_one_file_is_written_where_the_vocabulary_tells_everything() -> None:
    assert list(vocabulary_contents(train_vocabulary(TEXTS, 60))) == ["vocab.txt"]


def test_of_a_token_on_two_lines_the_later_one_counts(tmp_path: Path, capsys: Any) -> None:
    path = write_files(tmp_path, (*SPECIAL, "hund", "katze", "hund", "maus"))
    tokenizer = read_vocabulary(path)
    there = transformers().BertTokenizer(str(path))
    assert tokenizer.encode("hund katze maus").ids == there("hund katze maus")["input_ids"]
    assert tokenizer.encode("hund").ids == [2, 7, 3]
    assert tokenizer.id_to_token(5) == "[unused0]"  # the row of the earlier line
    assert "'hund' is on lines 6 and 8; the later line is used" in capsys.readouterr().err
    assert len(vocabulary_text(tokenizer).splitlines()) == tokenizer.get_vocab_size() == 9


def test_further_numbers_get_names_that_no_text_has(tmp_path: Path) -> None:
    path = write_files(
        tmp_path, (*SPECIAL, "[unused0]", "a"), tokenizer_config={"strip_accents": False}
    )
    padded = padded_vocabulary(read_vocabulary(path), 9)
    assert vocabulary_text(padded).splitlines()[5:] == ["[unused0]", "a", "[unused1]", "[unused2]"]
    assert padded.encode("[unused1] a").ids == [2, 1, 1, 1, 6, 3]
    assert padded.normalizer.strip_accents is False


def test_settings_without_effect_are_named(tmp_path: Path, capsys: Any) -> None:
    settings = {
        "tokenizer_class": "BertJapaneseTokenizer",
        "word_tokenizer_type": "mecab",
        "never_split": ["the"],
        "do_basic_tokenize": False,
        "model_max_length": 512,
    }
    read_vocabulary(write_files(tmp_path, tokenizer_config=settings))
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4
    for key in ("tokenizer_class=BertJ", "word_tokenizer_type=", "never_split=", "do_basic_tok"):
        assert sum(key in line for line in warnings) == 1


FULL = {
    "model": {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(WORDS)}},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "normalizer": {"type": "BertNormalizer"},
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", {"strip_accents": "no"}, "tokenizer_config.json: strip_accents='no'"),
        ("tokenizer_config", {"unk_token": "<unk>"}, "unk_token='<unk>', expected .UNK."),
        ("tokenizer_config", [], "tokenizer_config.json is not a JSON object"),
        ("tokenizer_config", {"added_tokens_decoder": {"14": {}}}, "added token has no content"),
        ("added_tokens", {"[DEC]": 5}, r"'\[DEC\]' is added with the id 5, but .* 5 is 'the'"),
        ("added_tokens", {"the": 14}, "'the' is added with the id 14, .* has the id 5"),
        ("added_tokens", {"a": 14, "b": 14}, "two tokens have the same id"),
        ("added_tokens", {"[DEC]": "last"}, "an added token has the id 'last'"),
        ("added_tokens", {"[DEC]": 1 << 30}, "expected less than 1048576"),
        ("tokenizer", FULL | {"model": {"type": "BPE"}}, "model.type='BPE', expected WordPiece"),
        ("tokenizer", FULL | {"normalizer": {"type": "Sequence"}}, "normalizer=Sequence, expected"),
        ("tokenizer", FULL | {"pre_tokenizer": None}, "pre_tokenizer=null, expected"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    name: str, content: Any, message: str, tmp_path: Path
) -> None:
    path = write_files(tmp_path, **{name: content})
    with pytest.raises(InputError, match=message):
        read_vocabulary(path)
