import pytest

from vlmill.pipelines.rules import DETECTORS
from vlmill.pipelines.web.texts.language import (
    LanguageDetector,
    caption_language,
    page_language,
    parse_languages,
    primary_language,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

ENGLISH = (
    "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised. " * 2
)
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand wunderte sich. " * 2
CHINESE = "一只黑猫坐在窗台上看着外面的雪，村里的人都没有感到惊讶，因为它每天都坐在那里。"
JAPANESE = "窓辺に座っている黒い猫が外の雪を眺めています。村の人は誰も驚きませんでした。"


@pytest.fixture(scope="module", params=DETECTORS)
def detector(request: pytest.FixtureRequest) -> LanguageDetector:
    return LanguageDetector(request.param)


def judge(
    detector: LanguageDetector, text: str, declared: str | None = None, languages: str = "en"
) -> str | Reason:
    language = page_language(
        detector,
        text,
        declared,
        languages=parse_languages(languages),
        min_probability=0.4,
        min_chars=60,
        max_chars=1_000,
    )
    return language.reason if isinstance(language, Drop) else language


def test_the_text_decides(detector: LanguageDetector) -> None:
    assert judge(detector, ENGLISH) == "en"
    assert judge(detector, ENGLISH, "de") == "en"
    assert judge(detector, GERMAN, "en") == Reason.OTHER_LANGUAGE
    assert judge(detector, GERMAN, languages="en,de") == "de"
    assert judge(detector, GERMAN, languages="any") == "de"
    assert judge(detector, CHINESE, languages="zh") == "zh"
    assert judge(detector, JAPANESE, languages="zh,ja") == "ja"
    assert judge(detector, CHINESE) == Reason.OTHER_LANGUAGE


def test_on_little_text_the_declaration_decides(detector: LanguageDetector) -> None:
    assert judge(detector, "Hello", "en-US") == "en"
    assert judge(detector, "Hello", "EN_gb") == "en"
    assert judge(detector, "Hello", "fr") == Reason.OTHER_LANGUAGE
    assert judge(detector, "Hello", "fr", "any") == "fr"
    assert judge(detector, "Hello") == Reason.UNKNOWN_LANGUAGE
    assert judge(detector, "") == Reason.UNKNOWN_LANGUAGE


def test_numbers_are_no_language(detector: LanguageDetector) -> None:
    assert judge(detector, "1234 " * 50, "en") == Reason.UNKNOWN_LANGUAGE


def test_the_answer_is_always_the_same(detector: LanguageDetector) -> None:
    mixed = "Bonjour hello guten Tag the le der and et und a un ein " * 3
    answers = [detector.probabilities(mixed) for _ in range(5)]
    assert answers.count(answers[0]) == 5


def test_any_characters_can_be_asked_about(detector: LanguageDetector) -> None:
    for text in ("\x00\x0b\x7f\x85" * 30, "\ud800 hello", "\ufffe\uffff", "\U0010ffff" * 50):
        assert isinstance(detector.probabilities(text), dict)


@pytest.mark.parametrize(
    ("text", "language", "is_dropped"),
    [
        ("A black cat sits on the windowsill and looks at the snow outside.", "en", False),
        ("Eine schwarze Katze sitzt auf der Fensterbank und sieht in den Schnee.", "en", True),
        ("Château de Chambord", "en", False),  # a name, too short to tell
        ("Claude Monet, Impression, soleil levant, 1872", "en", False),
        ("窓辺に座っている猫", "en", True),
        ("窓辺に座っている猫", "zh", True),
        ("Tokyo Tower (東京タワー) at night", "en", False),
        ("黑猫坐在窗台上", "ja", False),
        ("黑猫坐在窗台上", "zh", False),
        ("แมวสีดำ", "zh", True),
        ("고양이", "ja", True),
        ("IMG 2041", "zh", False),
        ("", "en", False),
    ],
)
def test_captions_are_in_their_pages_language(text: str, language: str, is_dropped: bool) -> None:
    drop = caption_language(LanguageDetector(), text, language=language)
    assert (drop is not None) == is_dropped
    assert drop is None or drop.reason == Reason.OTHER_LANGUAGE


def test_lists_of_languages() -> None:
    assert parse_languages("en") == frozenset({"en"})
    assert parse_languages("EN, zh-Hant,iw") == frozenset({"en", "zh-hant", "he"})
    assert parse_languages("zh-TW,zh_CN,zh") == frozenset({"zh-hant", "zh-hans", "zh"})
    assert parse_languages("pt-BR,eng,nb,fil") == frozenset({"pt", "en", "no", "tl"})
    assert parse_languages("no") == frozenset({"no", "nn"})
    assert parse_languages("any") is None
    for wrong in ("", "en,", "english", "en;de", "any,en,x1"):
        with pytest.raises(InputError, match="--language"):
            parse_languages(wrong)
    assert primary_language("zh_TW") == "zh"
