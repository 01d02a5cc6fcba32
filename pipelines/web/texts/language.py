"""Detects languages of pages and captions from text; a page's declaration decides on short texts.

CLD2 is the default: it names 586 of 598 real pages correctly and returns no language for 6, in
0.08 ms each; langdetect names 560, in 3 ms (docs/web-pairs.md, "Languages"). Languages are ISO 639
codes in lower case, of two letters if available; ``zh`` is Chinese in either script.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

ANY = "any"

_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z]{4})?")
# Old codes, and ISO 639-2 and 639-3 codes of languages that detectors name by two letters.
_CODE_PAIRS = (
    "iw=he in=id ji=yi jw=jv mo=ro nb=no nob=no nor=no nno=nn sh=sr fil=tl tgl=tl cmn=zh "
    "zho=zh chi=zh eng=en deu=de ger=de fra=fr fre=fr spa=es ita=it por=pt rus=ru jpn=ja "
    "kor=ko ara=ar arb=ar hin=hi ben=bn tam=ta tel=te mar=mr guj=gu kan=kn mal=ml pan=pa "
    "urd=ur fas=fa per=fa pes=fa prs=fa tha=th vie=vi ind=id msa=ms may=ms zsm=ms tur=tr "
    "pol=pl ukr=uk ces=cs cze=cs slk=sk slo=sk hun=hu ron=ro rum=ro bul=bg srp=sr hrv=hr "
    "bos=bs slv=sl mkd=mk mac=mk ell=el gre=el heb=he nld=nl dut=nl swe=sv dan=da fin=fi "
    "isl=is ice=is est=et ekk=et lav=lv lvs=lv lit=lt cat=ca glg=gl eus=eu baq=eu gle=ga "
    "cym=cy wel=cy sqi=sq alb=sq hye=hy arm=hy kat=ka geo=ka aze=az azj=az kaz=kk kir=ky "
    "uzb=uz uzn=uz mon=mn khk=mn nep=ne npi=ne sin=si mya=my bur=my khm=km lao=lo amh=am "
    "swa=sw swh=sw afr=af lat=la epo=eo ory=or ori=or kur=ku bel=be"
)
_OTHER_CODES = dict(pair.split("=") for pair in _CODE_PAIRS.split())
# A macrolanguage includes its members.
_MEMBERS = {"no": ("nn",), "nor": ("nn",)}
_SCRIPTS = {
    "latn": re.compile(r"[A-Za-z\u00c0-\u024f]"),
    "cyrl": re.compile(r"[\u0400-\u052f]"),
    "arab": re.compile(r"[\u0600-\u06ff]"),
    "deva": re.compile(r"[\u0900-\u097f]"),
    "guru": re.compile(r"[\u0a00-\u0a7f]"),
    # The most common characters that only simplified or only traditional Chinese has.
    "hans": re.compile("[们这个国来时会为说学对发经过还进动关开问间长现东无机从后见头书]"),
    "hant": re.compile("[們這個國來時會為說學對發經過還進動關開問間長現東無機從後見頭書]"),
}
_REGION_SCRIPTS = {
    **dict.fromkeys(("zh-tw", "zh-hk", "zh-mo"), "hant"),
    **dict.fromkeys(("zh-cn", "zh-sg", "zh-my"), "hans"),
}
# CLD2 refuses these; the last two are not characters.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LETTERS = re.compile(r"[^\W\d_]")
# Scripts of one language, or of languages that are indistinguishable in short texts.
_KANA, _HAN = re.compile(r"[\u3040-\u30ff]"), re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_THAI, _HANGUL = re.compile(r"[\u0e01-\u0e5b]"), re.compile(r"[\uac00-\ud7af]")

Detect = Callable[[str], dict[str, float]]


class LanguageDetector:
    """Detects languages by name: ``cld2``, or ``langdetect`` (55 languages, 0.5 s to load).

    Both are deterministic; neither needs a network or a file outside its package.
    """

    def __init__(self, name: str = "cld2") -> None:
        makers: dict[str, Callable[[], Detect]] = {"cld2": _cld2, "langdetect": _langdetect}
        self._detect = makers[name]()

    def probabilities(self, text: str) -> dict[str, float]:
        """Returns shares of the text, or probabilities, by language; {} without letters."""
        shares: dict[str, float] = {}
        for code, share in self._detect(text).items():
            primary = primary_language(code)
            shares[primary] = shares.get(primary, 0.0) + share
        return shares


def _cld2() -> Detect:
    import pycld2

    def detect(text: str) -> dict[str, float]:
        try:
            if not text.isprintable():
                text = _CONTROLS.sub(" ", text)
            _, _, guesses = pycld2.detect(text, bestEffort=True)
        except pycld2.error:  # for input that is not text
            return {}
        return {code: share / 100 for _, code, share, _ in guesses if code != "un" and share}

    return detect


def _langdetect() -> Detect:
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
    from langdetect.lang_detect_exception import LangDetectException

    factory: Any = DetectorFactory()
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(0)  # otherwise it samples n-grams at random

    def detect(text: str) -> dict[str, float]:
        detector = factory.create()
        try:
            detector.append(text)
            return {guess.lang: float(guess.prob) for guess in detector.get_probabilities()}
        except LangDetectException:  # "No features in text"
            return {}

    return detect


def primary_language(tag: str) -> str:
    """Returns the language of a tag: ``zh`` for ``zh-Hant``, ``en`` for ``EN_gb``."""
    primary = tag.replace("_", "-").split("-")[0].strip().lower()
    return _OTHER_CODES.get(primary, primary)


def requested_language(tag: str) -> str:
    """Returns a tag's language, and its script if it names one: ``zh-hant`` for ``zh-TW``.

    A region indicates nothing else that a detector could detect: ``pt`` for ``pt-BR``.
    """
    primary = primary_language(tag)
    subtags = tag.replace("_", "-").lower().strip().split("-")
    script = next((part for part in subtags[1:] if part in _SCRIPTS), "")
    script = script or next(
        (s for part in subtags[1:] if (s := _REGION_SCRIPTS.get(f"{primary}-{part}"))), ""
    )
    return f"{primary}-{script}" if script else primary


def text_script(text: str, candidates: Iterable[str]) -> str:
    """Returns the script of most of a text's letters among the candidates, or ""."""
    counts = {script: len(_SCRIPTS[script].findall(text)) for script in candidates}
    best = max(counts, key=lambda script: (counts[script], script))
    return best if counts[best] else ""


