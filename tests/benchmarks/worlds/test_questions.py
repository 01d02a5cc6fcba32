"""Questions have the answers that their scenes show, and texts alone do not tell them."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from worlds import World, make_scenes, write_world
from worlds.questions import ANSWER_TYPES, Question, answers, questions
from worlds.scenes import Scene, holds

from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import QUESTIONS

pytestmark = pytest.mark.nightly

WORLD = World()


def asked(count: int) -> list[tuple[Scene, Question]]:
    """The questions of the first training scenes."""
    rng = np.random.default_rng(0)
    scenes = make_scenes(WORLD, "train", count)
    return [(scene, question) for scene in scenes for question in questions(scene, rng)]


def is_right(scene: Scene, question: Question) -> bool:
    """Reads the text again, word by word, and looks at the scene."""
    words = question.text.rstrip("?").split()
    kinds = [thing.kind for thing in scene.things]
    if question.kind == "count":
        named = words[2]
        matching = [t for t in scene.things if named in ("things", t.shape, t.colour)]
        return question.answer == str(len(matching))
    if question.kind == "colour":
        return [t.colour for t in scene.things if t.shape == words[-1]] == [question.answer]
    if question.kind == "shape":
        return [t.shape for t in scene.things if t.colour == words[-2]] == [question.answer]
    place = dict(zip(kinds, scene.places, strict=True))
    if question.kind == "relation":
        relation, other = " ".join(words[2:-3]), " ".join(words[-2:])
        subjects = [k for k in kinds if k != other and holds(relation, place[k], place[other])]
        return subjects == [question.answer]
    one, relation, other = " ".join(words[2:4]), " ".join(words[4:-3]), " ".join(words[-2:])
    return holds(relation, place[one], place[other]) == (question.answer == "yes")


def test_every_answer_is_what_the_scene_shows() -> None:
    pairs = asked(300)
    assert {question.kind for _, question in pairs} == set(ANSWER_TYPES)
    assert {question.answer for _, question in pairs} <= set(answers(WORLD))
    wrong = [question for scene, question in pairs if not is_right(scene, question)]
    assert not wrong, wrong[:3]


def test_texts_alone_do_not_tell_the_answer() -> None:
    """The commonest answer to a text, known to who has seen all answers, is seldom the right one:
    even where a text comes once, its words but for the things it names are the same for all.
    """
    shares = {}
    for kind in ANSWER_TYPES:
        texts: dict[str, Counter[str]] = defaultdict(Counter)
        for _, question in asked(1500):
            if question.kind == kind:
                named = [w for w in question.text.split() if kind in ("count", "colour", "shape")]
                texts[" ".join(named)][question.answer] += 1
        right = sum(max(counts.values()) for counts in texts.values())
        shares[kind] = right / sum(sum(counts.values()) for counts in texts.values())
    assert shares["yes/no"] < 0.55 and shares["relation"] < 0.05
    assert shares["colour"] < 0.2 and shares["shape"] < 0.3 and shares["count"] < 0.85, shares


def test_a_world_has_its_questions_and_their_labels(tmp_path: Path) -> None:
    write_world(tmp_path, WORLD, pairs=4, held_out=2)
    rows = [row for batch in iter_batches(tmp_path, QUESTIONS) for row in batch.to_pylist()]
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert {row["split"] for row in rows} == {"train", "test"}
    assert len({row["question_id"] for row in rows}) == len(rows)
    for row in rows:
        assert [labels[number] for number in row["label_ids"]] == [row["answer"]]
        assert row["label_scores"] == [1.0] and row["answers"] == [row["answer"]] * 10
