"""NLVR2: is a statement true of two pictures?"""

from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.own import clean_text
from vlmill.schemas.rejects import Reason

LABELS = {"False": 0, "True": 1}
SIDES = ("img0", "img1")  # left, right


def statement_row(record: Any, split: str) -> dict[str, Any] | Drop:
    """Reads a line of NLVR2 as a row of ``statements``; a label of another spelling is a reject."""
    try:
        identifier, sentence, label = record["identifier"], record["sentence"], record.get("label")
    except (KeyError, TypeError, AttributeError) as error:
        return Drop(Reason.BAD_ROW, f"a statement without {error}")
    pair = pair_of(identifier)
    if pair is None or pair.split("-")[0] != split or not isinstance(sentence, str):
        return Drop(
            Reason.BAD_ROW, f"identifier {identifier!a}: want {split}-SET-PAIR-SENTENCE and a text"
        )
    if label is not None and label not in LABELS:
        return Drop(Reason.LABEL_UNKNOWN, f"{identifier}: label {label!r}, want True or False")
    text = clean_text(sentence)
    if not text:
        return Drop(Reason.EMPTY_TEXT, identifier)
    return {
        "example_id": f"nlvr2/{identifier}",
        "image_ids": [f"nlvr2/{pair}-{side}" for side in SIDES],
        "text_a": text,
        "label": label,
        "label_id": -1 if label is None else LABELS[label],
        "split": split,
        "source": "nlvr2",
    }


def pair_of(identifier: Any) -> str | None:
    """Returns split, set and pair of an identifier SPLIT-SET-PAIR-SENTENCE; None if it is none."""
    parts = identifier.split("-") if isinstance(identifier, str) else []
    if len(parts) != 4 or not all(part.isdecimal() and part.isascii() for part in parts[1:]):
        return None
    return "-".join(parts[:3])
