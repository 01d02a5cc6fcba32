"""The page, clicked through in a browser: of the service, and of a table."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.browser import browser, photograph
from tests.extract.service.stub import PRODUCER, arrays, drawn
from tests.serving import served, until

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.schemas.tables import REGIONS

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
    return lambda: words in by_id(page, "status").get_attribute("textContent")


def boxes(page: Any, figure: str = "first") -> list[Any]:
    found: list[Any] = page.find_elements("css selector", f"#{figure} .canvas button")
    return found


def test_a_image_is_looked_at(page: Any, downloads: Path) -> None:
    with served(["-m", "tests.extract.service.stub", TOKEN]) as service:
        page.get(service.url)
        until(lambda: by_id(page, "bearer").is_displayed())
        by_id(page, "token").send_keys(TOKEN + "\n")
        until(says(page, "Ready"))
        assert "random weights" in by_id(page, "notice").text

        by_id(page, "sample").click()
        until(says(page, "12 regions"))
        assert by_id(page, "threshold").get_attribute("value") == "0.2"
        assert len(boxes(page)) == kept_of(page) < 12
        assert all(float(row.text.split()[3]) >= 0.2 for row in lines(page))
        assert_one_colour_per_class(page)
        set_threshold(page, 0)
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
        assert min(size) > -4  # boxes lie on the image

        middle = (scores[3] + scores[4]) / 2
        set_threshold(page, middle)
        kept = len(boxes(page))
        assert 1 <= kept < 12 and f"{kept} of 12" in by_id(page, "shown").text

        point_at_the_smallest(page)
        told = page.find_elements("css selector", "#distribution dt")
        assert len(told) == 4 and all("thing" in word.text for word in told)
        assert "thing" in boxes(page)[0].accessible_name
        assert "kind of" in boxes(page)[0].accessible_name

        by_id(page, "other-sample").click()
        until(says(page, "regions of the second sample"))
        page.execute_script("document.querySelector('#first .canvas button').focus()")
        order = [row.get_attribute("data-at") for row in lines(page)]
        assert arrow_keys(page, 3) == [order[at % len(order)] for at in (1, 2, 3)]
        assert "Most similar" in page.find_element("css selector", "#second figcaption").text
        assert len(page.find_elements("css selector", "#second button.on")) in (1, 2, 3)
        photograph(page, "regions")

        by_id(page, "download").click()
        until(lambda: (downloads / "regions.parquet").exists())
        assert pq.read_table(downloads / "regions.parquet").num_rows == 1

        bad = downloads / "bad.jpg"
        bad.write_bytes(b"no picture")
        by_id(page, "file").send_keys(str(bad))
        until(says(page, "is rejected: none of"))
        assert "wrong" in by_id(page, "status").get_attribute("class")

        dropped = downloads / "dropped.png"
        Image.new("RGB", (90, 160), "green").save(dropped)
        drop(page, dropped, by_id(page, "title"))  # beside the zone
        until(says(page, "12 regions of dropped.png"))
        assert "wrong" not in by_id(page, "status").get_attribute("class")
        assert by_id(page, "first").size["height"] < page.execute_script("return innerHeight")
        reached = tabbed(page, 16)
        ids = {"file", "camera", "sample", "remove", "threshold", "download", "other"}
        assert {*ids, "other-sample"} <= set(reached)
        assert len({name for name in reached if name.startswith("region")}) == 1  # for all boxes
        assert all(named.accessible_name for named in controls(page))
        fits_narrow(page, "regions")


def point_at_the_smallest(page: Any) -> None:
    """By the mouse: the smallest box is reached although larger ones lie around it."""
    from selenium.webdriver.common.action_chains import ActionChains

    smallest = min(boxes(page), key=lambda box: box.size["width"] * box.size["height"])
    ActionChains(page).move_to_element(smallest).perform()
    number = smallest.get_attribute("data-at")
    assert by_id(page, "region-name").text.startswith(f"Region {number}:")


def lines(page: Any) -> list[Any]:
    """Gives the rows of the table of regions."""
    found: list[Any] = page.find_elements("css selector", "#rows tr")
    return found


def set_threshold(page: Any, value: float) -> None:
    page.execute_script(
        "const t = document.getElementById('threshold'); t.value = arguments[0];"
        "t.dispatchEvent(new Event('input'))",
        value,
    )


def assert_one_colour_per_class(page: Any) -> None:
    """A box has the colour of its class, and its name."""
    colours: dict[str, set[str]] = {}
    for box in boxes(page):
        name = box.find_element("css selector", "span").get_attribute("textContent")
        assert name.startswith("thing ")
        colours.setdefault(name, set()).add(box.value_of_css_property("border-color"))
    legend = page.find_elements("css selector", "#legend li")
    assert len(colours) == len(legend) == len({str(each) for each in colours.values()})
    assert all(len(each) == 1 for each in colours.values())


def arrow_keys(page: Any, count: int) -> list[str]:
    """Presses the right arrow key, and gives the boxes that it reaches."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(count):
        ActionChains(page, duration=0).send_keys(Keys.ARROW_RIGHT).perform()
        reached.append(page.execute_script("return document.activeElement.dataset.at"))
    return reached


