"""Finds e-mail addresses, telephone numbers and card numbers in texts.

A number is treated as a telephone number only in a form that is written for telephones; years,
ISBNs, coordinates, sizes and prices are not. The rules are this project's.
"""

import re

_FILE_ENDINGS = r"(?:png|jpe?g|gif|webp|svg|avif|bmp|tiff?|js|css)"
_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}(?:@|\s?[\[(]at[\])]\s?)"
    r"(?:[\w-]{1,63}(?:\.|\s?[\[(](?:dot|punkt)[\])]\s?)){1,4}(?!" + _FILE_ENDINGS + r"\b)"
    r"[a-z]{2,24}\b",
    re.IGNORECASE,
)
_NUMBERED = re.compile(  # numbers that resemble telephone numbers
    r"(?:isbn|issn|ean|doi|upc|asin|pmid|orcid|inv|accession|cat|art|item|model|serial|lot|id|"
    r"no|nr|№|#|§|[$€£¥])(?:[-.:\s]|1[03])*$",
    re.IGNORECASE,
)
_NAMED = re.compile(  # a word that announces a telephone number
    r"(?:\b(?:tel|telephone|phone|telefon|call|fax|mobile|mobil|cell|whatsapp|hotline|tél|teléfono|"
    r"тел|телефон)\b|电话|電話|手机|手機|携帯)\s?(?:us|me|now|at|on|no|number|nr|by|:|\.|：)*[\s:：.]*$",
    re.IGNORECASE,
)
_PHONES = (
    re.compile(r"\+\d{1,3}(?:[ .-]?\(0?\d{0,4}\))?(?:[ ./-]?\d{1,5}){2,6}"),  # +49 (0)30 123456
    re.compile(r"\(?[2-9]\d{2}\)?[-. ] ?\d{3}[-. ]\d{4}"),  # (202) 555-0134
    re.compile(r"\(0\d{1,4}\)[ /-]?\d{2,5}(?:[ -]?\d{2,5}){1,3}"),  # (020) 7946 0958
    re.compile(r"0\d(?:[ .-]\d{2}){4}"),  # 01 23 45 67 89
    re.compile(r"0\d{1,4}[ /-]\d{3,8}(?:[ -]\d{2,6}){0,3}"),  # 030 1234567, 03-1234-5678
)
_RUN = re.compile(r"\d[\d ()./-]{4,18}\d")  # after a word that announces a number
_CARD = re.compile(r"(?<![\d.,-])[2-6]\d{3}(?:[ -]?\d{2,6}){2,4}(?![\d.,-]*\d)")
_DECIMAL = re.compile(r"[+-]?\d+\.\d+")
_CONTEXT = 24  # characters before a number that may indicate its type


def personal_data(text: str) -> str | None:
    """Returns the type of personal data in the text: ``email``, ``card``, ``telephone`` or None."""
    if ("@" in text or "at" in text) and _EMAIL.search(text):
        return "email"
    if sum(map(str.isdigit, text)) < 6:
        return None
    if any(is_card(match[0]) for match in _CARD.finditer(text)):
        return "card"
    return "telephone" if _has_telephone(text) else None


def is_card(written: str) -> bool:
    """Returns whether digits, with spaces or hyphens between, are a payment card's number.

    The issuer, length and Luhn digit must match, for Visa, Mastercard, American Express, Diners
    Club, Discover, UnionPay and JCB.
    """
    digits = re.sub(r"\D", "", written)
    lengths = {"4": (13, 16, 19), "5": (16,), "6": (16, 17, 18, 19)}.get(digits[0], ())
    if "2221" <= digits[:4] <= "2720":
        lengths = (16,)
    elif digits[:2] in ("34", "37"):
        lengths = (15,)
    elif digits[:2] in ("30", "36", "38", "39"):
        lengths = (14,)
    elif "3528" <= digits[:4] <= "3589":
        lengths = (16,)
    return len(digits) in lengths and luhn(digits)


def luhn(digits: str) -> bool:
    """Returns whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    total = 0
    for index, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (1 + index % 2)
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _has_telephone(text: str) -> bool:
    for pattern in _PHONES:
        for match in pattern.finditer(text):
            if _is_telephone(text, match):
                return True
    for match in _RUN.finditer(text):
        digits = sum(map(str.isdigit, match[0]))
        if 6 <= digits <= 15 and _NAMED.search(
            text[max(0, match.start() - _CONTEXT) : match.start()]
        ):
            return True
    return False


def _is_telephone(text: str, match: "re.Match[str]") -> bool:
    before, after = text[: match.start()], text[match.end() :]
    digits = sum(map(str.isdigit, match[0]))
    if not (9 if match[0].startswith("0") else 8) <= digits <= 15 or _DECIMAL.fullmatch(match[0]):
        return False
    # A part of a longer number or of a word, or a range of numbers.
    if re.search(r"[\w.,°]$|\d[ -]$", before) or re.match(r"[-. /]?\d|[\w°'′″×%]", after):
        return False
    return not _NUMBERED.search(before[-_CONTEXT:])
