from pathlib import Path

import pytest

from vlmill.pipelines.web.texts.lists import NO_LISTS, read_lists
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_blocked_words_and_phrases(tmp_path: Path) -> None:
    one = written(tmp_path / "a", "# bad\nLorem Ipsum\n\ncasino* # all of them\nШлюха\n")
    two = written(tmp_path / "b", "赌场\n(c)\n")
    lists = read_lists([one, two], None)
    for text in (
        "The LOREM  ipsum text",
        "Casinos by night",
        "шлюха",
        "这家赌场很大",
        "photo (c) x",
    ):
        assert lists.blocks(text), text
    for text in ("Lorems ipsum", "occasional", "a calm sea", ""):
        assert lists.blocks(text) is None, text
    assert NO_LISTS.blocks("casino") is None


def test_the_vocabulary(tmp_path: Path) -> None:
    lists = read_lists([], written(tmp_path / "v", "the\t500\ncat\nsleeps\nold\nman's\n"))
    assert lists.unknown_share(["The", "cat", "sleeps"]) == 0
    assert lists.unknown_share(["The", "qwx", "sleeps", "zzk"]) == 0.5
    assert lists.unknown_share(["The", "cat", "Rasputin", "1917"]) == 0  # a name and a number
    assert lists.unknown_share(["Qwx", "cat"]) == 0.5  # the first word has a capital anyway
    assert lists.unknown_share(["the", "old-cat"]) == 0
    assert lists.unknown_share([]) == 0 == NO_LISTS.unknown_share(["qwx"])


def test_a_vocabulary_is_counted_on_a_table(tmp_path: Path) -> None:
    texts = ["The Cat sleeps", "the cat runs", "a cat, the cat"]
    rows = [
        dict.fromkeys(PAIRS.schema.names) | {"pair_id": str(n), "text": text, "language": "en"}
        for n, text in enumerate(texts)
    ]
    write_shard(tmp_path / "pairs", PAIRS, rows)
    assert read_lists([], str(tmp_path / "pairs")).vocabulary == frozenset({"the", "cat"})
    write_shard(tmp_path / "few", PAIRS, rows[:1])
    with pytest.raises(InputError, match="no word occurs 3 times"):
        read_lists([], str(tmp_path / "few"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no word"),
        (b"# nothing\n", "has no word"),
        (b"\xff\xfe", "utf-8"),
        (b"a" * 300, "is not a word"),
    ],
)
def test_files_that_are_no_lists(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_lists([str(tmp_path / "list")], None)
    assert "\n" not in str(caught.value) and "--blocked-words" in str(caught.value)
    with pytest.raises(InputError, match="--vocabulary"):
        read_lists([], str(tmp_path / "none"))
