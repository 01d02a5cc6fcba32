"""The page of a model, clicked through in a browser."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.browser import browser, photograph
from tests.factories import write_images, write_photographs
from tests.serving import served, until

STUB = ("-m", "tests.inference.service.stub")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("downloads")) as running:
        yield running


def text_of(page: Any, name: str) -> str:
    said: str = page.find_element("id", name).text
    return said


def says(page: Any, words: str) -> Callable[[], bool]:
    return lambda: words in text_of(page, "status")


def test_a_text_is_scored_searched_and_answered(page: Any) -> None:
    with served(STUB) as service:
        page.get(service.url)
        until(says(page, "Ready"))
        assert text_of(page, "title") == "A model: made up"
        page.find_element("id", "sample").click()
        until(says(page, "is ready"))
        page.find_element("id", "text").send_keys("a red kite\n")
        until(says(page, "Scored"))
        assert text_of(page, "said") == "Score: 1.2500"
        caption = page.find_element("css selector", "#first figcaption").text
        rests = (
            r"The score rests most on region 11: thing \d+ \(0\.150\); "
            r"region 10: thing \d+ \(0\.050\): so much"
        )
        assert re.match(rests, caption)  # the others lower the score
        assert len(page.find_elements("css selector", "#first button.on")) == 2
        page.find_element("id", "search").click()
        until(says(page, "Searched"))
        assert text_of(page, "answers") == "0.5000 image-0\n0.4000 image-9"
        page.find_element("id", "answer").click()
        until(says(page, "Answered"))
        assert text_of(page, "said") == "Answer: a kite" and text_of(page, "answers") == ""
        photograph(page, "model")
        assert page.get_log("browser") == []


def test_the_enter_key_wants_what_the_model_can(page: Any) -> None:
    """Of one that answers alone an answer; what was said before does not stand by an error."""
    with served([*STUB, "answer"]) as service:
        page.get(service.url)
        until(says(page, "Ready"))
        page.find_element("id", "sample").click()
        until(says(page, "is ready"))
        text = page.find_element("id", "text")
        text.send_keys("what is this?\n")
        until(says(page, "Answered"))
        assert text_of(page, "said") == "Answer: a kite"
        text.clear()
        page.find_element("id", "answer").click()
        until(says(page, "type a question"))
        assert text_of(page, "said") == ""
        assert not page.find_element("id", "score").is_displayed()
        assert page.get_log("browser") == []


def test_a_search_shows_the_images_of_the_table(page: Any, tmp_path: Path) -> None:
    """Also where requests must bear a token; one that the table lacks says so in its place."""
    table = write_images(tmp_path / "images", 3)
    with served([*STUB, "search", f"--images={table}"], VLMILL_TOKEN="0123456789abcdef") as service:
        page.get(service.url)
        until(lambda: page.find_element("id", "token").is_displayed())
        page.find_element("id", "token").send_keys("0123456789abcdef\n")
        until(says(page, "Ready"))
        page.find_element("id", "text").send_keys("a red kite\n")
        until(says(page, "Searched"))
        until(lambda: "has no image" in text_of(page, "answers"))
        (image,) = page.find_elements("css selector", "#answers img")
        until(lambda: page.execute_script("return arguments[0].naturalWidth", image) == 40)
        photograph(page, "search")


def test_small_images_of_the_table(tmp_path: Path) -> None:
    table = write_photographs(tmp_path, 2, cut=[1])
    with served([*STUB, f"--images={table}"]) as service:
        reply = service.ask("GET", "/v1/picture?image_id=image-0")
        assert reply.status == 200 and reply.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(reply.body)).size == (64, 48)
        for query, status, reason in (
            ("image_id=image-1", 404, "unreadable_image"),
            ("image_id=image-9", 404, "no_picture"),
            ("", 404, "no_picture"),
            ("name=image-0", 400, "bad_request"),
        ):
            reply = service.ask("GET", f"/v1/picture?{query}")
            assert (reply.status, reply.json()["reason"]) == (status, reason), query
    with served(STUB) as service:
        reply = service.ask("GET", "/v1/picture?image_id=image-0")
        assert (reply.status, reply.json()["reason"]) == (404, "no_pictures")
