import subprocess
import sys
from pathlib import Path

import pytest

from vlmill.schemas.errors import InputError
from vlmill.train.loading.vocabulary import (
    SPECIAL,
    bert_tokenizer,
    read_vocabulary,
    train_vocabulary,
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
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "twice"),
        (b"\xff\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_vocabulary(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_vocabulary(tmp_path / "missing.txt")