def _is_wanted(language: str, text: str, languages: frozenset[str] | None) -> bool:
    """Returns whether a text's language is among the requested ones, checking its script, too."""
    if languages is None or language in languages:
        return True
    scripts = {tag[len(language) + 1 :] for tag in languages if tag.startswith(f"{language}-")}
    if not scripts:
        return False
    rivals = ("hans", "hant") if language == "zh" else tuple(s for s in _SCRIPTS if s[:2] != "ha")
    return text_script(text, rivals) in scripts


def parse_languages(text: str) -> frozenset[str] | None:
    """Returns the languages of ``en``, ``en,de``, ``zh-Hant`` or ``any``, which is None.

    Raises InputError for a text that is not a list of codes.
    """
    codes = [requested_language(code) for code in text.split(",")]
    if codes == [ANY]:
        return None
    if wrong := [code for code in codes if not _CODE.fullmatch(code)]:
        raise InputError(
            f"--language {text}: {wrong[0]!r} is not a language code; give codes like "
            f"en,de, or {ANY}"
        )
    members = (one for code in text.split(",") for one in _MEMBERS.get(code.strip().lower(), ()))
    return frozenset((*codes, *members))


def page_language(
    detector: LanguageDetector,
    text: str,
    declared: str | None,
    *,
    languages: frozenset[str] | None,
    min_probability: float,
    min_chars: int,
    max_chars: int,
) -> str | Drop:
    """Returns the page's language if it is one of ``languages``, else why the page is dropped.

    ``text`` is the page's visible text. With fewer than ``min_chars`` characters ``declared`` (the
    page's own ``lang``) decides: pages often declare a language that they are not in. None for
    ``languages`` accepts any page with a detectable language.
    """
    if len(text) < min_chars * _density(text):
        if not declared:
            return Drop(Reason.UNKNOWN_LANGUAGE, f"{len(text)} characters, none declared")
        language = primary_language(declared)
        if _is_wanted(language, text, languages):
            return language
        return Drop(Reason.OTHER_LANGUAGE, f"declared {declared[:40]}")
    shares = detector.probabilities(text[:max_chars])
    if not shares:
        return Drop(Reason.UNKNOWN_LANGUAGE, "no letters")
    best = max(shares, key=lambda code: (shares[code], code))
    if shares[best] < min_probability:
        return Drop(Reason.UNKNOWN_LANGUAGE, f"{best} {shares[best]:.2f}")
    if _is_wanted(best, text, languages):
        return best
    return Drop(Reason.OTHER_LANGUAGE, f"{best} {shares[best]:.2f}")


def caption_language(
    detector: LanguageDetector, text: str, *, language: str, min_chars: int = 60
) -> Drop | None:
    """Returns why a caption is not in its page's language, or None if it may be.

    Short texts are tolerated, because names and titles are in no language: a text is dropped for
    its script, or if at least ``min_chars`` characters are surely in another language.
    """
    if (script := _foreign_script(text, language)) is not None:
        return Drop(Reason.OTHER_LANGUAGE, script)
    if len(text) < min_chars * _density(text):
        return None
    shares = detector.probabilities(text)
    best = max(shares, key=lambda code: (shares[code], code), default=language)
    if best == language or shares.get(language, 0.0) > 0.2 or shares[best] < 0.9:
        return None
    return Drop(Reason.OTHER_LANGUAGE, f"{best} {shares[best]:.2f}")


def _density(text: str) -> float:
    """Returns 0.33 for Chinese, Japanese or Korean: a character means as much as three others."""
    if text.isascii():
        return 1.0
    dense = len(_HAN.findall(text)) + len(_KANA.findall(text)) + len(_HANGUL.findall(text))
    return 0.33 if 2 * dense > len(text) else 1.0


def _foreign_script(text: str, language: str) -> str | None:
    """Returns a description of the script of most letters, if ``language`` is not written in it."""
    if text.isascii():
        return None
    letters = max(1, len(_LETTERS.findall(text)))
    num_kana, num_han = len(_KANA.findall(text)), len(_HAN.findall(text))
    if language in ("zh", "yue"):
        # A few kana among Chinese characters show that a text is Japanese.
        return (
            "kana" if num_kana > 0.1 * letters else _check_scripts((_THAI, _HANGUL), text, letters)
        )
    if language == "ja":
        return _check_scripts((_THAI, _HANGUL), text, letters)
    if num_kana + num_han > 0.5 * letters and language != "ko":
        return "Chinese or Japanese letters"
    other_scripts = [s for s, user in ((_THAI, "th"), (_HANGUL, "ko")) if user != language]
    return _check_scripts(other_scripts, text, letters)


def _check_scripts(scripts: Iterable[re.Pattern[str]], text: str, letters: int) -> str | None:
    if any(2 * len(script.findall(text)) > letters for script in scripts):
        return "letters of another script"
    return None
