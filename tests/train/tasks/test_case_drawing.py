"""Examples drawn with their boxes: where labels stand, and what is listed below."""

import re

import numpy as np

from vlmill.train.tasks.case_drawing import drawn_section
from vlmill.train.tasks.report import Case, DrawnBox

BOX = np.array([10.0, 20, 60, 80])


def drawn(*boxes: DrawnBox, size: tuple[int, int] = (200, 100)) -> str:
    """The section of one example in an image of that width and height."""
    case = Case(
        example_id="e",
        image_id="p",
        score=0.0,
        text="the <red> one",
        prediction="box 1 of 2",
        right="10, 20, 60, 80",
        boxes=boxes,
        size=size,
        choices=("a cat", "a & dog"),
    )
    return str(drawn_section("Worst", "", [case], {"p": "data:x"}).body)


def test_labels_of_one_box_that_is_right_and_chosen_do_not_cover_each_other() -> None:
    body = drawn(
        DrawnBox(box=BOX, label="right", kind="right"),
        DrawnBox(box=BOX, label="chosen", kind="chosen"),
    )
    (right_y, right), (chosen_y, chosen) = re.findall(r"<text [^>]* y='([\d.]+)'[^>]*>(\w+)<", body)
    assert (right, chosen) == ("right", "chosen")
    assert 20 < float(chosen_y) < float(right_y) - 8 and float(right_y) < 80


def test_letters_are_as_large_on_the_page_whatever_the_image_measures() -> None:
    label = DrawnBox(box=BOX, label="right", kind="right")
    sizes = []
    for side in (96, 960):
        body = drawn(label, size=(side, side))
        (size,) = re.findall(r"font-size='([\d.]+)'", body)
        sizes.append(float(size) / side)
    assert sizes[0] == sizes[1]


def test_a_label_at_the_right_edge_ends_with_its_box() -> None:
    body = drawn(DrawnBox(box=np.array([160.0, 0, 195, 50]), label="[2] elephant"))
    assert "<text x='195.0'" in body and "text-anchor='end'" in body
    assert "text-anchor='start'" in drawn(DrawnBox(box=BOX, label="[1] cat"))


def test_a_image_that_is_not_there_has_a_frame() -> None:
    case = Case(
        example_id="e", image_id="p", score=0.0, text="", prediction="", right="", size=(64, 48)
    )
    body = str(drawn_section("Worst", "", [case], {}).body)
    assert "<rect width='64' height='48'" in body and "<image" not in body


def test_choices_are_listed_from_nought_and_texts_escaped() -> None:
    body = drawn(DrawnBox(box=BOX, label="<b>"))
    assert "<ol start='0'><li>a cat</li><li>a &amp; dog</li></ol>" in body
    assert "the &lt;red&gt; one" in body and "&lt;b&gt;" in body
