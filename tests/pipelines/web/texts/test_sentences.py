import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.web.texts.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is. Two was! Three?", ["One is.", "Two was!", "Three?"]),
        ("Mr. Fox met J. Wolf. They spoke.", ["Mr. Fox met J. Wolf.", "They spoke."]),
        ("Вид на Ялту. Вот пляж.", ["Вид на Ялту.", "Вот пляж."]),
        ("г. Калязин, Е. Соколова. Дом.", ["г. Калязин, Е. Соколова.", "Дом."]),
        ("下图是桥。三江桥！真的？", ["下图是桥。", "三江桥！", "真的？"]),
        ("「すごい。」と言った。次の日。", ["「すごい。」", "と言った。", "次の日。"]),
        ("3. More views.", ["3. More views."]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentences_of_every_script(text: str, expected: list[str]) -> None:
    assert list(sentences(text)) == expected


@given(st.text("aB.! \n。次г", max_size=60))
def test_sentences_lose_nothing_but_space(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
