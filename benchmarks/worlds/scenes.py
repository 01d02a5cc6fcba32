"""Makes scenes of a generated world: things in stated relations, where they stand, and captions of
them.

A world is there to measure what a model has learned, so everything about it is known: each thing's
colour, texture and shape, each box, which relations hold, and which combinations of them were kept
out of training. x grows to the right and y downwards, in pixels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "green": (44, 150, 60),
    "blue": (40, 80, 210),
    "yellow": (240, 215, 50),
    "purple": (125, 55, 160),
    "orange": (245, 135, 25),
    "black": (25, 25, 25),
    "pink": (245, 150, 195),
    "brown": (120, 75, 40),
    "cyan": (60, 200, 215),
    "grey": (125, 125, 125),
}
TEXTURES = ("plain", "striped", "dotted")
SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
INVERSES = {"left of": "right of", "above": "below", "inside": "around"}
RELATIONS = (*INVERSES, *INVERSES.values())
OPENINGS = ("", "there is ", "an image of ", "we see ")
_NESTED = ("inside", "around")
_DIRECTIONS = {"left of": (1, 0), "right of": (-1, 0), "above": (0, 1), "below": (0, -1)}
_DRAWS = 200
_LAYOUTS = 60  # places tried for one set of statements
_GAP = 3.0  # pixels at least between things that are not inside each other


@dataclass(frozen=True, kw_only=True)
class World:
    """Says what may occur, and how often it is kept out of training.

    With 500 held-out pairs the defaults let a matcher that sees only colours reach R@1 of about
    0.3, and one that sees every thing but no relation about 0.95 (``oracles.py`` computes both).
    Captions name every thing by colour and shape, with ``name_textures`` by texture too; unnamed
    textures only make images harder to read. Shapes come in ``num_shapes`` of :data:`SHAPES`, and
    so on. ``held_out_share`` is the share of combinations (colour and shape, relation, colour and
    shape) that no training image states.
    """

    seed: int = 0
    num_things: tuple[int, ...] = (2, 3, 3, 4)  # each as likely as it is often named
    num_colours: int = 9
    num_textures: int = 3
    num_shapes: int = 6
    name_textures: bool = False
    side: int = 128
    held_out_share: float = 0.2

    def __post_init__(self) -> None:
        for name, most in (
            ("num_colours", len(COLOURS)),
            ("num_textures", len(TEXTURES)),
            ("num_shapes", len(SHAPES)),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 to {most}")
        if not self.num_things or min(self.num_things) < 2 or max(self.num_things) > 4:
            raise ValueError(f"num_things={self.num_things}: expected some of 2, 3 and 4")
        if self.num_colours * self.num_shapes < 4:
            raise ValueError(
                "expected at least 4 pairs of colour and shape: a scene has up to 4 things"
            )
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"held_out_share={self.held_out_share}: expected it between 0 and 1")
        if not 96 <= self.side <= 1024:
            raise ValueError(f"side={self.side}: expected 96 to 1024 pixels")

    @property
    def colours(self) -> tuple[str, ...]:
        """Returns the words for colours that occur."""
        return tuple(COLOURS)[: self.num_colours]

    @property
    def textures(self) -> tuple[str, ...]:
        """Returns the words for textures that occur."""
        return TEXTURES[: self.num_textures]

    @property
    def shapes(self) -> tuple[str, ...]:
        """Returns the words for shapes that occur."""
        return SHAPES[: self.num_shapes]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns the classes of a region, by number: colour and shape."""
        return tuple(f"{colour} {shape}" for colour in self.colours for shape in self.shapes)


@dataclass(frozen=True, order=True, slots=True)
class Thing:
    """Says what can be seen of a thing; no two of a scene have the same colour and shape."""

    colour: str
    texture: str
    shape: str

    @property
    def kind(self) -> str:
        """Returns colour and shape: what it is called, and its class."""
        return f"{self.colour} {self.shape}"

    def name(self, world: World) -> str:
        """Says what captions call it."""
        name = f"{self.texture} {self.kind}" if world.name_textures else self.kind
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


