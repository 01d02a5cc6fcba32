"""The page of a model, clicked through in a browser."""

import re
from pathlib import Path

import pytest
from tests.browser import browser, photograph
from tests.serving import served, until


@pytest.mark.slow
def test_a_text_is_scored_searched_and_answered(tmp_path: Path) -> None:
    with browser(tmp_path) as page, served(["-m", "tests.train.service.stub"]) as service:

        def text_of(name: str) -> str:
            said: str = page.find_element("id", name).text
            return said

        page.get(service.url)
        until(lambda: "Ready" in text_of("status"))
        page.find_element("id", "sample").click()
        until(lambda: "is ready" in text_of("status"))
        page.find_element("id", "text").send_keys("a red kite\n")
        until(lambda: "Scored" in text_of("status"))
        assert text_of("said") == "Score: 1.2500"
        caption = page.find_element("css selector", "#first figcaption").text
        rests = r"The score rests most on region 11: [^;]+ \(1\.100\); region 10: [^;]+ \(1\.000\)"
        assert re.match(rests, caption)
        assert len(page.find_elements("css selector", "#first button.on")) == 3
        page.find_element("id", "search").click()
        until(lambda: "Searched" in text_of("status"))
        assert text_of("answers") == "0.5000 a"
        page.find_element("id", "answer").click()
        until(lambda: "Answered" in text_of("status"))
        assert text_of("said") == "Answer: a kite" and text_of("answers") == ""
        photograph(page, "model")
        assert page.get_log("browser") == []
