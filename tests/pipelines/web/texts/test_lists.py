from pathlib import Path

import pytest

from vlmill.pipelines.web.texts.blocked import SHIPPED, WORD_LISTS, read_entries, shipped_languages
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists, describe_lists, read_lists
from vlmill.pipelines.web.texts.words import split_words
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_blocked_words_and_phrases(tmp_path: Path) -> None:
    one = written(tmp_path / "a", "# bad\nLorem Ipsum\n\ncasino* # all of them\nШлюха\n")
    lists = read_lists([one, written(tmp_path / "b", "赌场\n(c)\n")], None)
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


@pytest.mark.parametrize(
    ("text", "language", "blocked"),
    [
        ("Cheap VIAGRA for your cat", "de", True),  # English spam counts everywhere
        ("Das beste Online-Casino der Stadt", "de", True),
        ("Une salope au lit", "fr", True),
        ("Une salopette bleue", "fr", False),
        ("Kredit ohne Schufa", "en", False),  # of another language
        ("澳门在线赌场的广告", "zh", True),
        ("拉斯维加斯的赌场", "zh-TW", False),
        ("無料ダウンロードはこちら", "ja", True),
        ("Музей советских игровых автоматов", "ru", False),
        ("An escort of ships", None, False),
    ],
)
def test_shipped_words_count_by_language(text: str, language: str | None, blocked: bool) -> None:
    assert (TextLists().blocks(text, language) is not None) == blocked
    assert TextLists(shipped=()).blocks(text, language) is None


@pytest.mark.parametrize("kind", SHIPPED)
def test_each_shipped_list_can_be_read_and_replaced(kind: str, tmp_path: Path) -> None:
    languages = shipped_languages(kind)
    assert {"de", "en", "es", "fr", "ja", "ru", "zh"} <= set(languages)
    assert all(read_entries(WORD_LISTS / kind / f"{one}.txt", "") for one in languages)
    own = tmp_path / "own.txt"
    own.write_text("Kumquat\n", encoding="utf-8")
    lists = read_lists([], None, kinds={kind: str(own)})
    assert lists.blocks("a kumquat") and kind not in lists.shipped
    described = describe_lists(None, {kind: "none"})
    assert described[f"{kind}_words_filter"] == "off" == described["vocabulary_filter"]


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("The old bridge crosses the river", "en", 0),
        ("Blorvik snarfel quumptious dranfeld", "en", 1),
        ("Die alte Brücke führt über den Fluss", "de", 0),
        ("一座古老的桥横跨河流", "zh", 0),
        ("一座古老的橋橫跨河流", "zh", 0),
        ("古い橋が川にかかっている", "ja", 0),
        ("En gammel bro over elven", "no", 0),
        ("오래된 다리가 강을 가로지른다", "ko", 0),  # not judged
        ("blorvik snarfel", None, 0),  # of no known language
    ],
)
def test_wordfreq_knows_the_words(text: str, language: str | None, share: int) -> None:
    lists = read_lists([], "wordfreq")
    assert abs(lists.unknown_share(split_words(text, language), language) - share) < 0.2
