"""Reads the labels of images, and compares selected texts with them."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["right", "wrong", "unsure", "not_judged"]

_EDGES = " \t\"'“”„«»‘’*•·–—-|,;:/_~=+<>.!?…。：！？，、「」『』"
_LEAST_PART = 0.5  # of a described text that a kept part has to be, and the other way round


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """An image on a page as it was judged by eye."""

    archive: str
    language: str
    page_url: str
    image_url: str
    is_content: bool
    describes: tuple[str, ...]
    not_describing: tuple[str, ...]
    unsure: tuple[str, ...]


def read_labels(path: Path) -> list[Label]:
    """Reads ``labels.jsonl``."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [
        Label(
            archive=row["archive"],
            language=row["language"],
            page_url=row["page_url"],
            image_url=row["image_url"],
            is_content=row["dominant"],
            describes=tuple(row["describes"]),
            not_describing=tuple(row["not"]),
            unsure=tuple(row["unsure"]),
        )
        for row in rows
    ]


def verdict_of(text: str, label: Label) -> Verdict:
    """How a kept text was judged: by the list with the same text, else with one it is a part of.

    Same: after folding white space and case, compatible characters (NFKC) and punctuation at the
    edges, which cleaning takes away. A part, or a whole that holds the judged text, counts if the
    shorter is at least half of the longer. Right counts before wrong, wrong before unsure: a text
    can stand in one list whole and in another as a part.
    """
    lists: tuple[tuple[Verdict, Sequence[str]], ...] = (
        ("right", label.describes),
        ("wrong", label.not_describing),
        ("unsure", label.unsure),
    )
    own = folded(text)
    for verdict, judged in lists:
        if any(own == folded(one) for one in judged):
            return verdict
    for verdict, judged in lists:
        if any(_is_part(own, folded(one)) for one in judged):
            return verdict
    return "not_judged"


def folded(text: str) -> str:
    """The text as it is compared."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES)


def _is_part(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= max(1.0, _LEAST_PART * len(long)) and short in long


def wilson(right: int, total: int) -> tuple[float, float] | None:
    """The 95 % interval of a share (Wilson 1927); None for nothing counted."""
    if total == 0:
        return None
    z = 1.959964
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def counts(outcomes: Iterable[tuple[Label, str | None]]) -> dict[str, int]:
    """Counts labels with their kept texts by verdict; ``findable`` are content images with a
    describing text, and ``found`` those of them whose kept text is right.
    """
    names = ("pictures", "findable", "found", "kept", "right", "wrong", "unsure", "not_judged")
    sums = dict.fromkeys(names, 0)
    for label, text in outcomes:
        sums["pictures"] += 1
        is_findable = label.is_content and bool(label.describes)
        sums["findable"] += is_findable
        if text is not None:
            verdict = verdict_of(text, label)
            sums["kept"] += 1
            sums[verdict] += 1
            sums["found"] += is_findable and verdict == "right"
    return sums
