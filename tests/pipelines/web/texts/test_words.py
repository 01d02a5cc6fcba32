import pytest

from vlmill.pipelines.web.texts.words import file_words, split_words


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        (None, "A fox's jump-start, at 3.5 m!", ["A", "fox's", "jump-start", "at", "3.5", "m"]),
        ("en", "under_score", ["under", "score"]),
        (None, "", []),
        (None, "हिन्दी में", ["हिन्दी", "में"]),  # vowel signs belong to their words
        (None, "cafe\u0301", ["cafe\u0301"]),
        (None, "黑猫 坐着", ["黑猫", "坐着"]),
        ("zh", "一只黑猫坐在窗台上。", ["一只", "黑猫", "坐在", "窗台上"]),
        ("zh", "用Python 3画X-ray图", ["用", "Python", "3", "画", "X-ray", "图"]),
        ("ja", "黒い猫が座っている。", ["黒い", "猫", "が", "座っ", "て", "いる"]),
        ("ja", "The cat", ["The", "cat"]),
        ("th", "แมวสีดำนั่งอยู่", ["แมว", "สี", "ดำ", "นั่ง", "อยู่"]),
    ],
)
def test_words(language: str | None, text: str, words: list[str]) -> None:
    assert split_words(text, language) == words


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_long_runs_keep_every_letter(language: str) -> None:
    letter = {"zh": "猫", "ja": "ね", "th": "ก"}[language]
    assert "".join(split_words(letter * 30_000, language)) == letter * 30_000


def test_words_of_a_file_name() -> None:
    assert file_words("http://a.org/d/Mona_Lisa%20inLouvre-2.jpg") == (
        "mona",
        "lisa",
        "in",
        "louvre",
    )
