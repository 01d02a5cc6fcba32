"""The funnel: what each stage took in, gave out and dropped, by reason.

A stage's pure function returns what it keeps, or a :class:`Drop`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.schemas.rejects import Reason

IN, OUT = "in", "out"


@dataclass(frozen=True, slots=True)
class Drop:
    """Why something goes no further; ``detail`` is free text for a reader."""

    reason: Reason
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A line of the funnel; ``unit`` says what is counted."""

    name: str
    unit: str


ARCHIVES = Stage("archives", "archives")
RECORDS = Stage("records", "records")
REDIRECTS = Stage("redirects", "redirects")
PAGES = Stage("pages", "pages")
LANGUAGE = Stage("language", "pages")
PARSE = Stage("parse", "pages")
IMAGES = Stage("pictures", "pictures")
INLINE_IMAGES = Stage("inline_pictures", "images in pages")
JOIN = Stage("join", "images on pages")
DOMINANT = Stage("dominant", "images on pages")
TEXTS = Stage("texts", "images on pages")
EXCLUDE = Stage("exclude", "pairs")
BEST_TEXT = Stage("best_text", "pairs")
SHARED_TEXT = Stage("shared_text", "pairs")
NEAR_DUPLICATES = Stage("near_duplicates", "pairs")

STAGES = (
    ARCHIVES,
    RECORDS,
    REDIRECTS,
    PAGES,
    LANGUAGE,
    PARSE,
    IMAGES,
    INLINE_IMAGES,
    JOIN,
    DOMINANT,
    TEXTS,
    EXCLUDE,
    BEST_TEXT,
    SHARED_TEXT,
    NEAR_DUPLICATES,
)

Tally = tuple[str, str]
"""(stage, ``in``, ``out`` or a reason)"""


def build_funnel(
    tallies: Iterable[tuple[Tally, int]], stages: Sequence[Stage] = STAGES
) -> list[dict[str, Any]]:
    """Counts as the list that ``funnel.json`` holds, one entry for each of ``stages`` in order.

    Raises AssertionError if a stage lost or invented something: in = out + rejects.
    """
    counts: dict[Tally, int] = {}
    for tally, count in tallies:
        counts[tally] = counts.get(tally, 0) + count
    funnel = []
    for stage in stages:
        rejects = {
            reason.value: counts[stage.name, reason.value]
            for reason in Reason
            if counts.get((stage.name, reason.value))
        }
        entered, left = counts.get((stage.name, IN), 0), counts.get((stage.name, OUT), 0)
        dropped = sum(rejects.values())
        assert entered == left + dropped, f"{stage.name}: {entered} in, {left} out, {dropped} not"
        funnel.append(
            {"stage": stage.name, "unit": stage.unit, "in": entered, "out": left}
            | {"rejects": rejects}
        )
    return funnel
