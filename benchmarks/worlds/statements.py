"""States what is true or false of two scenes, what follows from a caption, and how warm a text is.

All of it is read off the scenes, and half, or a third, of the rows has each label: who sees no
image, or no premise, has to guess.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from worlds.scenes import Scene, Split, World

WARM = frozenset(("red", "yellow", "orange", "pink", "brown"))
ENTAILMENT = ("entailment", "neutral", "contradiction")
PAIRS = 4  # of images that NLVR2 asks a sentence of
Truth = Callable[[Scene, Scene, str], bool]


def _shown(scene: Scene) -> set[str]:
    """Colours, shapes and kinds of a scene's things."""
    return {word for t in scene.things for word in (t.colour, t.shape, t.kind)}


def templates(world: World) -> tuple[tuple[str, Sequence[str], Truth], ...]:
    """Returns statements with a gap, what may stand there, and when they are true."""
    most = 2 * max(world.num_things)
    return (
        (
            "the left image shows a {} thing",
            world.colours,
            lambda left, right, word: word in _shown(left),
        ),
        (
            "the right image shows a {}",
            world.shapes,
            lambda left, right, word: word in _shown(right),
        ),
        (
            "both images show a {} thing",
            world.colours,
            lambda left, right, word: word in _shown(left) & _shown(right),
        ),
        (
            "only one image shows a {}",
            world.shapes,
            lambda left, right, word: (word in _shown(left)) != (word in _shown(right)),
        ),
        (
            "there are {} things in the two images",
            [str(count) for count in range(2, most + 1)],
            lambda left, right, word: int(word) == len(left.things) + len(right.things),
        ),
    )


def pair_rows(world: World, split: Split, scenes: Sequence[Scene]) -> Iterator[dict[str, Any]]:
    """Yields rows of ``statements`` on each scene with another one: a true and a false one of a
    template that has both.

    Identifiers are the data set's, SPLIT-SET-PAIR-SENTENCE: :data:`PAIRS` uses of a sentence after
    each other are a set, of which consistency asks whether all are right.
    """
    forms, uses = templates(world), Counter[int]()
    starts = list(accumulate((len(words) for _, words, _ in forms), initial=0))
    for index, left in enumerate(scenes):
        rng = np.random.default_rng([world.seed, split == "test", index, 3])
        other = int((index + 1 + rng.integers(len(scenes) - 1)) % len(scenes))
        right = scenes[other]
        number = int(rng.integers(len(forms)))
        text, words, holds = forms[number]
        for label in (True, False):
            fitting = [at for at, word in enumerate(words) if holds(left, right, word) is label]
            if not fitting:
                continue
            at = fitting[rng.integers(len(fitting))]
            sentence = starts[number] + at
            of_set, pair = divmod(uses[sentence], PAIRS)
            uses[sentence] += 1
            yield {
                "example_id": f"nlvr2/{split}-{of_set}-{pair}-{sentence}",
                "image_ids": [f"world/{split}/{place:06d}" for place in (index, other)],
                "text_a": text.format(words[at]),
                "label": str(label),
                "label_id": int(label),
                "split": split,
                "source": "nlvr2",
            }


def hypotheses(
    world: World, split: Split, scenes: Sequence[Scene]
) -> Iterator[tuple[int, int, str]]:
    """Yields the number of a scene, the number of a class and a text, ``the ring is red``: what
    follows, what may be, and what cannot.

    The scene has one ring, which is red, has none, or its only one has another colour. A scene in
    which no thing is the only one of its shape is left out, and one with every shape.
    """
    for index, scene in enumerate(scenes):
        rng = np.random.default_rng([world.seed, split == "test", index, 4])
        counts = Counter(thing.shape for thing in scene.things)
        known = {t.shape: t.colour for t in scene.things if counts[t.shape] == 1}
        absent = [shape for shape in world.shapes if shape not in counts]
        if not known or not absent:
            continue
        for label, name in enumerate(ENTAILMENT):
            shapes = absent if name == "neutral" else list(known)
            shape = shapes[rng.integers(len(shapes))]
            colours = [known[shape]] if name == "entailment" else list(world.colours)
            if name == "contradiction":
                colours.remove(known[shape])
            colour = colours[rng.integers(len(colours))]
            yield index, label, f"the {shape} is {colour}"


def entailment_rows(
    world: World, split: Split, scenes: Sequence[Scene]
) -> Iterator[dict[str, Any]]:
    """Yields hypotheses of the scenes' captions. Numbers are without a gap, as the server's file
    wants them.
    """
    for number, (index, label, text) in enumerate(hypotheses(world, split, scenes)):
        yield text_row("mnli", split, number, label, scenes[index].caption) | {
            "text_b": text,
            "label": ENTAILMENT[label],
        }


def warmth_rows(world: World, split: Split, scenes: Sequence[Scene]) -> Iterator[dict[str, Any]]:
    """Yields captions that name more warm colours than cold ones, and the other way, in turns."""
    wanted = count = 0
    for scene in scenes:
        warm = sum(thing.colour in WARM for thing in scene.things)
        if 2 * warm == len(scene.things) or (2 * warm > len(scene.things)) != bool(wanted):
            continue
        yield text_row("sst-2", split, count, wanted, scene.caption) | {"label": str(wanted)}
        wanted, count = 1 - wanted, count + 1


def text_row(task: str, split: str, number: int, label: int, text: str) -> dict[str, Any]:
    """Returns a row of one of GLUE's tasks."""
    return {
        "example_id": f"glue/{task}/{split}/{number}",
        "image_ids": [],
        "text_a": text,
        "label_id": label,
        "split": split,
        "source": f"glue/{task}",
    }


def statement_rows(world: World, split: Split, scenes: Sequence[Scene]) -> Iterator[dict[str, Any]]:
    """Yields the rows of all tasks."""
    yield from pair_rows(world, split, scenes)
    yield from entailment_rows(world, split, scenes)
    yield from warmth_rows(world, split, scenes)
