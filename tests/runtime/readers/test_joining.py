"""Ids of one table meet those of another."""

import pytest

from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.row_index import ABSENT, MOST_ALIKE, IdIndex
from vlmill.schemas.errors import InputError


def join(ids: list[str]) -> Join:
    return Join(IdIndex.from_ids(ids), asking="--pairs", holding="--regions")


def test_equal_ids_are_all_that_is_looked_at() -> None:
    index = IdIndex.from_ids(["b", "a", "a.jpg"])
    exact = Join(index, asking="--pairs", holding="--regions")
    assert exact.find(["a", "b", "a", "a.jpg"]).tolist() == [1, 0, 1, 2]
    assert exact.summary() == ""
    assert not {"_ids_without_ending", "_core_ids"} & vars(index).keys()  # neither is made


def test_ids_meet_by_name_and_it_is_said() -> None:
    some = join(["46", "train/32.jpeg", "132417", "same"])
    asked = ["46.jpg", "32", "same", "coco/000000132417", "gone", "", "46.jpg"]
    assert some.find(asked).tolist() == [0, 1, 3, 2, ABSENT, ABSENT, 0]
    assert some.summary() == (
        "--pairs and --regions call 3 images by different ids; they met: 1 but for an ending "
        "(46.jpg is 46), 1 but for folders (32 is train/32.jpeg), 1 but for COCO's prefix or zeros "
        "(coco/000000132417 is 132417)"
    )


def test_the_nearest_name_is_met() -> None:
    assert join(["train/46", "46.jpg"]).find(["46"]).tolist() == [1]
    assert join(["46", "train/46.jpg"]).find(["train/46"]).tolist() == [1]


@pytest.mark.parametrize("ids", [["46.jpg", "46.png"], ["train/46", "val/46"]])
def test_what_may_be_two_rows_is_an_error(ids: list[str]) -> None:
    with pytest.raises(InputError, match=f"--pairs: 46 may be {ids[0]} or {ids[1]} of --regions"):
        join(ids).find(["46"])


@pytest.mark.parametrize(
    "batches",
    [
        [["46.jpg", "46.png"]],
        [["46.jpg"], ["46.png"]],
        [["46", "46.png"]],
        [["46.png", "46"]],
        [["46.png"], ["46"]],
    ],
)
def test_two_ids_never_meet_one_row(batches: list[list[str]]) -> None:
    some = join(["46", "47"])
    with pytest.raises(InputError, match="would both be 46 of --regions"):
        for batch in batches:
            some.find(batch)


def test_names_that_many_share_identify_nothing() -> None:
    frames = join([f"video-{i}/frame_1" for i in range(MOST_ALIKE + 1)])
    assert frames.find(["frame_1", "clips/video-3/frame_1.jpg"]).tolist() == [ABSENT, ABSENT]
    assert frames.find(["video-3/frame_1.jpg"]).tolist() == [3]


def test_ids_of_both_sides_for_an_error() -> None:
    assert join(["a", "b", "c", "d"]).samples(["", "x"]) == "--pairs has x, --regions has a b c"
    assert join([]).samples([]) == "--pairs has no ids, --regions has no ids"
