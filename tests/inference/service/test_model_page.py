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

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.service.page.files import read_page_files
from vlmill.schemas.tables import PAIRS

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
    status = page.find_element("id", "status")
    return lambda: words in status.get_attribute("textContent")


def do(page: Any, task: str, text: str = "") -> None:
    """Chooses a task's tab, types a text, and presses Enter."""
    page.find_element("id", f"tab-{task}").click()
    field = page.find_element("id", "text")
    field.clear()
    field.send_keys(text + "\n")


def is_shown(page: Any, name: str) -> bool:
    return bool(page.find_element("id", name).is_displayed())


def test_every_task_of_a_model(page: Any) -> None:
    with served(STUB) as service:
        page.get(service.url)
        until(says(page, "Ready"))
        assert text_of(page, "title") == "Image search"
        assert text_of(page, "subtitle") == "made up, index of 10 images"
        tabs = ["Search", "Similar", "Match", "Ask", "Classify", "Check"]
        assert text_of(page, "tabs").split("\n") == tabs
        do(page, "score", "a red kite")
        until(says(page, "choose an image first"))
        page.find_element("id", "sample").click()
        until(says(page, "is ready"))
        do(page, "score", "a red kite")
        until(says(page, "The score is 1.2500"))
        assert text_of(page, "answer") == "1.2500" and "logits" in text_of(page, "answer-scale")
        rests = r"depends most on thing \d+ \(0\.15\), thing \d+ \(0\.05\)"
        assert re.search(rests, text_of(page, "answer-scale"))  # the others lower the score
        assert len(page.find_elements("css selector", "#first button.on")) == 2
        changes = [row.text.split()[-1] for row in page.find_elements("css selector", "#rows tr")]
        assert changes[:2] == ["-0.150", "-0.050"]
        do(page, "answer")
        until(says(page, "type a question"))
        assert not is_shown(page, "said") and not is_shown(page, "result")
        do(page, "answer", "what is this?")
        until(says(page, "The answer is a kite"))
        assert text_of(page, "answer") == "a kite"
        do(page, "classify")
        until(says(page, "The class is kite"))
        rows = page.find_elements("css selector", "#classes tbody tr")
        assert len(rows) == 10 and rows[0].text == "kite 0.750"
        do(page, "entail", "a kite flies")
        until(says(page, "The class is kite"))
        photograph(page, "model")
        assert page.get_log("browser") == []


def test_a_page_without_an_index_offers_what_the_model_can(page: Any) -> None:
    with served([*STUB, "answer"]) as service:
        page.get(service.url)
        until(says(page, "Ready"))
        assert text_of(page, "title") == "Model: made up" and not is_shown(page, "tabs")
        assert page.execute_script("return document.activeElement.id") == "text"
        page.find_element("id", "sample").click()
        until(says(page, "is ready"))
        page.find_element("id", "text").send_keys("what is this?\n")
        until(says(page, "The answer is"))
        assert page.get_log("browser") == []


def test_images_by_paste_and_by_camera(page: Any) -> None:
    """Each is searched for immediately, where there is an index."""
    with served([*STUB, "search"]) as service:
        page.get(service.url)
        until(says(page, "Ready"))
        page.execute_script(
            "const data = new DataTransfer(), canvas = document.createElement('canvas');"
            "canvas.toBlob((blob) => {"
            "data.items.add(new File([blob], 'a.png', { type: blob.type }));"
            "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data })); })"
        )
        until(says(page, "10 results for the pasted image"))
        page.find_element("id", "camera").click()
        until(lambda: page.execute_script("return document.getElementById('video').videoWidth") > 0)
        page.find_element("id", "take").click()
        until(says(page, "10 results for the photo"))
        assert not is_shown(page, "video")
        assert page.execute_script("return document.getElementById('video').srcObject") is None
        page.find_element("id", "remove").click()
        assert not is_shown(page, "chosen")
        assert page.get_log("browser") == []


def test_a_search_shows_images_captions_and_scores(page: Any, tmp_path: Path) -> None:
    """Also where requests must bear a token. What a caption holds stays text."""
    table = write_images(tmp_path / "images", 3)
    pairs = {"image-0": HOSTILE, "image-2": "a blue balloon"}
    captions = write_captions(tmp_path / "pairs", pairs)
    words = [*STUB, "search", "score", f"--images={table}", f"--pairs={captions}"]
    with served(words, VLMILL_TOKEN="0123456789abcdef") as service:
        page.get(service.url)
        until(lambda: is_shown(page, "token"))
        page.find_element("id", "token").send_keys("0123456789abcdef\n")
        until(says(page, "Ready"))
        page.find_element("id", "text").send_keys("a red kite\n")
        until(says(page, "10 results for “a red kite”, the nearest first"))
        assert "cosines" in text_of(page, "scale")
        cards = page.find_elements("css selector", "#answers .card")
        assert cards[0].text.split("\n") == [HOSTILE, "0.620", "image-0", "More like this"]
        assert cards[2].text.split("\n") == ["a blue balloon", "0.480", "image-2", "More like this"]
        until(lambda: len(page.find_elements("css selector", "#answers .without")) == 7)
        images = page.find_elements("css selector", "#answers img")
        widths = "return arguments[0].map((image) => image.naturalWidth)"
        until(lambda: page.execute_script(widths, images) == [40, 40, 40])
        photograph(page, "search")
        fits_narrow(page)
        assert page.execute_script("return location.hash") == "#q=a%20red%20kite"
        cards[2].find_element("css selector", "button").click()
        until(says(page, "9 results for items similar to a blue balloon"))
        assert page.execute_script("return location.hash") == "#like=image-2"
        page.find_element("id", "value").send_keys("toys")
        do(page, "similar", "image-1, nothing")
        until(says(page, "3 results for items similar to image-1, nothing"))
        assert "Not in the index: nothing." in text_of(page, "scale")
        assert not is_shown(page, "choose")  # no image is asked for
        page.back()
        until(says(page, "image-2"))
        page.back()
        until(says(page, "a red kite"))
        assert page.find_element("id", "text").get_attribute("value") == "a red kite"


HOSTILE = "<img src=x onerror=alert(1)>"


def write_captions(folder: Path, captions: dict[str, str]) -> Path:
    rows = [
        {
            **dict.fromkeys(PAIRS.schema.names),
            "pair_id": f"p-{name}",
            "image_id": name,
            "text": text,
        }
        | {"source": "own", "split": "train", "text_source": "human"}
        for name, text in captions.items()
    ]
    write_shard(folder, PAIRS, rows)
    return folder


def fits_narrow(page: Any) -> None:
    """Nothing is wider than a telephone's window."""
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
        photograph(page, "search-narrow")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """No address of another host in its files, no markup from data, and rules that forbid both."""
    files = {file.path: file.content.decode() for file in read_page_files()}
    for path, content in files.items():
        links = set(re.findall(r"https?://[^\s\"'`)]+", content))
        assert links <= {"http://www.w3.org/2000/svg"}, path  # the name of a format
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", content)
    imported = re.findall(r'from "\./(\w+\.js)"', "".join(files.values()))
    assert {f"/{name}" for name in imported} < files.keys()
    with served([*STUB, "search"], VLMILL_TOKEN="0123456789abcdef") as service:
        for path, content in files.items():  # without the token
            reply = service.ask("GET", path)
            assert reply.status == 200 and reply.body.decode() == content
            rules = reply.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in rules and "unsafe" not in rules
        assert service.ask("GET", "/v1/about").status == 401


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
