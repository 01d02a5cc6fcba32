"""VCR, referring expressions, NLVR2 and GLUE: what the official scorers made of generated cases."""

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.parity.golden import GoldenSet, expect, naming, read_json
from tests.parity.printed import check_printed
from tests.parity.results import Results

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.glue.evaluation import prediction_file
from vlmill.train.tasks.glue.metrics import TASKS, glue_metrics
from vlmill.train.tasks.nlvr2.task import nlvr2_metrics, select_results, verdicts
from vlmill.train.tasks.refcoco.metrics import RULES, Choice, Grounding, choose, iou
from vlmill.train.tasks.scores import by_id
from vlmill.train.tasks.vcr.evaluation import VcrHits, leaderboard_rows, vcr_hits, write_leaderboard

VCR_NAMES = {
    "q_a": ("Answer acc", "Q_A_accuracy"),
    "qa_r": ("Rationale acc", "QA_R_accuracy"),
    "q_ar": ("Joint acc", "Q_AR_accuracy"),
}


SURE = 1e-6  # of the numbers in the leaderboard's file


def vcr(golden: GoldenSet, results: Results) -> None:
    """Three accuracies by three codes, each question's hits, and the leaderboard's file."""
    results.given("expected:*.name")
    cases = {case["name"]: case["rows"] for case in read_json(golden.folder / "cases.json")}
    for i, expected in enumerate(read_json(golden.folder / "expected.json")):
        rows, at = cases[expected["name"]], f"expected:{i}"
        hits = hits_of(rows)
        for kind, of in (("answer", hits.answers), ("rationale", hits.rationales)):
            written = "".join(str(int(of[row["annot_id"]])) for row in rows)
            results.check(f"{at}.hits.{kind}", written)
        figures = hits.figures("x")
        for name, (printed, interbert) in VCR_NAMES.items():
            ours = figures[f"vcr/x/{name}"]
            results.check(f"{at}.accuracy.{name}", ours)
            check_printed(results, f"{at}.printed.{printed}", ours, 3)
            check_printed(results, f"{at}.interbert.{interbert}", ours, 6)
        results.check(f"{at}.vlbert_joint", figures["vcr/x/q_ar"])
    leaderboard(golden, results, cases)


def hits_of(rows: list[Mapping[str, Any]]) -> VcrHits[str]:
    """Rationales are scored with the right answer."""
    labels = by_id(
        ((r["annot_id"], (r["answer_label"], r["rationale_label"])) for r in rows), "rows"
    )
    return vcr_hits(
        {r["annot_id"]: np.array(r["answer_logits"]) for r in rows},
        {r["annot_id"]: np.array(r["rationale_logits"][r["answer_label"]]) for r in rows},
        labels,
    )


def leaderboard(golden: GoldenSet, results: Results, cases: Mapping[str, Any]) -> None:
    """The file of the case whose questions it has, of several the nearest one's; its numbers have
    six sure digits.
    """
    stem = "leaderboard:"
    recorded = {k.removeprefix(stem): v for k, v in golden.values.items() if k.startswith(stem)}
    if not recorded:
        return
    recorded.pop("header")
    same = [rows for rows in cases.values() if [r["annot_id"] for r in rows] == [*recorded]]
    expect(same, f"{golden.folder}/leaderboard.csv: no case has its questions in their order")
    ours = [leaderboard_file(rows) for rows in same]
    expect(all([*file] == ["annot_id", *recorded] for file in ours), "another order of questions")
    theirs = np.array([*recorded.values()])
    offs = [np.abs(np.array([*file.values()][1:], float) - theirs) for file in ours]
    nearest = min(range(len(ours)), key=lambda number: float(offs[number].max()))
    results.check(f"{stem}header", ["annot_id", *ours[nearest].pop("annot_id")])
    for (name, fields), off in zip(ours[nearest].items(), offs[nearest], strict=True):
        numbers = [float(field) for field in fields]
        results.check(stem + name, recorded[name] if off.max() <= SURE else numbers)


