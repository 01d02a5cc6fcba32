import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.texts.balance import stray_marks
from vlmill.pipelines.web.texts.captions import clean, extract_caption, fault, plain
from vlmill.pipelines.web.texts.lists import TextLists
from vlmill.pipelines.web.texts.sentences import sentences
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

RULES = WebPairRules()

FRAGMENTS = st.sampled_from(
    [
        *("&amp;", "&lt;b&gt;", "image of ", "Photo: ", "IMG_1234", "http://a.org/x", "a@b.org"),
        *("cat.jpg", "[12]", "(Reuters)", " | Site", "\u200b", "\ufb03", "\ufdfa", "\x00"),
        *(
            "\ud800",
            "…",
            "(c) x",
            "A dog runs. ",
            "“",
            '"',
            ")",
            "(b",
            "&#x1F600;",
            "&am",
            "p;",
            "<i>",
            "ß",
            "İ",
        ),
    ]
)
DIRTY = st.lists(st.one_of(FRAGMENTS, st.text(max_size=6)), max_size=12).map("".join)


@given(DIRTY)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(DIRTY, st.integers(0, 40))
def test_cleaning_never_lengthens(text: str, limit: int) -> None:
    assert len(clean(text, limit)) <= len(plain(text, limit)) <= limit


@given(DIRTY)
def test_nothing_invisible_is_left(text: str) -> None:
    assert not [c for c in clean(text) if unicodedata.category(c).startswith("C")]


@given(DIRTY)
def test_a_caption_obeys_its_rules(text: str) -> None:
    caption = extract_caption(text, RULES)
    if not isinstance(caption, Drop):
        assert fault(caption, RULES) is None


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("  A\tcat \n on a mat ", "A cat on a mat"),
        ("cats &amp;amp; dogs", "cats & dogs"),
        ("A cat at http://a.org/cat on a mat", "A cat at on a mat"),
        ("Image of a cat on a mat", "A cat on a mat"),
        ("Photo: a cat on a mat", "A cat on a mat"),
        ("Image 3 of 12: a cat", "A cat"),
        ("Fig. 2: A cat on a mat", "A cat on a mat"),
        ("A cat (Getty Images)", "A cat"),
        ("A cat (Alex Wong/Getty Images; View)", "A cat"),
        ("The old cat. Photo: K. Lindqvist", "The old cat."),
        ("The old cat. © 2013 Somebody", "The old cat."),
        ("DSC_0042.JPG", ""),
        ("IMG_1234 a cat", "a cat"),
        ("A cat[12] on a mat.[3]", "A cat on a mat."),
        ("A cat | My Site", "A cat"),
        ("a cat 800x600 px", "a cat"),
        ("ﬁne cat…", "fine cat..."),
        ("<b>A cat</b>", "A cat"),
    ],
)
def test_cleaning_by_example(dirty: str, cleaned: str) -> None:
    assert clean(dirty) == cleaned


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.NO_TEXT),
        ("photo.jpg", Reason.FILE_NAME),
        ("word " * 81 + "and more besides", Reason.TOO_LONG),
        ("Click here to see all photos", Reason.BOILERPLATE),
        ("No image available", Reason.BOILERPLATE),
        ("Please enable JavaScript to see it", Reason.BOILERPLATE),
        ("JavaScript is disabled in this browser", Reason.BOILERPLATE),
        ("All rights reserved by the site", Reason.BOILERPLATE),
        ("12 34 56 78 cat", Reason.NOT_WORDS),
        ("cat cat cat cat cat dog", Reason.REPETITIVE),
        ("cheap viagra for your cat", Reason.BLOCKED_WORD),
        ("cats, dogs, mice, birds, fish", Reason.NOT_A_SENTENCE),
    ],
)
def test_reasons(text: str, reason: Reason) -> None:
    found = extract_caption(text, RULES)
    assert isinstance(found, Drop) and found.reason == reason


def test_limits_of_length() -> None:
    three = replace(RULES, min_words=3)
    for short, language in (("A cat", "en"), ("黑猫", "zh"), ("三江桥", "zh")):
        drop = extract_caption(short, three, language)
        assert isinstance(drop, Drop) and drop.reason == Reason.TOO_SHORT
        assert extract_caption(short, RULES) == short
    assert extract_caption("Two black cats", RULES) == "Two black cats"
    eighty = " ".join(f"w{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(80))
    assert extract_caption(eighty, RULES) == eighty
    found = extract_caption(eighty + " more", RULES)
    assert isinstance(found, Drop) and found.reason == Reason.TOO_LONG


def test_the_first_good_sentences_are_kept() -> None:
    text = "Click here to see more. A cat sleeps on a mat. It has a long tail. Share this page."
    assert extract_caption(text, RULES) == "A cat sleeps on a mat. It has a long tail."


def test_abbreviations_end_no_sentence() -> None:
    text = "Dr. J. Smith of the U.S. Navy waves. Behind him a ship."
    assert list(sentences(text)) == ["Dr. J. Smith of the U.S. Navy waves.", "Behind him a ship."]


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        ('"The Old Bridge" by Jane Doe in oil', '"The Old Bridge" by Jane Doe in oil'),
        ("“The old bridge at night.”", "The old bridge at night."),
        ('He said "Stop. Go back." to the dog', 'He said "Stop. Go back." to the dog'),
        ("A cat (seen here. It sleeps.) on a mat", "A cat (seen here. It sleeps.) on a mat"),
        ("An old cat on a mat (left", "An old cat on a mat left"),
        ("A cat on a mat (© 2013 Somebody)", "A cat on a mat"),
        ("黑色的猫睡在垫子上。它有一条长尾巴。", "黑色的猫睡在垫子上。它有一条长尾巴。"),
        ("「黒い猫が眠っている」と彼は言った。", "「黒い猫が眠っている」と彼は言った。"),
        ("2015年のグラフ", "2015年のグラフ"),
        ("2019 年 6 月，词汇量测试", "2019 年 6 月,词汇量测试"),
        ("FOREST: THIRD PLACE BY LAZARIO (11 YEARS)", "FOREST: THIRD PLACE BY LAZARIO (11 YEARS)"),
    ],
)
def test_quotations_and_brackets_stay_whole(text: str, caption: str) -> None:
    assert extract_caption(text, RULES) == caption


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("header-image_final-02", Reason.FILE_NAME),
        ("a_black_cat_on_a_mat", Reason.FILE_NAME),
        ("DSCN00423", Reason.FILE_NAME),
        (
            "THE BLACK CAT SLEEPS ON A MAT " + "AND DREAMS OF MANY OTHER FINE WARM MATS",
            Reason.CAPITALS,
        ),
        ("A black cat on a mat!!!", Reason.PUNCTUATION),
        ("A cat #cat #sleep #mat", Reason.PUNCTUATION),
        ('A cat "on the old mat of the house', Reason.UNBALANCED),
        ("Write to jane@example.org for the black cat", Reason.PERSONAL_DATA),
    ],
)
def test_more_reasons(text: str, reason: Reason) -> None:
    drop = extract_caption(text, RULES)
    assert isinstance(drop, Drop) and drop.reason == reason


