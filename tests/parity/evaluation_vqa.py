"""VQA: the official accuracy, the processing of answers, and the tool that makes labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.parity.golden import GoldenSet, expect, leaves, read_json
from tests.parity.printed import check_printed
from tests.parity.results import Results

from vlmill.schemas.answers import (
    clean_answer,
    collect_labels,
    make_label,
    process_answer,
    soft_labels,
    without_marks,
)
from vlmill.train.tasks.scores import by_id
from vlmill.train.tasks.vqa.metrics import Annotation, VqaScores, accuracy

TYPES = {"perQuestionType": "question_type", "perAnswerType": "answer_type"}


def vqa(golden: GoldenSet, results: Results) -> None:
    """Recorded in percent; ``second_run`` shows a slip that nobody should reproduce."""
    results.given("questions:*", "annotations:*", "results:*", "*.question_ids", "*.decimals")
    results.given("expected:second_run.*", "strings:*.in", "strings:*.class")
    strings(golden, results)
    entries = read_json(golden.folder / "annotations.json")["annotations"]
    annotations = by_id(
        ((entry["question_id"], annotation_of(entry)) for entry in entries), "annotations.json"
    )
    predictions = by_id(
        (
            (entry["question_id"], entry["answer"])
            for entry in read_json(golden.folder / "results.json")
        ),
        "results.json",
    )
    expected = read_json(golden.folder / "expected.json")
    whole = accuracy(predictions, annotations)
    figures(results, "expected:unrounded", whole, decimals=None)
    figures(results, "expected:full.accuracy", whole, decimals=2)
    by_question(results, "expected:full.per_question", whole, decimals=2)
    for name in ("subset", "half"):
        part = expected.get(name)
        if part is not None:
            ids, decimals = part["question_ids"], part.get("decimals", 2)
            scores = accuracy({i: predictions[i] for i in ids}, {i: annotations[i] for i in ids})
            above = f"expected:{name}.accuracy" if "accuracy" in part else f"expected:{name}"
            figures(results, above, scores, decimals=decimals)
            by_question(results, f"expected:{name}.per_question", scores, decimals=decimals)
    for question, (first, _) in expected.get("second_run", {}).get("changed", {}).items():
        ours = 100 * whole.by_question[int(question)]
        expect(
            abs(ours - first) < 0.01, f"expected.json: second_run: question {question} is {ours}"
        )


def annotation_of(entry: Mapping[str, Any]) -> Annotation:
    """An entry of the published file; who answered is all that a record says but the answer."""
    records = entry["answers"]
    return Annotation(
        answers=tuple(record["answer"] for record in records),
        question_type=entry["question_type"],
        answer_type=entry["answer_type"],
        annotators=tuple(
            tuple(sorted((k, v) for k, v in record.items() if k != "answer")) for record in records
        ),
    )


def figures(results: Results, above: str, scores: VqaScores[int], *, decimals: int | None) -> None:
    """The overall accuracy and those by type below the key ``above``."""
    ours = scores.figures("x")
    figure(results, f"{above}.overall", ours["vqa/x/accuracy"], decimals)
    for name, kind in TYPES.items():
        for key in results.golden.values:
            if key.startswith(f"{above}.{name}."):
                group = key.removeprefix(f"{above}.{name}.")
                figure(results, key, ours[f"vqa/x/accuracy/{kind}/{group}"], decimals)


def by_question(results: Results, above: str, scores: VqaScores[int], *, decimals: int) -> None:
    for question, value in scores.by_question.items():
        figure(results, f"{above}.{question}", value, decimals)


def figure(results: Results, key: str, share: float | None, decimals: int | None) -> None:
    assert share is not None
    if decimals is None:
        results.check(key, 100 * share)
    else:
        check_printed(results, key, 100 * share, decimals)


def strings(golden: GoldenSet, results: Results) -> None:
    """Each step of the processing by itself."""
    for i, string in enumerate(read_json(golden.folder / "strings.json")):
        cleaned = clean_answer(string["in"])
        results.check_all(
            {
                f"strings:{i}.clean": cleaned,
                f"strings:{i}.punct": without_marks(cleaned),
                f"strings:{i}.out": process_answer(cleaned),
            }
        )


def soft_scores_of_tool(golden: GoldenSet, results: Results) -> None:
    """Labels, and each question's targets; VLMo's column differs where digits are not ASCII."""
    results.given(
        "*annotations:*", "strings:*.in", "*.question_id", "*.image_id", "expected:min_occurrence"
    )
    for i, string in enumerate(read_json(golden.folder / "strings.json")):
        results.check(f"strings:{i}.out", make_label(string["in"]))
        if any(c.isdigit() and not c.isascii() for c in string["in"]):
            results.given(f"strings:{i}.vlmo")  # Python 3 takes these for digits, Python 2 did not
        else:
            results.check(f"strings:{i}.vlmo", make_label(string["in"]))
    targets = read_json(golden.folder / "targets.json")
    entries = {part: read_json(golden.folder / f"{part}_annotations.json") for part in targets}
    answers = [e["multiple_choice_answer"] for part in entries.values() for e in part]
    names = labels(golden, results, answers)
    numbers = {label: number for number, label in enumerate(names)}
    for part, questions in targets.items():
        annotated = by_id(
            ((e["question_id"], e) for e in entries[part]), f"{part}_annotations.json"
        )
        for i, question in enumerate(questions):
            typed = [record["answer"] for record in annotated[question["question_id"]]["answers"]]
            ids, scores = soft_labels(typed, numbers)
            ours = {names[label]: score for label, score in zip(ids, scores, strict=True)}
            surplus = ours.keys() - question["scores"].keys()
            expect(not surplus, f"targets.json: {part} {i} has no {sorted(surplus)}, ours has")
            for key, score in leaves(ours, f"targets:{part}.{i}.scores"):
                check_printed(results, key, score, 9)  # whole scores are recorded as integers


def labels(golden: GoldenSet, results: Results, answers: Sequence[str]) -> list[str]:
    """The labels, with how many questions have each."""
    expected = read_json(golden.folder / "expected.json")
    ours = collect_labels(answers, min_questions=expected["min_occurrence"])
    surplus = set(ours) - expected["occurrence"].keys()
    expect(not surplus, f"expected.json: no {sorted(surplus)} in occurrence, ours are labels")
    counts = Counter(map(make_label, answers))
    results.check_all({f"expected:occurrence.{label}": counts[label] for label in ours})
    return ours
