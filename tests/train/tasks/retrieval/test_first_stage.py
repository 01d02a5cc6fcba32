"""What ``--rerank`` ranks again is picked by VLMo, another checkpoint, or words and classes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import (
    NAMES,
    TEXTS,
    VOCABULARY,
    write_images,
    write_regions,
)
from tests.train.tasks.retrieval.test_variants import Workplace

from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import REJECTS
from vlmill.train.tasks.retrieval.first_stage import common_classes, find_text_classes
from vlmill.train.tasks.retrieval.vectors import Shortlists

CLASS_NAMES = "dog,hot dog\ncat\ntree,tall plant\n"


def test_a_text_names_classes_by_all_words_of_a_name() -> None:
    names = [["dog", "puppy"], ["hot dog"], ["bus"], ["traffic light", "signal"], [""]]
    texts = ["Two DOGS, and a bus.", "a hot dog", "the lights of traffic", "", "puppies"]
    np.testing.assert_array_equal(
        find_text_classes(names, texts),
        [[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5, [0] * 5],
    )


def test_rare_classes_say_more() -> None:
    present = np.array([[1, 1], [1, 0], [1, 0]], np.float32)
    scores = common_classes(present, np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32))
    assert (scores[:, 0] == 0).all()  # what all images have tells nothing
    assert scores[0, 1] == scores[0, 2] > 0 and not scores[1:].any() and not scores[:, 3].any()


def test_the_share_of_queries_whose_answer_is_listed() -> None:
    scores = np.array([[3, 1, 0], [2, 2, 1], [1, 9, 0]], np.float32)
    shares = Shortlists.from_scores(scores, 1).shares(np.array([0, 1, 1]))
    # Texts list images 0, 2 and 1; images list texts 0, 0 and 1.
    assert shares == {"image_retrieval/listed": 2 / 3, "text_retrieval/listed": 1 / 3}


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A ViLBERT in ``checkpoint``, a VLMo in ``dual``."""
    write_regions(str(tmp_path / "regions"))
    write_images(tmp_path / "images")
    (tmp_path / "classes.txt").write_text(CLASS_NAMES)
    place = Workplace(tmp_path)
    place.write(tiny_model("vlmo", VOCABULARY), "vlmo", RANKED["vlmo"].feeding)
    shutil.move(tmp_path / "checkpoint", tmp_path / "dual")
    shutil.rmtree(tmp_path / "pairs")
    place.write(tiny_model("vilbert", VOCABULARY), "vilbert", RANKED["vilbert"].feeding)
    return place


def listed_images(place: Workplace) -> list[set[str]]:
    """Which images each text was scored with."""
    queries = json.loads((place.out / "neighbours.json").read_text())["image_retrieval"]
    return [
        {near["image_id"] for near in query["neighbours"] if near.get("listed", True)}
        for query in queries
    ]


def test_words_and_classes_pick_what_a_model_of_regions_ranks(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--first-stage", "words", "--class-names", str(place.folder / "classes.txt"))
    assert place.run() == 0
    every = place.metrics()
    assert place.run("--fresh", "--rerank", "100", *words) == 0
    again = place.metrics()
    assert {name: again[name] for name in every} == every  # all are ranked again
    assert again["image_retrieval/listed"] == again["text_retrieval/listed"] == 1
    assert "--rerank 100 is at least the number of images" in capsys.readouterr().err
    assert place.run("--fresh", "--rerank", "1", *words) == 0
    some, said = place.metrics(), capsys.readouterr().err
    assert all(len(images) == 1 for images in listed_images(place))
    # Images have 1, 7, 3 and 5 regions, of the first so many classes: "tree" is in all but one.
    tree = TEXTS.index("tree")
    assert listed_images(place)[tree] == {NAMES[1]}
    assert some["image_retrieval/listed"] < 1
    share = 100 * (1 - some["image_retrieval/listed"])
    assert f"The first stage excluded the right image of {share:.1f} % of the texts" in said
    assert place.settings()["first_stage"] == "words"


def test_another_checkpoint_picks_what_a_model_of_regions_ranks(place: Workplace) -> None:
    dual = ("--first-stage", str(place.folder / "dual"))
    assert place.run("--rerank", "2", *dual) == 0
    listed = listed_images(place)
    by_dual = Workplace(place.folder)
    shutil.move(place.folder / "checkpoint", place.folder / "ranks")
    shutil.move(place.folder / "dual", place.folder / "checkpoint")
    assert by_dual.run("--rerank", "2", "--fresh") == 0  # the same two, ranked by VLMo itself
    assert listed_images(by_dual) == listed


def test_a_image_that_the_first_stage_cannot_read_is_left_out(place: Workplace) -> None:
    shutil.rmtree(place.folder / "images")
    write_images(place.folder / "images", spoil=NAMES[2])
    assert place.run("--rerank", "2", "--first-stage", str(place.folder / "dual")) == 0
    rejects = read_table(place.out, REJECTS).to_pylist()
    assert {row["key"]: row["reason"] for row in rejects} == {"p2": "unreadable_image"}
    assert place.metrics()["images"] == len(NAMES) - 1


def test_what_a_first_stage_lacks_is_named_in_one_line(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    dual, classes = str(place.folder / "dual"), str(place.folder / "classes.txt")
    own = str(place.folder / "checkpoint")
    for tables, more, message in [
        (("regions",), ("--first-stage", "words"), "give their number with --rerank K"),
        (("regions",), ("--rerank", "2"), "or select with another model or with words (--first-st"),
        (("regions",), ("--rerank", "2", "--first-stage", "words"), "--class-names is missing"),
        (("regions",), ("--class-names", classes), "--class-names is only for --first-stage words"),
        (("regions",), ("--rerank", "2", "--first-stage", dual), "--images is missing: --first-s"),
        (("regions",), ("--rerank", "2", "--first-stage", own), "without a contrastive head"),
        (("regions",), ("--rerank", "2", "--first-stage", "nowhere"), "nowhere"),
    ]:
        assert place.run(*more, tables=tables) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(message, line), line
        assert not place.out.exists()
