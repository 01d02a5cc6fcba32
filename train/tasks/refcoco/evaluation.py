"""Computes the metrics of referring expressions by split, and cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import EXPRESSIONS
from vlmill.train.tasks.refcoco.metrics import Grounding, IouRule, choose, iou, refcoco_metrics
from vlmill.train.tasks.report import Case, DrawnBox
from vlmill.train.tasks.scores import NO_SPLIT, Figures, shares_by_group
from vlmill.train.tasks.task import EvaluationResult

PUBLISHED = tuple(f"refcoco+/{split}/accuracy" for split in ("val", "testA", "testB"))
NO_SOURCE = "expressions"  # of rows that name none
# Groups by the number of words, and of candidates: each up to this many.
LENGTHS = (2, 4, 7)
CANDIDATES = (5, 10, 20)


@dataclass(kw_only=True)
class Split:
    """Holds the expressions of a split of a data set: their images and texts."""

    expressions: dict[str, tuple[str, str]] = field(default_factory=dict)


def evaluate_predictions(
    examples: str, groundings: Mapping[str, Grounding], rule: IouRule
) -> EvaluationResult:
    """Scores groundings by expression_id."""
    figures, headline, cases = Figures(), list[str](), list[Case]()
    for name, split in read_splits(examples, groundings).items():
        split_groundings = {key: groundings[key] for key in split.expressions}
        figures |= refcoco_metrics(split_groundings, name, rule)
        figures |= by_kind(name, split, split_groundings, rule)
        headline.append(f"{name}/accuracy")
        cases += [
            make_case(key, split, grounding, rule) for key, grounding in split_groundings.items()
        ]
    empty = sum(not len(grounding.candidates) for grounding in groundings.values())
    notes = [f"{empty} expressions have no box to choose; they count as wrong."] if empty else []
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        papers="refcoco+",
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, groundings: Mapping[str, Grounding]) -> dict[str, Split]:
    """Returns the expressions that have been answered, by data set and split: ``refcoco+/val``."""
    splits: dict[str, Split] = {}
    columns = ("expression_id", "image_id", "text", "split", "source")
    for batch in iter_batches(examples, EXPRESSIONS, columns=columns, flag="--examples"):
        for row in batch.to_pylist():
            key = row["expression_id"]
            if key in groundings:
                name = f"{row['source'] or NO_SOURCE}/{row['split'] or NO_SPLIT}"
                splits.setdefault(name, Split()).expressions[key] = (row["image_id"], row["text"])
    return splits


def by_kind(name: str, split: Split, groundings: Mapping[str, Grounding], rule: IouRule) -> Figures:
    """Returns ``NAME/accuracy/words/...`` and ``.../candidates/...``, to locate errors."""
    right = {key: float(choose(grounding, rule).right) for key, grounding in groundings.items()}
    words = {key: find_group(len(split.expressions[key][1].split()), LENGTHS) for key in groundings}
    counts = {
        key: find_group(len(grounding.candidates), CANDIDATES)
        for key, grounding in groundings.items()
    }
    return shares_by_group(f"{name}/accuracy/words", right, words) | shares_by_group(
        f"{name}/accuracy/candidates", right, counts
    )


def find_group(number: int, ends: tuple[int, ...]) -> str:
    """Returns the group of a number: ``0-2``, ``3-4``, ..., and ``above-7``."""
    first = 0
    for end in ends:
        if number <= end:
            return f"{first}-{end}"
        first = end + 1
    return f"above-{ends[-1]}"


def make_case(key: str, split: Split, grounding: Grounding, rule: IouRule) -> Case:
    """Returns an expression as a report shows it; its score is the overlap of the chosen box."""
    image_id, text = split.expressions[key]
    chosen = choose(grounding, rule).chosen
    boxes = [DrawnBox(box=grounding.reference, label="right", kind="right")]
    prediction, score = "(no box)", 0.0
    if chosen is not None:
        box = grounding.candidates[chosen]
        score = float(iou(grounding.reference, box[None], rule)[0])
        prediction = f"box {chosen + 1} of {len(grounding.candidates)}"
        boxes.append(DrawnBox(box=box, label="chosen", kind="chosen"))
    return Case(
        example_id=key,
        image_id=image_id,
        score=score,
        text=text or "(empty)",
        prediction=prediction,
        right=", ".join(f"{corner:.0f}" for corner in grounding.reference),
        boxes=tuple(boxes),
        size=grounding.size,
    )
