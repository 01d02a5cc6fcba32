"""Statements are true of their scenes, or false, and either as often; so is what follows."""

from collections import Counter

from worlds import World, make_scenes
from worlds.scenes import INVERSES
from worlds.statements import WARM, pair_rows, statement_rows, templates

from vlmill.schemas.tables import STATEMENTS, table_of_rows

WORLD = World(num_things=(2, 3), num_colours=5, num_shapes=4)
OPPOSITE = INVERSES | {inverse: name for name, inverse in INVERSES.items()}


def test_statements_are_read_off_both_scenes() -> None:
    scenes = make_scenes(WORLD, "train", 80)
    rows = list(pair_rows(WORLD, "train", scenes))
    met = Counter(row["example_id"].split("-")[1] for row in rows)
    assert len(met) == len(templates(WORLD)) and len({row["example_id"] for row in rows}) > 70
    for row in rows:
        left, right = (
            [w for t in scenes[int(name[-6:])].things for w in (t.colour, t.shape)]
            for name in row["image_ids"]
        )
        words = row["text_a"].split()
        text, named = row["text_a"], words[words.index("a") + 1] if "a" in words else ""
        if text.startswith("both"):
            is_true = named in left and named in right
        elif text.startswith("only"):
            is_true = (named in left) != (named in right)
        elif text.startswith("there"):
            is_true = int(words[2]) == (len(left) + len(right)) // 2
        else:
            is_true = named in (left if "left" in text else right)
        assert row["label_id"] == is_true, row


def test_what_follows_from_a_caption_is_stated_there() -> None:
    scenes = make_scenes(WORLD, "train", 40)
    rows = [row for row in statement_rows(WORLD, "train", scenes) if row["source"] == "glue/mnli"]
    assert Counter(row["label_id"] for row in rows) == {0: 40, 1: 40, 2: 40}
    for row in rows:
        scene = scenes[int(row["example_id"].rpartition("/")[2]) // 3]
        kinds = [thing.kind for thing in scene.things]
        stated = {(kinds[s.subject], s.relation, kinds[s.object]) for s in scene.statements}
        stated |= {(other, OPPOSITE[relation], one) for one, relation, other in stated}
        one, _, rest = row["text_b"].removeprefix("the ").partition(" is ")
        relation, _, other = rest.partition(" the ")
        denied = (one, OPPOSITE[relation], other) in stated
        known = (one, relation, other) in stated
        assert (known, denied) == (row["label_id"] == 0, row["label_id"] == 2)


def test_warmth_is_the_colours_and_comes_as_often_as_cold() -> None:
    scenes = make_scenes(WORLD, "train", 200)
    rows = list(statement_rows(WORLD, "train", scenes))
    warm = [row for row in rows if row["source"] == "glue/sst-2"]
    counts = Counter(row["label_id"] for row in warm)
    assert abs(counts[0] - counts[1]) <= 1 and len(warm) > 20
    for row in warm:
        colours = [word for word in row["text_a"].split() if word in WORLD.colours]
        assert row["label_id"] == (2 * sum(c in WARM for c in colours) > len(colours))
    empty = dict.fromkeys(STATEMENTS.schema.names)
    assert table_of_rows([empty | row for row in rows], STATEMENTS).num_rows == len(rows)
