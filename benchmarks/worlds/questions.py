"""Writes questions about scenes: number, colour, shape and position.

Each question has one right answer, read off the scene's things and their places. Half of the
questions that ask for yes or no are wrong, so that who sees the text alone has to guess.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmill.schemas.answers import soft_labels
from worlds.scenes import INVERSES, RELATIONS, Scene, Split, World, holds

ANSWER_TYPES = {
    "count": "number",
    "colour": "other",
    "shape": "other",
    "relation": "other",
    "yes/no": "yes/no",
}
ANNOTATORS = 10
_OTHER_END = INVERSES | {inverse: name for name, inverse in INVERSES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Holds a question about a scene, a key of :data:`ANSWER_TYPES`, and its one answer."""

    kind: str
    text: str
    answer: str


def questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """Returns a question of every kind, drawn among those that have one answer in the scene.

    A scene may have none of colour or shape: two things can share either.
    """
    holding = list(related(scene))
    drawn = [_count(scene, rng)]
    for asked in (list(_colours(scene)), list(_shapes(scene)), list(_relations(scene, holding))):
        if asked:
            drawn.append(asked[rng.integers(len(asked))])
    return [*drawn, _yes_or_no(scene, holding, rng)]


def answers(world: World) -> list[str]:
    """Returns every answer that a question of this world can have: what a classifier learns."""
    counts = [str(count) for count in range(max(world.num_things) + 1)]
    return [*counts, *world.colours, *world.shapes, *world.kinds, "yes", "no"]


Related = tuple[int, str, int]
"""Number of a thing, relation, number of the other thing."""


def related(scene: Scene) -> Iterator[Related]:
    """Yields every (subject, relation, object) that holds, stated or not."""
    for subject, one in enumerate(scene.places):
        for object_, other in enumerate(scene.places):
            if subject != object_:
                yield from ((subject, r, object_) for r in RELATIONS if holds(r, one, other))


def _count(scene: Scene, rng: np.random.Generator) -> Question:
    """Asks for all things, or for those of a shape or colour that one of them has."""
    thing = scene.things[rng.integers(len(scene.things))]
    what, number = [
        ("things", len(scene.things)),
        (f"{thing.shape} shapes", sum(t.shape == thing.shape for t in scene.things)),
        (f"{thing.colour} things", sum(t.colour == thing.colour for t in scene.things)),
    ][rng.integers(3)]
    return Question(kind="count", text=f"how many {what} are there?", answer=str(number))


def _colours(scene: Scene) -> Iterator[Question]:
    shapes = Counter(thing.shape for thing in scene.things)
    for thing in scene.things:
        if shapes[thing.shape] == 1:
            text = f"what colour is the {thing.shape}?"
            yield Question(kind="colour", text=text, answer=thing.colour)


def _shapes(scene: Scene) -> Iterator[Question]:
    colours = Counter(thing.colour for thing in scene.things)
    for thing in scene.things:
        if colours[thing.colour] == 1:
            text = f"what shape is the {thing.colour} thing?"
            yield Question(kind="shape", text=text, answer=thing.shape)


def _relations(scene: Scene, holding: Sequence[Related]) -> Iterator[Question]:
    """Asks for the one thing that stands so to another."""
    subjects = Counter((relation, object_) for _, relation, object_ in holding)
    for subject, relation, object_ in holding:
        if subjects[relation, object_] == 1:
            text = f"what is {relation} the {scene.things[object_].kind}?"
            yield Question(kind="relation", text=text, answer=scene.things[subject].kind)


def _yes_or_no(scene: Scene, holding: Sequence[Related], rng: np.random.Generator) -> Question:
    """Asks for a relation that holds, or for its opposite, as often."""
    subject, relation, object_ = holding[int(rng.integers(len(holding)))]
    right = bool(rng.integers(2))
    named = relation if right else _OTHER_END[relation]
    one, other = scene.things[subject].kind, scene.things[object_].kind
    return Question(
        kind="yes/no", text=f"is the {one} {named} the {other}?", answer="yes" if right else "no"
    )


def question_rows(
    world: World, split: Split, image_id: str, index: int, scene: Scene
) -> list[dict[str, Any]]:
    """Returns a scene's rows of the table ``questions``: the same for any number of others.

    All annotators agree, so soft scores are 1 and every metric is the share of right answers.
    """
    rng = np.random.default_rng([world.seed, split == "test", index, 2])
    numbers = {answer: number for number, answer in enumerate(answers(world))}
    rows = []
    for number, asked in enumerate(questions(scene, rng)):
        said = [asked.answer] * ANNOTATORS
        label_ids, label_scores = soft_labels(said, numbers)
        rows.append(
            {
                "question_id": f"{image_id}/{number}",
                "image_id": image_id,
                "question": asked.text,
                "question_type": asked.kind,
                "answer_type": ANSWER_TYPES[asked.kind],
                "answer": asked.answer,
                "answers": said,
                "label_ids": label_ids,
                "label_scores": label_scores,
                "split": split,
                "source": "world",
            }
        )
    return rows