@dataclass(frozen=True, order=True, slots=True)
class Statement:
    """Thing number ``subject`` stands in ``relation`` to thing number ``object``."""

    subject: int
    relation: str
    object: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Says where a thing is: centre and radius in pixels, turned by ``angle`` radians."""

    x: float
    y: float
    radius: float
    angle: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Holds things, where they stand, what the caption says of them, and the caption."""

    things: tuple[Thing, ...]
    statements: tuple[Statement, ...]
    places: tuple[Placed, ...]
    caption: str


Combination = tuple[str, str, str, str, str]
"""Colour and shape, relation, colour and shape; of a relation and its inverse, the first."""


def combination_of(things: tuple[Thing, ...], statement: Statement) -> Combination:
    """Says what a statement combines; texture does not count, so that held out means in any
    texture.
    """
    first, second, relation = (
        things[statement.subject],
        things[statement.object],
        statement.relation,
    )
    if relation not in INVERSES:
        first, second = second, first
        relation = next(name for name, inverse in INVERSES.items() if inverse == relation)
    return (first.colour, first.shape, relation, second.colour, second.shape)


def is_held_out(world: World, combination: Combination) -> bool:
    """Says whether no training image may state a combination: decided by its hash alone."""
    message = "\0".join((str(world.seed), *combination)).encode()
    number = int.from_bytes(hashlib.blake2b(message, digest_size=8).digest())
    return number < world.held_out_share * 2.0**64


Split = Literal["train", "test"]


def make_scene(world: World, split: Split, index: int) -> Scene:
    """Makes scene ``index`` of a split: the same for any number of other scenes.

    A test scene states held-out combinations only, a training scene none. Raises ValueError if the
    world has no such scene.
    """
    rng = np.random.default_rng([world.seed, split == "test", index])
    count = int(rng.choice(world.num_things))  # before the rejections, which would favour few
    for _ in range(_DRAWS):
        drawn = _draw(world, count, split == "test", rng)
        places = None if drawn is None else _place(world, *drawn, rng)
        if drawn is not None and places is not None:
            things, statements = drawn
            return Scene(
                things=things,
                statements=statements,
                places=places,
                caption=_caption([thing.name(world) for thing in things], statements, rng),
            )
    raise ValueError(f"no scene of {count} things for {split}: expected more colours and shapes")


def make_scenes(world: World, split: Split, count: int) -> list[Scene]:
    """Returns the first ``count`` scenes of a split."""
    return [make_scene(world, split, index) for index in range(count)]


def _draw(
    world: World, count: int, held_out: bool, rng: np.random.Generator
) -> tuple[tuple[Thing, ...], tuple[Statement, ...]] | None:
    """Returns things and statements, drawn one after the other; None if a thing found no
    combination.
    """
    things, statements = [_draw_thing(world, rng)], list[Statement]()
    star = bool(rng.integers(2))  # all of the first thing, or each of the one before
    for number in range(1, count):
        for _ in range(_DRAWS):
            thing = _draw_thing(world, rng)
            relation = RELATIONS[rng.integers(len(RELATIONS))]
            statement = Statement(0 if star else number - 1, relation, number)
            if relation in _NESTED and (
                thing.colour == things[statement.subject].colour  # could not be seen
                or any(s.relation in _NESTED for s in statements)  # nested twice: too small
            ):
                continue
            if thing.kind in {other.kind for other in things}:
                continue
            if is_held_out(world, combination_of((*things, thing), statement)) == held_out:
                break
        else:
            return None
        things.append(thing)
        statements.append(statement)
    return tuple(things), tuple(statements)


def _draw_thing(world: World, rng: np.random.Generator) -> Thing:
    colour, texture, shape = (
        words[rng.integers(len(words))] for words in (world.colours, world.textures, world.shapes)
    )
    return Thing(colour, texture, shape)


# Places


def _place(
    world: World,
    things: tuple[Thing, ...],
    statements: tuple[Statement, ...],
    rng: np.random.Generator,
) -> tuple[Placed, ...] | None:
    """Returns places for which every statement holds and nothing else overlaps; None if none was
    found.
    """
    for _ in range(_LAYOUTS):
        places = _layout(world, things, statements, rng)
        if places is not None:
            return places
    return None


