"""Statements are true of their scenes, or false, and either as often; so is what follows."""

from collections import Counter
from typing import Any

import pytest
from worlds import Split, World, make_scenes
from worlds.statements import (
    ENTAILMENT,
    PAIRS,
    WARM,
    entailment_rows,
    pair_rows,
    statement_rows,
    templates,
)

from vlmill.schemas.tables import STATEMENTS, table_of_rows
from vlmill.train.tasks.nlvr2.task import consistency_groups, get_identifier

pytestmark = pytest.mark.nightly

WORLD = World(num_things=(2, 3), num_colours=5, num_shapes=4)


def test_statements_are_read_off_both_scenes() -> None:
    scenes = make_scenes(WORLD, "train", 80)
    rows = list(pair_rows(WORLD, "train", scenes))
    met = {form for form, *_ in templates(WORLD) for row in rows if fits(form, row["text_a"])}
    assert len(met) == len(templates(WORLD))
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


def fits(form: str, text: str) -> bool:
    start, _, end = form.partition("{}")
    return text.startswith(start) and text.endswith(end)


def test_a_sentence_is_asked_of_four_pairs_as_the_data_set_numbers_them() -> None:
    rows = list(pair_rows(WORLD, "test", make_scenes(WORLD, "test", 150)))
    found = {get_identifier(row["example_id"]): True for row in rows}
    sentences = {tuple(key.split("-")[1::2]): set[str]() for key in found}
    sizes = Counter[tuple[str, ...]]()
    for row in rows:
        group = tuple(get_identifier(row["example_id"]).split("-")[1::2])
        sizes[group] += 1
        sentences[group].add(row["text_a"])
    assert len(found) == len(rows) and len(consistency_groups(found)) == len(sizes)
    assert set(sizes.values()) <= {1, 2, 3, PAIRS} and {len(s) for s in sentences.values()} == {1}
    whole = [size for size in sizes.values() if size == PAIRS]
    assert len(whole) > len(sizes) / 2


def premise(caption: str) -> dict[str, list[str]]:
    """The colours of the things that a caption names, by shape."""
    words = caption.split()
    named = [place for place, word in enumerate(words) if word in WORLD.shapes]
    found: dict[str, list[str]] = {words[place]: [] for place in named}
    for place in named:
        found[words[place]].append(words[place - 1])
    return found


def entailments(split: Split, count: int) -> list[dict[str, Any]]:
    return list(entailment_rows(WORLD, split, make_scenes(WORLD, split, count)))


def test_what_follows_from_a_caption_is_told_by_its_words() -> None:
    rows = entailments("train", 60)
    counts = Counter(row["label_id"] for row in rows)
    assert len(set(counts.values())) == 1 and 40 < counts[0] < 60
    names = [row["example_id"] for row in rows]
    assert names == [f"glue/mnli/train/{number}" for number in range(len(rows))]
    for row in rows:
        _, shape, _, colour = row["text_b"].split()
        colours = premise(row["text_a"]).get(shape)
        right = 1 if colours is None else 0 if colours == [colour] else 2
        assert row["label_id"] == right and row["label"] == ENTAILMENT[right]
        assert colours is None or len(colours) == 1


def test_a_sentence_alone_tells_nothing_of_what_follows() -> None:
    known: dict[str, Counter[int]] = {}
    for row in entailments("train", 500):
        known.setdefault(row["text_b"], Counter())[row["label_id"]] += 1
    rows = entailments("test", 150)
    guesses = [known[row["text_b"]].most_common(1)[0][0] == row["label_id"] for row in rows]
    assert sum(guesses) / len(guesses) == pytest.approx(1 / 3, abs=0.06)


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
