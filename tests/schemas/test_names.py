"""Which ids name the same image."""

import pytest

from vlmill.schemas.names import Difference, difference, extract_core, without_ending

SAME = {
    ("46.jpg", "46"): Difference.ENDING,
    ("46.JPG", "46"): Difference.ENDING,
    ("a/46.jpg", "a/46"): Difference.ENDING,
    ("train/46", "46"): Difference.FOLDERS,
    ("/data/own/train/46.jpg", "train/46"): Difference.FOLDERS,
    ("coco/000000132417", "000000132417.jpg"): Difference.FOLDERS,
    ("coco/000000132417", "COCO_val2014_000000132417.jpg"): Difference.NUMBER,
    ("coco/000000132417", "val2014/COCO_val2014_000000132417"): Difference.NUMBER,
    ("COCO_val2014_000000132417", "132417"): Difference.NUMBER,
    ("000000132417.jpg", "132417"): Difference.NUMBER,
    ("a/K\u00e4se.jpg", "a/Ka\u0308se.jpg"): Difference.SPELLING,
    ("K\u00e4se.jpg", "Ka\u0308se"): Difference.ENDING,
    ("Ka\u0308se.jpg", "train/K\u00e4se"): Difference.FOLDERS,
}
DIFFERENT = [
    ("46.jpg", "46.png"),
    ("train/46", "val/46"),
    ("46", "146"),
    ("a.b", "a"),
    ("a1", "a01"),
    ("COCO_val2014_000000132417", "COCO_train2014_000000132417"),
    ("flickr/132417", "COCO_val2014_000000132417"),
    (".jpg", "x"),
    ("", "0"),
    ("K\u00e4se", "Kase"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_only_one_of_two_ids_has(one: str, other: str) -> None:
    assert difference(one, other) is difference(other, one) is SAME[one, other]
    assert extract_core(one) == extract_core(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_ids_of_different_images(one: str, other: str) -> None:
    assert difference(one, other) is difference(other, one) is None


def test_endings_are_those_of_images() -> None:
    names = ["a.jpeg", "a.b.TIFF", "a.txt", ".png", "folder/.png", "a"]
    assert [without_ending(name) for name in names] == ["a", "a.b", *names[2:]]
