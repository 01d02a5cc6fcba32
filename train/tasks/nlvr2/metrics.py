"""Computes NLVR2's accuracy and consistency from predictions as their files have them.

Identifiers are SPLIT-SET-PAIR-SENTENCE. A prediction is the text True or False in any case; another
text is never right.
"""

from collections.abc import Iterable, Mapping, Set

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.scores import Figures, require_same_ids, share

Verdicts = Mapping[str, bool | None]

WORDS = ("true", "false")


def verdicts(predictions: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, bool | None]:
    """Says of each example whether it was predicted right; None where neither true nor false was.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), labels.keys(), "predictions")
    words = {key: predictions[key].lower() for key in labels}
    return {
        key: words[key] == label.lower() if words[key] in WORDS else None
        for key, label in labels.items()
    }


def consistency_groups(results: Verdicts) -> dict[str, bool]:
    """Says of each use of a sentence (split, set, sentence) whether all of its examples are right.

    Raises InputError for an identifier of another form.
    """
    groups: dict[str, bool] = {}
    for identifier, verdict in results.items():
        parts = identifier.split("-")
        if len(parts) != 4:
            raise InputError(f"identifier {identifier!r}: want SPLIT-SET-PAIR-SENTENCE")
        name = "-".join((parts[0], parts[1], parts[3]))
        groups[name] = groups.get(name, True) and verdict is True
    return groups


def select_results(results: Verdicts, identifiers: Iterable[str]) -> list[bool]:
    """Returns what is right of some examples; those with neither true nor false are left out.

    So do the official codes for subsets and categories, whose denominators are therefore smaller.
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
