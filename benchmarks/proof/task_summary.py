"""Formats the figures of fine-tuned models, compared with a model without images."""

from collections.abc import Sequence
from typing import Any

from proof.box_arms import BOX_TASKS
from proof.box_runs import box_lines
from proof.class_arms import HEADLINES as CLASS_HEADLINES
from proof.task_arms import BLIND, MARGIN
from proof.text_arms import CHANCE, HEADLINES, SHARES
from shell import result_line

Line = dict[str, Any]
ACCURACY, KINDS = "vqa/test/accuracy", "/question_type/"
RECALLS = ("image_retrieval/r1", "text_retrieval/r1")
NOT_SHARES = ("_n", "_stderr")


def lines_of(line: Line, all_lines: Sequence[Line]) -> list[Line]:
    """A run's headline figures, and those of each kind of question.

    ``peer`` is the blind model of the same world, of retrieval and texts chance; ``learned`` says
    of a headline whether the run has beaten it by the margin that is wanted. Without a blind run
    there is no peer.
    """
    if line["settings"]["task"] == "retrieval":
        by_chance = dict.fromkeys(RECALLS, 1 / line["settings"]["held_out"])
        return [figure_line(line, by_chance, name) for name in RECALLS]
    if line["settings"]["task"] == "glue":
        chance = {name: share for name, share in CHANCE.items() if name in line["metrics"]}
        return [figure_line(line, chance, name) for name in chance]
    blind = blind_of(line, all_lines)
    if line["settings"]["task"] in BOX_TASKS:
        return list(box_lines(line, blind))
    return [
        figure_line(line, blind and blind["metrics"], name)
        for name, value in line["metrics"].items()
        if value is not None and is_share(name)
    ]


def is_share(name: str) -> bool:
    """Whether a metric is a share of right answers: of all questions, or of a kind."""
    if name in SHARES or name in CLASS_HEADLINES:
        return True
    if name.startswith(ACCURACY + KINDS):
        return not name.endswith(NOT_SHARES)
    return name == ACCURACY


def blind_of(line: Line, all_lines: Sequence[Line]) -> Line | None:
    """The blind run of the same task and world: of the same seed, else of the first."""
    same = ("task", "world", "pairs", "held_out")
    wanted = [line["settings"][name] for name in same]
    blind = [
        other
        for other in all_lines
        if other["settings"]["name"] == BLIND
        and [other["settings"][name] for name in same] == wanted
    ]
    seed = line["settings"]["seed"]
    of_seed = [other for other in blind if other["settings"]["seed"] == seed]
    return next(iter(of_seed or blind), None)


def figure_line(line: Line, blind: Line | None, name: str) -> Line:
    """A metric of a run as every benchmark prints it, beside the ``blind`` ones."""
    value, settings = line["metrics"][name], line["settings"]
    told = name.removeprefix(ACCURACY + KINDS)
    tasks = ("vqa", "nlvr2", "glue", "classification", "entailment")
    for prefix in (f"{task}/test/" for task in tasks):
        told = told.removeprefix(prefix)
    told = f"learning_tasks/{line['name']}/{told}"
    headline = name in (ACCURACY, *RECALLS, *HEADLINES, *CLASS_HEADLINES)
    more: Line = {"questions": line["metrics"].get(f"{name}_n")}
    if headline:
        more |= {key: settings[key] for key in ("seed", "steps", "pairs", "held_out")}
        more |= {key: line[key] for key in ("cpu_minutes", "device")}
    if blind is None or settings["name"] == BLIND:
        return result_line(told, value, "share", **more)
    alone = blind[name]
    if headline:
        more |= {"margin_wanted": MARGIN, "learned": value - alone >= MARGIN}
    return result_line(
        told,
        value,
        "share",
        peer="chance" if name in CHANCE else "a model that sees no image",
        peer_value=alone,
        ratio=value / alone if alone else None,
        margin=value - alone,
        limit=1.0,
        fraction_of_limit=value,
        **more,
    )