def _layout(
    world: World,
    things: tuple[Thing, ...],
    statements: tuple[Statement, ...],
    rng: np.random.Generator,
) -> tuple[Placed, ...] | None:
    count, unit = len(things), world.side / 128
    radius = rng.uniform(11, 16, size=count) * unit
    sink = np.zeros(count)  # the middle of a triangle lies below its centre, by this many pixels
    for s in statements:
        if s.relation in _NESTED:
            inner, outer = (s.subject, s.object)[:: 1 if s.relation == "inside" else -1]
            radius[outer] = rng.uniform(23, 29) * unit
            radius[inner] = radius[outer] * rng.uniform(0.37, 0.43)
            sink[outer] = 0.2 * radius[outer] * (things[outer].shape == "triangle")
    centre = np.zeros((count, 2))
    for s in statements:  # the subject of each has its place already
        centre[s.object] = centre[s.subject] + _offset(s, radius, sink, rng)
    low, high = (centre - radius[:, None]).min(0), (centre + radius[:, None]).max(0)
    free = world.side - 4 - (high - low)
    if free.min() < 0:
        return None
    centre += 2 - low + rng.uniform(size=2) * free
    nested = {frozenset((s.subject, s.object)) for s in statements if s.relation in _NESTED}
    for a in range(count):
        for b in range(a):
            apart = np.abs(centre[a] - centre[b]).max() - radius[a] - radius[b]
            if apart < _GAP and frozenset((a, b)) not in nested:
                return None
    angles = rng.uniform(-0.25, 0.25, size=count)
    return tuple(
        Placed(float(x), float(y), float(r), float(angle))
        for (x, y), r, angle in zip(centre, radius, angles, strict=True)
    )


def _offset(
    statement: Statement, radius: Numbers, sink: Numbers, rng: np.random.Generator
) -> Numbers:
    """Draws the offset from the subject's centre to the object's."""
    subject, object_ = statement.subject, statement.object
    if statement.relation in _NESTED:
        moved = rng.uniform(-0.06, 0.06, size=2) * max(radius[subject], radius[object_])
        nested: Numbers = moved + np.array([0.0, sink[subject] - sink[object_]])
        return nested
    along = np.array(_DIRECTIONS[statement.relation], dtype=float)
    distance = float(
        radius[subject] + radius[object_] + rng.uniform(_GAP, 3 * _GAP) * radius.mean() / 10
    )
    offset: Numbers = along * distance + along[::-1] * rng.uniform(-0.3, 0.3) * distance
    return offset


def holds(relation: str, subject: Placed, object_: Placed) -> bool:
    """Says whether a relation holds between two places, read off the geometry alone.

    Left, right, above and below ask for clear of each other and for a direction within 45 degrees;
    inside, for the centre of the smaller one in the middle of the larger one.
    """
    if relation not in INVERSES:
        relation = next(name for name, inverse in INVERSES.items() if inverse == relation)
        subject, object_ = object_, subject
    dx, dy = object_.x - subject.x, object_.y - subject.y
    if relation == "inside":
        return subject.radius < object_.radius and max(abs(dx), abs(dy)) < object_.radius / 2
    if max(abs(dx), abs(dy)) < subject.radius + object_.radius:
        return False
    return dx > abs(dy) if relation == "left of" else dy > abs(dx)


# Captions


def _caption(
    names: Sequence[str], statements: Sequence[Statement], rng: np.random.Generator
) -> str:
    """Returns what is stated behind one of the openings."""
    return str(rng.choice(OPENINGS)) + stated(names, statements)


def stated(names: Sequence[str], statements: Sequence[Statement]) -> str:
    """Returns ``a is r1 b and r2 c`` where all statements are of one thing, else ``a r1 b which is
    r2 c``.
    """
    first = statements[0].subject
    text = names[first]
    star = all(s.subject == first for s in statements)
    for number, s in enumerate(statements):
        link = "" if number == 0 else "and " if star else "which is "
        text += f" {link}{s.relation} {names[s.object]}"
    return text


def word_groups(world: World) -> dict[str, frozenset[str]]:
    """Returns the words that carry what an image shows, by what they say: for probes that mask
    them.

    A relation's telling word is its first (``left`` of ``left of``).
    """
    groups = {
        "colour": frozenset(world.colours),
        "shape": frozenset(world.shapes),
        "relation": frozenset(relation.split()[0] for relation in RELATIONS),
    }
    return groups | ({"texture": frozenset(world.textures)} if world.name_textures else {})
