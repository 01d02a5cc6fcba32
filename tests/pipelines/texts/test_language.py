import pytest

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.texts.language import LanguageDetector, page_language
from vlmill.schemas.rejects import Reason

ENGLISH = (
    "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised. " * 2
)
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand wunderte sich. " * 2


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector()


def judge(detector: LanguageDetector, text: str, declared: str | None = None) -> str | Reason:
    found = page_language(
        detector,
        text,
        declared,
        language="en",
        min_probability=0.8,
        min_chars=60,
        max_chars=1_000,
    )
    return found.reason if isinstance(found, Drop) else found


def test_the_text_decides(detector: LanguageDetector) -> None:
    assert judge(detector, ENGLISH) == "en"
    assert judge(detector, ENGLISH, "de") == "en"
    assert judge(detector, GERMAN, "en") == Reason.OTHER_LANGUAGE


def test_on_little_text_the_declaration_decides(detector: LanguageDetector) -> None:
    assert judge(detector, "Hello", "en-US") == "en"
    assert judge(detector, "Hello", "EN_gb") == "en"
    assert judge(detector, "Hello", "fr") == Reason.OTHER_LANGUAGE
    assert judge(detector, "Hello") == Reason.UNKNOWN_LANGUAGE
    assert judge(detector, "") == Reason.UNKNOWN_LANGUAGE


def test_numbers_are_no_language(detector: LanguageDetector) -> None:
    assert judge(detector, "1234 " * 50, "en") == Reason.UNKNOWN_LANGUAGE


def test_the_answer_is_always_the_same(detector: LanguageDetector) -> None:
    mixed = "Bonjour hello guten Tag the le der and et und a un ein " * 3
    answers = [detector.probabilities(mixed) for _ in range(5)]
    assert answers.count(answers[0]) == 5