def test_personal_data_is_kept_on_request() -> None:
    text = "Write to jane@example.org for the black cat"
    assert extract_caption(text, replace(RULES, keep_personal_data=True)) == text


def test_a_sentence_without_personal_data_is_a_caption() -> None:
    text = "A black cat sleeps on the mat. Call 202-555-0134 for more of it."
    assert extract_caption(text, RULES) == "A black cat sleeps on the mat."


def test_lists_of_words_are_obeyed() -> None:
    lists = TextLists(re.compile("(?<!\\w)mat(?!\\w)"), frozenset({"a", "black", "cat", "sleeps"}))
    for text, reason in (
        ("A cat sleeps on a mat", Reason.BLOCKED_WORD),
        ("A black qwx vvk zzr sleeps", Reason.UNKNOWN_WORDS),
    ):
        drop = extract_caption(text, RULES, None, lists)
        assert isinstance(drop, Drop) and drop.reason == reason
    assert extract_caption("A black cat sleeps", RULES, None, lists) == "A black cat sleeps"


@given(DIRTY)
def test_captions_are_balanced(text: str) -> None:
    caption = extract_caption(text, RULES)
    assert isinstance(caption, Drop) or not stray_marks(caption)


@pytest.mark.parametrize(
    "text",
    [
        "नाव नदी के किनारे बँधी है",
        "নদীর তীরে একটি নৌকা বাঁধা আছে",
        "கடற்கரையில் விளையாடும் குழந்தைகள்",
        "แมวสีส้มนั่งอยู่บนหน้าต่าง",
        "ឆ្មាពណ៌ទឹកក្រូចអង្គុយ",
        "ကြောင်တစ်ကောင် ထိုင်နေသည်",
        "سَيَّارَةٌ حَمْرَاءُ فِي الشَّارِعِ",
        "יֶלֶד עִם כֶּלֶב",
        "نانوا نان\u200cهای گرد را می\u200cچیند",
        "A family 👨\u200d👩\u200d👧 eats melon on the beach",
        "La péniche « Belle Aurore » amarrée sous le pont",
        "Three views of the mill: (a) from the bridge, (b) from the weir and (c) from the meadow",
        "(c) The shell after firing",
        "View from the top of the lighthouse",
        "View of the bay with all the boats in",
        "Shop window full of free range eggs",
        "Source of the river in a spring meadow",
        "A navy frigate escorts a merchant ship",
        "A torrent duck stands on a wet rock",
        "Fans wave flags before Super Bowl XXX",
        "Our dog (Rex) jumps over a log",
        "Oil on canvas, 30 x 40 cm",
        "F-16",
        "Boeing 747-400",
    ],
)
def test_cleaning_keeps_what_a_reader_would(text: str) -> None:
    assert extract_caption(text, RULES) == text


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        ("A baker arranges loaves. Photo: Jane Doe", "A baker arranges loaves."),
        ("A baker arranges loaves Photo: Jane Doe / Agency", "A baker arranges loaves"),
        ("The minister speaks (Reuters)", "The minister speaks"),
        ("The sun rises over the bay (Jane/Rex)", "The sun rises over the bay"),
        ("The old mill (c) 2014 John Smith", "The old mill"),
        ("Fresh bread » Bakery » Home", "Fresh bread"),
    ],
)
def test_credits_and_tails_go(text: str, caption: str) -> None:
    assert extract_caption(text, RULES) == caption


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("View all photos", Reason.BOILERPLATE),
        ("Back to top", Reason.BOILERPLATE),
        ("Next article", Reason.BOILERPLATE),
        ("Buy tickets here", Reason.BOILERPLATE),
        ("May be an image of 2 people and beard", Reason.BOILERPLATE),
        ("hot escorts in town", Reason.BLOCKED_WORD),
        ("free torrent files for all", Reason.BLOCKED_WORD),
        ("IMG-1234", Reason.FILE_NAME),
    ],
)
def test_buttons_and_spam_still_go(text: str, reason: Reason) -> None:
    drop = extract_caption(text, RULES)
    assert isinstance(drop, Drop) and drop.reason is reason
