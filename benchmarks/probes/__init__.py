"""Measures what a trained model learns from images.

A masked word is guessed beside its own image and beside another one: the difference is what the
model sees, the second share what it knows of captions alone. A masked thing (a region and all that
overlap with it) is guessed beside its caption, beside none, and beside another's. Questions become
rows by the functions that make training's, so that a wrong mask or label shows in either.

``rows.py`` asks and makes rows of it, ``probing.py`` does all to a checkpoint and counts.
"""

from probes.probing import ProbeInputs, Score, probe, scores, switch_off
from probes.rows import (
    Question,
    ShownPixels,
    ShownRegions,
    beside,
    other_of,
    region_questions,
    told,
    word_questions,
)

__all__ = [
    "ProbeInputs",
    "Question",
    "Score",
    "ShownPixels",
    "ShownRegions",
    "beside",
    "other_of",
    "probe",
    "region_questions",
    "scores",
    "switch_off",
    "told",
    "word_questions",
]
