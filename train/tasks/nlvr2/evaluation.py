"""Computes NLVR2's official metrics of predictions by split, their file, and cases.

Accuracy and consistency are computed from predictions in the format of the files that NLVR2's
scripts read. Identifiers are SPLIT-SET-PAIR-SENTENCE. A prediction is the text True or False in any
case; another text is never right.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import NO_SPLIT, Figures, require_same_ids, share
from vlmill.train.tasks.task import EvaluationResult

Verdicts = Mapping[str, bool | None]

LOWER_WORDS = ("true", "false")


def verdicts(predictions: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, bool | None]:
    """Returns whether each example was predicted right; None for neither true nor false.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), labels.keys(), "predictions")
    words = {key: predictions[key].lower() for key in labels}
    return {
        key: words[key] == label.lower() if words[key] in LOWER_WORDS else None
        for key, label in labels.items()
    }


def consistency_groups(results: Verdicts) -> dict[str, bool]:
    """Returns for each use of a sentence (split, set, sentence) whether all its examples are right.

    Raises InputError for an identifier of another form.
    """
    groups: dict[str, bool] = {}
    for identifier, verdict in results.items():
        parts = identifier.split("-")
        if len(parts) != 4:
            raise InputError(f"identifier {identifier!r}: expected SPLIT-SET-PAIR-SENTENCE")
        name = "-".join((parts[0], parts[1], parts[3]))
        groups[name] = groups.get(name, True) and verdict is True
    return groups


def select_results(results: Verdicts, identifiers: Iterable[str]) -> list[bool]:
    """Returns the results of some examples; those with neither true nor false are omitted.

    The official code does so for subsets and categories, whose denominators are therefore smaller.
    Raises InputError for an example that was not predicted.
    """
    identifiers = list(identifiers)
    require_same_ids(results.keys() & set(identifiers), set(identifiers), "predictions")
    return [verdict for key in identifiers if (verdict := results[key]) is not None]


def nlvr2_metrics(results: Verdicts, split: str, subsets: Mapping[str, Set[str]]) -> Figures:
    """Returns ``nlvr2/SPLIT/accuracy`` and ``consistency`` with their errors and counts.

    For each of ``subsets`` (``balanced``, ``unbalanced``) there is ``NAME_accuracy``.
    """
    name = f"nlvr2/{split}"
    figures = share(f"{name}/accuracy", [verdict is True for verdict in results.values()])
    figures |= share(f"{name}/consistency", list(consistency_groups(results).values()))
    for subset, identifiers in subsets.items():
        figures |= share(f"{name}/{subset}_accuracy", select_results(results, sorted(identifiers)))
    return figures


def write_predictions(
    path: Path, predictions: Mapping[str, bool], identifiers: Sequence[str]
) -> None:
    """Writes lines ``identifier,True|False`` without a header, in the order of the examples.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), set(identifiers), path.name)
    write_text(path, "".join(f"{key},{bool(predictions[key])}\n" for key in identifiers))


PUBLISHED = ("nlvr2/dev/accuracy", "nlvr2/test-P/accuracy")
COLUMNS = ("example_id", "image_ids", "text_a", "label_id", "split", "subset")
SPLITS = {"test1": "test-P", "test2": "test-U"}  # public, and not public
WORDS = ("False", "True")
SUBSETS = ("balanced", "unbalanced")


@dataclass(kw_only=True)
class Split:
    """Holds the statements of a split that were predicted, and their public labels."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def get_identifier(example_id: str) -> str:
    """Returns the data set's own identifier: ``dev-12-3-1`` of ``nlvr2/dev-12-3-1``."""
    return example_id.rpartition("/")[2]


def evaluate_predictions(examples: str, values: Mapping[str, Sequence[float]]) -> EvaluationResult:
    """Scores the logits ``values`` of false and true, by example_id.

    Raises InputError for identifiers of another form than SPLIT-SET-PAIR-SENTENCE.
    """
    figures, headline, notes = Figures(), list[str](), list[str]()
    files, cases = [], list[Case]()
    for name, split in read_splits(examples, values).items():
        files.append(partial(write_split, name=name, split=split))
        figure_names = [f"nlvr2/{name}/{figure}" for figure in ("accuracy", "consistency")]
        headline += figure_names
        if not split.labels:
            figures |= dict.fromkeys(figure_names)
            continue
        if unscored := len(split.rows) - len(split.labels):
            notes.append(f"{unscored} statements of {name} have no label and are not scored.")
        right = verdicts({key: split.predictions[key] for key in split.labels}, split.labels)
        subsets = {
            subset: {
                key
                for row in split.rows
                if row["subset"] == subset and (key := get_identifier(row["example_id"])) in right
            }
            for subset in SUBSETS
        }
        nonempty_subsets = {subset: keys for subset, keys in subsets.items() if keys}
        figures |= nlvr2_metrics(right, name, nonempty_subsets)
        cases += [
            make_case(row, values[row["example_id"]]) for row in split.rows if row["label_id"] >= 0
        ]
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        files=files,
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, values: Mapping[str, Sequence[float]]) -> dict[str, Split]:
    """Returns the statements that have been predicted, by their splits."""
    splits: dict[str, Split] = {}
    for batch in iter_batches(examples, STATEMENTS, columns=COLUMNS, flag="--examples"):
        for row in batch.to_pylist():
            if row["example_id"] not in values:
                continue
            name = row["split"] or NO_SPLIT
            split = splits.setdefault(SPLITS.get(name, name), Split())
            key = get_identifier(row["example_id"])
            split.rows.append(row)
            split.predictions[key] = WORDS[int(np.argmax(values[row["example_id"]]))]
            if row["label_id"] >= 0:
                split.labels[key] = WORDS[row["label_id"]]
    return splits


def write_split(folder: Path, *, name: str, split: Split) -> None:
    """Writes ``nlvr2_SPLIT.csv``, which the data set's scripts read."""
    predictions = {key: word == WORDS[1] for key, word in split.predictions.items()}
    write_predictions(folder / f"nlvr2_{name}.csv", predictions, list(split.predictions))


def make_case(row: Mapping[str, Any], value: Sequence[float]) -> Case:
    """Returns a statement as a report shows it; its score is the right class's probability."""
    logits = np.array(value, dtype=np.float64)
    odds = np.exp(logits - logits.max())
    first, second = row["image_ids"]
    return Case(
        example_id=row["example_id"],
        image_id=first,
        score=float(odds[row["label_id"]] / odds.sum()),
        second_id=second,
        text=row["text_a"],
        prediction=WORDS[int(np.argmax(value))],
        right=WORDS[row["label_id"]],
    )
