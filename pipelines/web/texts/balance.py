"""Checks that quotation marks and brackets are paired, and removes a stray one."""

import re

_CLOSES = {
    **{"(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "《": "》", "「": "」", "『": "』"},
    **{"“": "”", "«": "»", "‹": "›"},
}
# A German quotation ends with the mark that begins an English one; guillemets may be turned.
_ENDS = {"„": "“”", "»": "«", "›": "‹", **{left: right for left, right in _CLOSES.items()}}
_MARKS = re.compile(r'[()\[\]{}（）【】《》「」『』“”„«»‹›"]')
_BOTH = "“«»‹›"  # begins or ends, depending on the open marks
_CLOSING = frozenset(_CLOSES.values())
MOST_STRAY = 1  # of marks that are removed to fix a text


def stray_marks(text: str) -> list[int]:
    """Returns the positions of unpaired marks, in order; empty if the text is balanced.

    A straight mark after a digit may be inches, and an apostrophe is never a quotation mark here.
    """
    open_marks: list[tuple[str, int]] = []
    stray: list[int] = []
    for match in _MARKS.finditer(text):
        mark, position = match[0], match.start()
        if mark == '"':
            if open_marks and open_marks[-1][0] == '"':
                open_marks.pop()
            elif not (
                text[position - 1 : position].isdigit() and '"' not in (m for m, _ in open_marks)
            ):
                open_marks.append((mark, position))
        elif open_marks and mark in _ENDS.get(open_marks[-1][0], ""):
            open_marks.pop()
        elif mark in _ENDS and (mark not in _CLOSING or mark in _BOTH):
            open_marks.append((mark, position))
        elif any(mark in _ENDS.get(other, "") for other, _ in open_marks):
            while mark not in _ENDS.get(open_marks[-1][0], ""):
                stray.append(open_marks.pop()[1])
            open_marks.pop()
        else:
            stray.append(position)
    return sorted([*stray, *(position for _, position in open_marks)])


def remove_stray_mark(text: str) -> str | None:
    """Returns the text without its only stray mark, or as it is without any; None if it has more.

    A straight mark in the middle of a text is ambiguous: None.
    """
    stray = stray_marks(text)
    if len(stray) > MOST_STRAY:
        return None
    for position in stray:
        inner = text[position] == '"' and 0 < position < len(text.rstrip(".!?… ")) - 1
        if inner:
            return None
        text = f"{text[:position]}{text[position + 1 :]}"
    return " ".join(text.split())


def unwrap_quotes(text: str) -> str:
    """Returns a text without quotation marks or brackets that enclose all of it."""
    while len(text) > 1 and (text[0] == text[-1] == '"' or text[-1] in _ENDS.get(text[0], "")):
        inside = text[1:-1]
        straight = text[0] == '"' and '"' in inside  # several quotations in a row
        if straight or stray_marks(inside) or not inside.strip():
            break
        text = inside.strip()
    return text