def leaderboard_file(rows: list[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The lines of our file by their first field."""
    ids = [row["annot_id"] for row in rows]
    made = leaderboard_rows(
        {r["annot_id"]: np.array(r["answer_logits"]) for r in rows},
        {r["annot_id"]: np.array(r["rationale_logits"]) for r in rows},
        ids,
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "leaderboard.csv"
        write_leaderboard(path, made, official=set(ids))
        return {name: fields for name, *fields in csv.reader(path.read_text().splitlines())}


def corners(boxes: Any) -> Any:
    """x, y, width, height as corners with the outer edge: [N, 4]."""
    xywh = np.array(boxes, np.float64).reshape(-1, 4)
    return np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)


IOU_DECIMALS = {"vilbert": 7, "vlbert": 12, "mattnet": 12}
RULE_NAMES = {"vilbert": "released", "vlbert": "vlbert", "mattnet": "mattnet"}


def refcoco(golden: GoldenSet, results: Results) -> None:
    """Overlaps, choices and hits by three codes, and the accuracies of each track and split."""
    results.given("expected:*.ref_id")
    cases = read_json(golden.folder / "cases.json")
    hits: dict[str, list[bool]] = defaultdict(list)
    for i, case in enumerate(cases):
        with naming(f"{golden.folder}: case {i}"):
            for code in RULE_NAMES:
                choice = compare_code(results, f"expected:{i}", case, code)
                track = f"{case['track']}/{case['split']}/{code}"
                hits[track].append(choice.right)
                if choice.identical is not None and code == "mattnet":
                    results.check(f"expected:{i}.correct.mattnet_index", choice.identical)
                    hits[f"{track}_index"].append(choice.identical)
            label = candidates_of(case, "vilbert")
            enough = RULES["released"].is_right(
                iou(label.reference, label.candidates, RULES["released"])
            )
            results.check(f"expected:{i}.vlbert_label", enough.astype(int).tolist())
    for track, right in hits.items():
        check_printed(results, f"accuracy:{track}.accuracy", 100 * float(np.mean(right)), 4)
        results.check(f"accuracy:{track}.expressions", len(right))


def candidates_of(case: Mapping[str, Any], code: str) -> Grounding:
    """What a code chooses among: two codes have the full image as row 0."""
    boxes, scores = corners(case["candidates"]), np.array(case["scores"])
    if code != "mattnet":
        edge = 1 if code == "vlbert" else 0
        width, height = case["image_size"]
        whole = np.array([[0, 0, width - edge, height - edge]])
        boxes = np.concatenate([whole, boxes])
        scores = np.concatenate([[case["whole_image_score"]], scores])
    return Grounding(
        reference=corners(case["reference"])[0],
        candidates=boxes,
        scores=scores,
        reference_index=case.get("reference_index"),
    )


def compare_code(results: Results, at: str, case: Mapping[str, Any], code: str) -> Choice:
    rule, grounding = RULES[RULE_NAMES[code]], candidates_of(case, code)
    overlaps = [float(x) for x in iou(grounding.reference, grounding.candidates, rule)]
    check_printed(results, f"{at}.iou.{code}", overlaps, IOU_DECIMALS[code])
    choice = choose(grounding, rule)
    results.check(
        f"{at}.{'chosen_candidate' if code == 'mattnet' else 'chosen_row'}", choice.chosen
    )
    results.check(f"{at}.correct.{code}", choice.right)
    return choice


def nlvr2(golden: GoldenSet, results: Results) -> None:
    """Accuracy, consistency, the subsets' accuracy, and that by categories of sentences."""
    results.given("expected:*.name")
    cases = {case["name"]: case for case in read_json(golden.folder / "cases.json")}
    for i, expected in enumerate(read_json(golden.folder / "expected.json")):
        case, at = cases[expected["name"]], f"expected:{i}"
        with naming(f"{golden.folder}: {expected['name']}"):
            labels = by_id(((r["identifier"], r["label"]) for r in case["labels"]), "labels")
            if "message" in expected:
                refused(results, at, case, labels, expected)
            else:
                compare_nlvr2(results, at, case, labels)


def compare_nlvr2(
    results: Results, at: str, case: Mapping[str, Any], labels: Mapping[str, str]
) -> None:
    predictions = {key: text for key, text in case["predictions"] if key in labels}
    if len(predictions) < len(case["predictions"]):
        expect(complaint(case, labels), "surplus or repeated predictions were accepted")
    found = verdicts(predictions, labels)
    figures = nlvr2_metrics(found, "x", {"balanced": labels.keys()})
    results.check(f"{at}.accuracy", figures["nlvr2/x/accuracy"])
    results.check(f"{at}.consistency", figures["nlvr2/x/consistency"])
    subset = figures["nlvr2/x/balanced_accuracy"]
    if subset is None:
        results.given(f"{at}.filtered_accuracy")  # the official script divides by zero
    else:
        results.check(f"{at}.filtered_accuracy", 100 * subset)
    key = f"{at}.per_category"
    if None in found.values():
        # The official script stops at the first other text; its words are the recording.
        results.given(key)
        return
    members: dict[str, list[str]] = defaultdict(list)
    for row in case["labels"]:
        for category in case["categories"].get(row["sentence"], ()):
            members[category].append(row["identifier"])
    if not members:
        results.check(key, {})
    for category, identifiers in members.items():
        right = select_results(found, identifiers)
        check_printed(results, f"{key}.{category}.accuracy", 100 * float(np.mean(right)), 2)
        results.check(f"{key}.{category}.examples", len(right))


def complaint(case: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """What ours says of a file of predictions that it refuses; nothing where it takes it."""
    try:
        verdicts(by_id(((key, text) for key, text in case["predictions"]), "predictions"), labels)
    except InputError as error:
        return str(error)
    return ""


def refused(
    results: Results, at: str, case: Any, labels: Mapping[str, str], expected: Mapping[str, Any]
) -> None:
    """Too few predictions have no figures: the official scripts stop with words of their own."""
    words = complaint(case, labels)
    missing = labels.keys() - {key for key, _ in case["predictions"]}
    expect(missing, "there is a message, but no prediction is missing")
    named = [key for key in missing if any(key in line for line in expected["message"])]
    expect(named and all(key in words for key in named[:5]), f"ours says {words!r}")
    results.given(f"{at}.message", f"{at}.filtered_accuracy", f"{at}.per_category")


HF_METRICS = {
    "mcc": "matthews",
    "acc": "accuracy",
    "f1": "f1",
    "acc_and_f1": "mean",
    "pearson": "pearson",
    "spearmanr": "spearman",
    "corr": "mean",
    "mnli/acc": "accuracy",
    "mnli-mm/acc": "accuracy",
}
BASELINE_METRICS = {
    "mcc": "matthews",
    "acc": "accuracy",
    "f1": "f1",
    "pearson r": "pearson",
    "spearman r": "spearman",
}
# The older tool's names of tasks, and its order of classes where it is another.
OLD_TASKS = {
    "acceptability": "cola",
    "sst": "sst-2",
    "quora": "qqp",
    "squad": "qnli",
    "sts-benchmark": "sts-b",
    "mnli": "mnli-m",
}
OLD_CLASSES = {
    **dict.fromkeys(("qnli", "rte"), ("not_entailment", "entailment")),
    **dict.fromkeys(("mnli-m", "mnli-mm"), ("neutral", "entailment", "contradiction")),
}


def glue(golden: GoldenSet, results: Results) -> None:
    """The metrics of two tools, and the files of predictions."""
    results.given("expected:*.name", "expected:*.task")
    results.given("prediction_files:*.predictions", "prediction_files:*.index")
    expected = read_json(golden.folder / "expected.json")
    recorded = {(entry["task"], entry["name"]): i for i, entry in enumerate(expected)}
    for case in read_json(golden.folder / "cases.json"):
        i = recorded[case["task"], case["name"]]
        task = "mnli-m" if case["task"] == "mnli" else case["task"]
        ours, theirs = (dict(enumerate(case[name])) for name in ("predictions", "labels"))
        figures = glue_metrics(task, ours, theirs, "x")
        for name, metric in HF_METRICS.items():
            value = figures.get(f"glue/x/{task}/{metric}")
            check_printed(results, f"expected:{i}.metrics.{name}", value, 10)
        lines = [line.partition(": ")[0] for line in expected[i]["glue_baselines"]]
        values = [figures[f"glue/x/{task}/{BASELINE_METRICS[name]}"] for name in lines]
        printed = [
            f"{name}: {'nan' if value is None else format(value, '.3f')}"
            for name, value in zip(lines, values, strict=True)
        ]
        results.check(f"expected:{i}.glue_baselines", printed)
    files = read_json(golden.folder / "prediction_files.json")
    for name, file in files.items():
        task = OLD_TASKS.get(name, name)
        predictions = dict(zip(file["index"], file["predictions"], strict=True))
        if task in OLD_CLASSES:
            numbers = [TASKS[task].classes.index(name) for name in OLD_CLASSES[task]]
            predictions = {row: numbers[number] for row, number in predictions.items()}
        results.check(f"prediction_files:{name}.file", prediction_file(task, predictions))
