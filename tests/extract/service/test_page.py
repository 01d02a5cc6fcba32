"""The page, clicked through in a browser: of the service, and of a table."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.browser import browser, photograph
from tests.serving import served, until

TOKEN = "a-token-of-the-tests"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def page(downloads: Path) -> Iterator[Any]:
    with browser(downloads) as running:
        yield running
        messages = [entry["message"] for entry in running.get_log("browser")]
        # What the service refuses, a browser notes as well.
        assert [line for line in messages if "Failed to load resource" not in line] == []


def by_id(page: Any, name: str) -> Any:
    return page.find_element("id", name)


def says(page: Any, words: str) -> Callable[[], bool]:
    return lambda: words in by_id(page, "status").text


def boxes(page: Any, figure: str = "first") -> list[Any]:
    found: list[Any] = page.find_elements("css selector", f"#{figure} .canvas button")
    return found


def test_a_picture_is_looked_at(page: Any, downloads: Path) -> None:
    with served(["-m", "tests.extract.service.stub", TOKEN]) as service:
        page.get(service.url)
        until(lambda: by_id(page, "bearer").is_displayed())
        by_id(page, "token").send_keys(TOKEN + "\n")
        until(says(page, "Ready"))
        assert "Random weights" in by_id(page, "notice").text

        by_id(page, "sample").click()
        until(says(page, "12 regions"))
        assert len(boxes(page)) == 12
        assert "12 of 12 regions" in by_id(page, "shown").text
        rows = page.find_elements("css selector", "#rows tr")
        scores = [float(row.find_elements("css selector", "td")[2].text) for row in rows]
        assert scores == sorted(scores, reverse=True)
        size = page.execute_script(
            "const i = document.querySelector('#first img').getBoundingClientRect(),"
            "b = document.querySelector('#first button').getBoundingClientRect();"
            "return [b.left - i.left, b.top - i.top, i.right - b.right, i.bottom - b.bottom]"
        )
        assert min(size) > -4  # boxes lie on the picture

        middle = (scores[3] + scores[4]) / 2
        page.execute_script(
            "const t = document.getElementById('threshold'); t.value = arguments[0];"
            "t.dispatchEvent(new Event('input'))",
            middle,
        )
        kept = len(boxes(page))
        assert 1 <= kept < 12 and f"{kept} of 12" in by_id(page, "shown").text

        page.execute_script("document.querySelector('#first .canvas button').focus()")
        assert "score" in by_id(page, "region-name").text
        told = page.find_elements("css selector", "#distribution dt")
        assert len(told) == 4 and all("thing" in word.text for word in told)
        label = boxes(page)[0].get_attribute("aria-label")
        assert "thing" in label and "kind of" in label

        by_id(page, "other-sample").click()
        until(says(page, "the second sample"))
        page.execute_script("document.querySelector('#first .canvas button').focus()")
        assert "Most alike: region" in page.find_element("css selector", "#second figcaption").text
        assert len(page.find_elements("css selector", "#second button.on")) in (1, 2, 3)
        photograph(page, "regions")

        by_id(page, "download").click()
        until(lambda: (downloads / "regions.parquet").exists())
        assert pq.read_table(downloads / "regions.parquet").num_rows == 1

        bad = downloads / "bad.jpg"
        bad.write_bytes(b"no picture")
        by_id(page, "file").send_keys(str(bad))
        until(says(page, "is rejected: none of"))
        assert by_id(page, "file").accessible_name.startswith("Picture")


def test_a_table_is_paged(page: Any, first_run: Path, shared_pictures: Path) -> None:
    words = ["-m", "vlmill.extract.cli", "show", "--serve", str(first_run)]
    with served([*words, "--images", str(shared_pictures)]) as service:
        reply = service.ask("GET", "/v1/rows?page=1&per_page=4").json()
        assert reply["total"] == 7 and [row["number"] for row in reply["rows"]] == [4, 5, 6]
        assert all(row["has_picture"] for row in reply["rows"])
        for path, status in (
            ("/v1/rows/7", 404),
            ("/v1/rows/-1", 400),
            (f"/v1/rows/{'9' * 5000}", 400),
            ("/v1/rows/0/picture", 200),
            ("/v1/rows?page=x", 400),
            ("/v1/rows?page=0&page=1", 400),
            ("/v1/rows?per_page=101", 400),
        ):
            assert service.ask("GET", path).status == status, path
        page.get(service.url)
        until(says(page, "Page 1 of 1"))
        buttons = page.find_elements("css selector", "#pictures button")
        assert len(buttons) == 7
        buttons[0].click()
        until(says(page, "8 regions"))
        assert len(boxes(page)) == 8
        photograph(page, "table")
