"""Writes the file that VCR's leaderboard reads."""

import csv
import io
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.files.atomic import write_text
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.train.tasks.scores import require_finite, require_same_ids

CHOICES = 4
TEST_QUESTIONS = 25_263  # of the official test set
HEADER = (
    "annot_id",
    *(f"answer_{i}" for i in range(CHOICES)),
    *(f"rationale_conditioned_on_a{a}_{r}" for a in range(CHOICES) for r in range(CHOICES)),
)


def leaderboard_rows(
    answer_logits: Mapping[str, NDArray[np.floating]],
    rationale_logits: Mapping[str, NDArray[np.floating]],
    annot_ids: Sequence[str],
) -> list[tuple[str | float, ...]]:
    """Returns a row of :data:`HEADER` for each question, in the order of ``annot_ids``.

    ``answer_logits`` [4] and ``rationale_logits`` [4 answers, 4 rationales] become probabilities,
    each softmax over four. The test set has no labels, so every answer's rationales are scored.
    Raises InputError for missing and surplus ids and for logits that are not finite.
    """
    for name, logits in (("answers", answer_logits), ("rationales", rationale_logits)):
        require_same_ids(logits.keys(), set(annot_ids), name)
        require_finite(logits, name)
    return [
        (key, *map(float, _softmax(answer_logits[key])), *map(float, _flat(rationale_logits[key])))
        for key in annot_ids
    ]


def _flat(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    return _softmax(logits.reshape(CHOICES, CHOICES)).ravel()


def _softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def write_leaderboard(
    path: Path, rows: Sequence[Sequence[str | float]], *, official: Set[str] | None = None
) -> None:
    """Writes rows as CSV with nine digits. ``official`` are the ids that the file must have.

    Without them it has to have as many as the official test set. Raises InputError otherwise.
    """
    if official is not None:
        require_same_ids({str(row[0]) for row in rows}, official, path.name)
    elif len(rows) != TEST_QUESTIONS:
        raise InputError(
            f"{path.name}: {format_count(len(rows), 'question')}; the leaderboard "
            f"expects the {TEST_QUESTIONS} of "
            "the test set"
        )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([key, *(f"{value:.9g}" for value in values)] for key, *values in rows)
    write_text(path, out.getvalue())
