"""Measures what a trained model learns from images.

A masked word is guessed beside its own image and beside another one: the difference is what the
model sees, the second share what it knows of captions alone. A masked thing (a region and all that
overlap with it) is guessed beside its caption, beside none, and beside another's. Questions become
rows by the functions that make training's, so that a wrong mask or label shows in either.

``questions.py`` asks, ``rows.py`` makes rows of it, ``answers.py`` counts, ``probing.py`` does all
to a checkpoint.
"""

from probes.answers import Score, scores, switch_off
from probes.probing import ProbeInputs, probe
from probes.questions import Question, beside, other_of, region_questions, told, word_questions
from probes.rows import ShownPixels, ShownRegions

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
