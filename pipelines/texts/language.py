"""Language of a page, from its visible text; the declared language only where text is short."""

from typing import Any

from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from vlmill.pipelines.counting.funnel import Drop
from vlmill.schemas.rejects import Reason


class LanguageDetector:
    """Runs langdetect with its 55 profiles in memory (0.5 s to load), alike every time."""

    def __init__(self) -> None:
        self._factory: Any = DetectorFactory()
        self._factory.load_profile(PROFILES_DIRECTORY)
        self._factory.set_seed(0)  # it draws n-grams at random otherwise

    def probabilities(self, text: str) -> dict[str, float]:
        """Returns probabilities above 0.1 by language code; none for a text without letters."""
        detector = self._factory.create()
        try:
            detector.append(text)
            return {guess.lang: float(guess.prob) for guess in detector.get_probabilities()}
        except LangDetectException:  # "No features in text"
            return {}


def page_language(
    detector: LanguageDetector,
    text: str,
    declared: str | None,
    *,
    language: str,
    min_probability: float,
    min_chars: int,
    max_chars: int,
) -> str | Drop:
    """Returns ``language`` if the page is in it, else why the page is dropped.

    ``text`` is the page's main visible text. With fewer than ``min_chars`` characters ``declared``
    (the page's own ``lang``) decides: pages often declare a language that they are not in.
    """
    if len(text) < min_chars:
        if not declared:
            return Drop(Reason.UNKNOWN_LANGUAGE, f"{len(text)} characters, none declared")
        primary = declared.replace("_", "-").split("-")[0].strip().lower()
        return (
            language if primary == language else Drop(Reason.OTHER_LANGUAGE, f"declared {declared}")
        )
    shares = detector.probabilities(text[:max_chars])
    # zh-cn and zh-tw are both zh.
    share = sum(
        p for code, p in shares.items() if code == language or code.startswith(f"{language}-")
    )
    if share >= min_probability:
        return language
    if not shares:
        return Drop(Reason.UNKNOWN_LANGUAGE, "no letters")
    best = max(shares, key=lambda code: (shares[code], code))
    return Drop(Reason.OTHER_LANGUAGE, f"{best} {shares[best]:.2f}")
