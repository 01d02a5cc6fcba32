"""Computes the exact recall of matchers that see only a part of the world.

N pairs, one caption each. A matcher that sees a view of captions and images cannot do better than
rank those of equal view first; among them it has no order, and ties count as the metric counts
them.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vlmill.train.tasks.retrieval.metrics import retrieval_metrics
from worlds.scenes import Scene, World, combination_of, holds

View = Callable[[Scene], Hashable]


def _bag(scene: Scene, names: tuple[str, ...]) -> Hashable:
    return tuple(sorted(tuple(getattr(t, name) for name in names) for t in scene.things))


def views(world: World) -> dict[str, View]:
    """Says what a matcher sees by name, among what captions of this world say.

    ``things`` is the bag of all of them as captions name them, without their relations.
    """
    named = {"textures": "texture"} if world.name_textures else {}
    single = {"colours": "colour", "shapes": "shape"} | named
    return {name: partial(_bag, names=(part,)) for name, part in single.items()} | {
        "things": partial(_bag, names=tuple(single.values())),
        "relations": lambda scene: tuple(
            sorted(combination_of(scene.things, s)[2] for s in scene.statements)
        ),
    }


def oracle(scenes: Sequence[Scene], view: View) -> dict[str, float]:
    """Returns the retrieval metrics of the best matcher that sees ``view`` of N pairs.

    Beside them ``image_retrieval/r1_expected`` and ``text_retrieval/r1_expected``: the mean of R@1
    over all orders of ties.
    """
    seen = [view(scene) for scene in scenes]
    numbers = {value: n for n, value in enumerate(dict.fromkeys(seen))}
    codes = np.array([numbers[value] for value in seen])
    return metrics_of((codes[:, None] == codes[None, :]).astype(np.float32))


def truth(world: World, scenes: Sequence[Scene]) -> dict[str, float]:
    """Returns the metrics of a matcher that sees everything: which captions are true of which
    images.
    """
    view = views(world)["things"]
    alike: dict[Hashable, list[int]] = {}
    for number, scene in enumerate(scenes):
        alike.setdefault(view(scene), []).append(number)
    scores = np.zeros((len(scenes), len(scenes)), np.float32)
    for group in alike.values():
        for image in group:
            for text in group:
                scores[image, text] = is_true(scenes[text], scenes[image])
    return metrics_of(scores)


def is_true(caption: Scene, image: Scene) -> bool:
    """Says whether all that a scene's caption states holds in another scene of the same things."""
    place = {t.kind: where for t, where in zip(image.things, image.places, strict=True)}
    kinds = [thing.kind for thing in caption.things]
    return all(
        holds(s.relation, place[kinds[s.subject]], place[kinds[s.object]])
        for s in caption.statements
    )


def metrics_of(scores: NDArray[np.float32]) -> dict[str, float]:
    """Returns metrics of scores [N, N], with the expected R@1 of an arbitrary order of ties."""
    metrics = retrieval_metrics(scores, np.arange(len(scores)))
    matching = np.diag(scores)
    for name, axis in (("image_retrieval", 0), ("text_retrieval", 1)):
        right = matching[None, :] if axis == 0 else matching[:, None]
        best = (scores > right).sum(axis) == 0
        share = 1 / (scores == right).sum(axis)
        metrics[f"{name}/r1_expected"] = float((best * share).mean())
    return metrics


def oracles(world: World, scenes: Sequence[Scene]) -> dict[str, dict[str, float]]:
    """Returns every view's metrics by name, and those of ``everything``."""
    return {name: oracle(scenes, view) for name, view in views(world).items()} | {
        "everything": truth(world, scenes)
    }