def drop(page: Any, file: Path, target: Any) -> None:
    """Drops a file as a mouse does."""
    where = {name: target.location[name] + 5 for name in ("x", "y")}
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "data": data, **where})


def tabbed(page: Any, count: int) -> list[str]:
    """Presses the Tab key, and gives what it reaches: ids, and the boxes' names."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.find_element("css selector", "body").click()
    reached = []
    for _ in range(count):
        ActionChains(page, duration=0).send_keys(Keys.TAB).perform()
        reached.append(
            page.execute_script(
                "return document.activeElement.id || document.activeElement.ariaLabel || ''"
            )
        )
    return reached


def kept_of(page: Any) -> int:
    """Says how many boxes the threshold leaves."""
    return int(by_id(page, "shown").text.split()[0])


def controls(page: Any) -> list[Any]:
    """Gives what can be used."""
    found = page.find_elements("css selector", "button, input")
    return [one for one in found if one.is_displayed() and not one.get_attribute("aria-hidden")]


def fits_narrow(page: Any, name: str) -> None:
    """Nothing is wider than a telephone's window."""
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
        photograph(page, f"{name}-narrow")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_table_is_asked_by_page(first_run: Path, images: Path) -> None:
    words = ["-m", "vlmill.extract.cli", "show", "--serve", str(first_run)]
    with (images / "huge.jpg").open("wb") as huge:
        huge.truncate(2**30)  # takes no room
    with served([*words, "--images", str(images)]) as service:
        until(lambda: bool(service.log))
        assert service.log[0] == (
            "7 of 7 images found, 2 images of --images without a row, 1 reject (1 too_large), "
            "the first is huge.jpg\n"
        )
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
        assert service.ask("GET", "/v1/nothing").status == 404
        counts = service.ask("GET", "/metrics").body.decode()
        for path in ("/v1/rows/{number}", "/v1/rows/{number}/picture", "other"):
            assert f'vlmill_requests_total{{path="{path}",status=' in counts, path


def rows_of(count: int, folder: Path) -> str:
    """Writes a table of drawn regions, and its images; gives the table."""
    rows = []
    for number in range(count):
        content = io.BytesIO()
        Image.new("RGB", (8 + number % 5, 6), (number % 256, number // 256, 0)).save(content, "PNG")
        (folder / f"{number:04}.png").write_bytes(content.getvalue())
        row = drawn(content.getvalue())
        assert isinstance(row, RegionRow)
        rows.append(row)
    table = encode_regions(rows, dtype="float16")
    write_shard(folder / "regions", REGIONS, table, producer=PRODUCER, arrays=arrays())
    return str(folder / "regions")


def test_a_table_of_a_thousand_is_paged_and_compared(page: Any, tmp_path: Path) -> None:
    words = ["-m", "vlmill.extract.cli", "show", "--serve", rows_of(1_000, tmp_path)]
    with served([*words, "--images", str(tmp_path)]) as service:
        page.get(service.url)
        until(says(page, "Page 1 of 42"))
        assert len(page.find_elements("css selector", "#images img")) == 24
        assert not by_id(page, "previous").is_enabled()
        by_id(page, "next").click()
        until(says(page, "Page 2 of 42"))
        number = by_id(page, "page")
        number.clear()
        number.send_keys("99\n")  # the last one
        until(says(page, "Page 42 of 42"))
        assert number.get_attribute("value") == "42" and not by_id(page, "next").is_enabled()
        first, second, *_ = buttons = page.find_elements("css selector", "#images button")
        assert len(buttons) == 1_000 - 41 * 24
        first.click()
        until(says(page, "12 regions of"))
        set_threshold(page, 0)
        assert len(boxes(page)) == 12 and first.get_attribute("aria-current") == "true"
        by_id(page, "compare").click()
        until(says(page, "Choose the second"))
        second.click()
        until(says(page, "12 regions of"))
        point_at_the_smallest(page)
        assert "Most similar" in page.find_element("css selector", "#second figcaption").text
        assert all(named.accessible_name for named in controls(page))
        photograph(page, "table")
        fits_narrow(page, "table")
