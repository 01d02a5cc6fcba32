"""Expressions mean one thing, and choices have one right answer that the image alone tells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from worlds.detector import Detector
from worlds.expressions import attribute_expressions, choice_rows, relation_expressions, write_boxes
from worlds.scenes import Split, World, holds, make_scenes

from vlmill.runtime.files.outputs import State
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.tables import CHOICES, EXPRESSIONS
from vlmill.train.tasks.vcr.texts import tagged_words

pytestmark = pytest.mark.nightly

WORLD = World(num_things=(2, 3), num_colours=5, num_shapes=4)


def test_an_expression_fits_one_thing_alone() -> None:
    for scene in make_scenes(WORLD, "train", 12):
        for text, number in attribute_expressions(scene):
            words = set(text.split()) - {"the", "thing"}
            fits = [words <= {thing.colour, thing.shape} for thing in scene.things]
            assert fits.index(True) == number and sum(fits) == 1, text


def test_what_stands_furthest_beside_another_thing_is_meant() -> None:
    towards = {"leftmost": (-1, 0), "rightmost": (1, 0), "highest": (0, -1), "lowest": (0, 1)}
    told = set[str]()
    for scene in make_scenes(WORLD, "train", 40):
        for text, number in relation_expressions(scene):
            word, _, other = text.removeprefix("the ").partition(" thing beside the ")
            dx, dy = towards[word]
            beside = [thing.kind != other for thing in scene.things]
            along = [at.x * dx + at.y * dy for at in scene.places]
            assert sum(beside) == len(scene.things) - 1
            assert max(far for far, one in zip(along, beside, strict=True) if one) == along[number]
            assert beside[number]
            told.add(word)
    assert told == set(towards)


@pytest.mark.parametrize("num_things", [(2, 3), (4,)])
def test_who_cannot_tell_things_apart_can_only_guess_what_stands_beside_one(
    num_things: tuple[int, ...],
) -> None:
    world, right, count = World(num_things=num_things, num_colours=5, num_shapes=4), 0, 0
    for scene in make_scenes(world, "train", 60):
        # Which thing is the other one cannot be told: the likeliest of a direction's answers.
        answers: dict[str, Counter[int]] = {}
        for text, number in relation_expressions(scene):
            answers.setdefault(text.partition(" thing ")[0], Counter())[number] += 1
        assert not answers or len(scene.things) > 2
        right += sum(max(counted.values()) for counted in answers.values())
        count += sum(counted.total() for counted in answers.values())
    assert count > 30 and right == count / 2


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


def test_boxes_are_those_of_the_worlds_images(tmp_path: Path) -> None:
    detector = Detector(feature_dim=8)
    images: dict[Split, int] = {"train": 3, "test": 2}
    assert write_boxes(tmp_path, WORLD, images=images, detector=detector) is not State.FINISHED
    regions, choices = RegionReader(tmp_path), read_table(str(tmp_path), CHOICES).to_pylist()
    for row in read_table(str(tmp_path), EXPRESSIONS).to_pylist():
        number = int(row["ref_id"].rpartition("/")[2])
        assert regions[row["image_id"]].boxes[number].tolist() == row["box"]
    assert choices and {row["split"] for row in choices} == {"train", "test"}
    for row in choices:
        assert regions[row["image_id"]].boxes.ravel().tolist() == row["boxes"]
    again = write_boxes(tmp_path, WORLD, images=images, detector=detector)
    assert again is State.FINISHED
