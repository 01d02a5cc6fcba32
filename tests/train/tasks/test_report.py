"""Parts of reports: what they show, and what is left out."""

import re

import numpy as np
from numpy.typing import NDArray

from vlmill.train.tasks.report import (
    Case,
    DrawnBox,
    WeightedImage,
    cases_section,
    draw_weights,
    drawn_section,
    figures_table,
    weights_section,
    worst_cases,
)
from vlmill.train.tasks.weights import occlusion_weights


def case(example_id: str, score: float) -> Case:
    return Case(
        example_id=example_id,
        image_id=f"p{example_id}",
        score=score,
        text="what is <this>?",
        prediction="a cat",
        right="dog",
    )


def test_figures_have_errors_and_counts() -> None:
    figures = {"x/a": 0.70555, "x/a_stderr": 0.0214, "x/a_n": 453, "x/b": None}
    table = figures_table(figures, {"x/a": "accuracy", "x/b": "unknown"}, decimals=2)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table)
    assert cells == ["accuracy", "<b>70.56</b> %", "± 2.14", "453", "unknown", "–", "", ""]


def test_the_worst_come_first_and_ties_by_their_ids() -> None:
    cases = [case("c", 0.0), case("a", 0.3), case("b", 0.0), case("d", 1.0)]
    assert [c.example_id for c in worst_cases(cases, 3)] == ["b", "c", "a"]


def test_cases_show_images_or_their_ids_and_escape_texts() -> None:
    body = cases_section("Worst", "", [case("a", 0.0), case("b", 0.25)], {"pa": "data:x"}).body
    assert body.count("<img") == 1 and "image pb" in body and "image pa" not in body
    assert "&lt;this&gt;" in body and "score 0.25" in body
    assert "None" in cases_section("Worst", "", [], {}).body


def image(weights: list[float]) -> WeightedImage:
    return WeightedImage(
        image_id="p<1>",
        width=640,
        height=480,
        boxes=np.array([[0, 0, 10, 20], [5, 5, 100.25, 90], [7, 8, 9, 10]], np.float32),
        weights=np.array(weights),
        caption="why & how",
    )


def test_the_heaviest_region_is_drawn_last_and_most_opaque() -> None:
    drawn = draw_weights(image([0.4, -2.0, 0.0]), "data:x")
    rects = re.findall(r"<rect x='([\d.]+)'.*?fill='(#\w+)' fill-opacity='([\d.]+)'", drawn)
    assert [x for x, _, _ in rects] == ["7.0", "0.0", "5.0"]
    assert [float(fill) for _, _, fill in rects] == [0.0, 0.09, 0.45]
    assert rects[1][1] != rects[2][1]  # for and against
    assert "viewBox='0 0 640 480'" in drawn and "<image href='data:x'" in drawn
    assert "p&lt;1&gt;" in drawn and "why &amp; how" in drawn


def test_equal_or_no_weights_and_no_image_are_drawn_too() -> None:
    drawn = draw_weights(image([0.0, 0.0, 0.0]), "")
    assert drawn.count("<rect") == 3 and "<image" not in drawn and "nan" not in drawn
    assert "None" in weights_section([]).body


def test_a_region_weighs_what_the_score_loses_without_it() -> None:
    values = np.array([1.0, -0.5, 0.0])

    def score(shown: NDArray[np.bool_]) -> float:
        return float(values[shown].sum())

    np.testing.assert_allclose(occlusion_weights(score, 3), values)
    assert occlusion_weights(score, 1).tolist() == [0.0]
    assert occlusion_weights(score, 0).tolist() == []


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
