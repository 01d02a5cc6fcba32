"""Writes further captions of a scene in other words.

What a caption states is stated in another order, or from the other end of each relation; so every
caption of an image tells all that the first one does, and is true of no more images.
"""

from itertools import permutations, product

import numpy as np

from worlds.scenes import INVERSES, OPENINGS, Scene, Statement, World, stated

MOST = 2 * len(OPENINGS)  # that every scene has: a scene of two things can be told from either

_OTHER_END = INVERSES | {inverse: name for name, inverse in INVERSES.items()}


def captions(world: World, scene: Scene, count: int, rng: np.random.Generator) -> list[str]:
    """Returns ``count`` different captions of a scene, its own first, the others drawn.

    Raises ValueError for more than :data:`MOST`.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"captions={count}: expected 1 to {MOST}, which every scene has")
    names = [thing.name(world) for thing in scene.things]
    texts = (stated(names, one) for one in wordings(scene.statements))
    others = [opening + text for opening, text in product(OPENINGS, dict.fromkeys(texts))]
    others.remove(scene.caption)
    chosen = rng.permutation(len(others))[: count - 1].tolist()
    return [scene.caption, *(others[number] for number in chosen)]


def wordings(statements: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """Returns what a caption can state: statements of one thing in any order, those of a chain from
    its other end, too.
    """
    backwards = tuple(
        Statement(s.object, _OTHER_END[s.relation], s.subject) for s in reversed(statements)
    )
    if len(statements) == 1:
        return [statements, backwards]
    if all(s.subject == statements[0].subject for s in statements):
        return list(permutations(statements))
    return [statements, backwards]
