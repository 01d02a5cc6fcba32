"""Expressions mean one thing, and choices have one right answer that the picture alone tells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from worlds.detector import Detector
from worlds.expressions import (
    ATTRIBUTE,
    PAIR,
    attribute_expressions,
    choice_rows,
    relation_expressions,
    write_boxes,
)
from worlds.scenes import Split, World, holds, make_scenes

from vlmill.schemas.files.outputs import State
from vlmill.schemas.files.reading import read_table
from vlmill.schemas.readers.regions import RegionReader
from vlmill.schemas.tables import CHOICES, EXPRESSIONS
from vlmill.train.tasks.vcr.texts import tagged_words

WORLD = World(num_things=(2, 3), num_colours=5, num_shapes=4)


def test_an_expression_fits_one_thing_alone() -> None:
    for scene in make_scenes(WORLD, "train", 12):
        for text, number in attribute_expressions(scene):
            words = set(text.split()) - {"the", "thing"}
            fits = [words <= {thing.colour, thing.shape} for thing in scene.things]
            assert fits.index(True) == number and sum(fits) == 1, text


def test_what_comes_next_in_a_direction_is_the_nearest_of_those_that_lie_there() -> None:
    towards = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
    told = set[str]()
    for scene in make_scenes(WORLD, "train", 40):
        for text, number in relation_expressions(scene):
            relation, _, other = text.removeprefix("the next thing ").partition(" the ")
            (from_,) = (
                place
                for thing, place in zip(scene.things, scene.places, strict=True)
                if thing.kind == other
            )
            dx, dy = towards[relation]
            along = [(at.x - from_.x) * dx + (at.y - from_.y) * dy for at in scene.places]
            assert min((far, i) for i, far in enumerate(along) if far > 0) == (
                along[number],
                number,
            )
            told.add(relation)
    assert told == set(towards)


@pytest.mark.parametrize(("things", "ceiling"), [((2, 3), 1 / 2), ((4,), 1 / 3)])
def test_who_cannot_tell_things_apart_can_only_guess_what_comes_next(
    things: tuple[int, ...], ceiling: float
) -> None:
    world, right, count = World(num_things=things, num_colours=5, num_shapes=4), 0, 0
    for scene in make_scenes(world, "train", 60):
        if len(scene.things) == 2:  # the boxes tell: another source
            continue
        # What stands next to which thing cannot be told: the likeliest of a direction's answers.
        answers: dict[str, Counter[int]] = {}
        for text, number in relation_expressions(scene):
            answers.setdefault(text.rpartition(" the ")[0], Counter())[number] += 1
        right += sum(max(counted.values()) for counted in answers.values())
        count += sum(counted.total() for counted in answers.values())
    assert count > 30 and right == pytest.approx(ceiling * count)


def test_one_choice_is_right_and_the_others_are_not() -> None:
    rng, labels = np.random.default_rng(0), []
    for scene in make_scenes(WORLD, "train", 40):
        boxes = np.zeros((len(scene.things), 4), np.float32)
        for row in choice_rows(WORLD, "train", "world/train/0", scene, boxes, rng):
            labels.append(row["label"])
            assert len(set(row["choices"])) == 4
            texts = [row["question"], *row["choices"]]
            tags = [row["question_tags"], *row["choice_tags"]]
            for text, numbers in zip(texts, tags, strict=True):
                tagged_words(text, numbers)  # which refuses tags of other words
            (subject,) = row["question_tags"][3]
            if row["task"] == "q2a":
                words = [choice.split()[2] for choice in row["choices"]]
                assert words[row["label"]] == scene.things[subject].colour
                continue
            true = []
            for choice in row["choices"]:
                relation, _, other = choice.split(" is ")[1].removesuffix("] .").partition(" [")
                true.append(holds(relation, scene.places[subject], scene.places[int(other)]))
            assert true.index(True) == row["label"] and sum(true) == 1
    assert len(labels) > 60 and set(labels) == {0, 1, 2, 3}


def test_boxes_are_those_of_the_worlds_pictures(tmp_path: Path) -> None:
    detector = Detector(feature_dim=8)
    pictures: dict[Split, int] = {"train": 3, "test": 2}
    assert write_boxes(tmp_path, WORLD, pictures=pictures, detector=detector) is not State.FINISHED
    regions, choices = RegionReader(tmp_path), read_table(str(tmp_path), CHOICES).to_pylist()
    things = {row["image_id"]: len(row["object_names"]) for row in choices}
    for row in read_table(str(tmp_path), EXPRESSIONS).to_pylist():
        if row["source"] != ATTRIBUTE:
            assert (row["source"] == PAIR) is (things[row["image_id"]] == 2)
        number = int(row["ref_id"].rpartition("/")[2])
        assert regions[row["image_id"]].boxes[number].tolist() == row["box"]
    assert choices and {row["split"] for row in choices} == {"train", "test"}
    for row in choices:
        assert regions[row["image_id"]].boxes.ravel().tolist() == row["boxes"]
    again = write_boxes(tmp_path, WORLD, pictures=pictures, detector=detector)
    assert again is State.FINISHED
