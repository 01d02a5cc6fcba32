import pyarrow as pa
import pytest

from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.tokens import count_unspaced, make_tokenizer, refuse_unspaced
from vlmill.schemas.errors import InputError

CHINESE, JAPANESE, THAI = "红色的猫在垫子上", "赤い猫がマットの上にいる", "แมวสีแดงบนเสื่อ"


@pytest.mark.parametrize(
    ("tokenizer", "text", "words"),
    [
        ("words", "A red Cat, 2 mats", {"red", "cat", "mats"}),
        ("words", "किसान खेत में, बच्चे नदी पर", {"किसान", "खेत", "बच्चे", "नदी"}),
        ("words", "سَيَّارَةٌ حَمْرَاءُ", {"سَيَّارَةٌ", "حَمْرَاءُ"}),
        ("whitespace", "红色 的 Cat", {"红色", "的", "cat"}),
        ("jieba", f"{CHINESE} Mat", {"红色", "垫子", "mat"}),
        ("sudachi", JAPANESE, {"猫", "マット"}),
        ("newmm", THAI, {"แมว", "เสื่อ"}),
    ],
)
def test_words_by_hand(tokenizer: str, text: str, words: set[str]) -> None:
    assert words <= set(make_tokenizer(NegativeRules(tokenizer=tokenizer))(text))


@pytest.mark.parametrize(
    ("tokenizer", "uncut"), [("words", 3), ("whitespace", 0), ("jieba", 2), ("sudachi", 1)]
)
def test_captions_that_a_tokenizer_does_not_cut(tokenizer: str, uncut: int) -> None:
    rules = NegativeRules(tokenizer=tokenizer)
    texts = pa.array([CHINESE, JAPANESE, THAI, "a red cat"])
    assert count_unspaced(texts, rules) == uncut
    if uncut:
        with pytest.raises(InputError, match="newmm for Thai"):
            refuse_unspaced(uncut, len(texts), rules, "--pairs t")
