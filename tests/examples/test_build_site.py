"""The example site: reproducible, complete, and as dirty as its expectations say."""

import gzip
import importlib.util
import io
import json
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urljoin

import pytest
from PIL import Image, UnidentifiedImageError
from selectolax.lexbor import LexborHTMLParser
from warcio.archiveiterator import ArchiveIterator

from vlmill.runtime.console.command import run_command
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED: dict[str, Any] = json.loads((EXAMPLES / "expected.json").read_text(encoding="utf-8"))
HOST = "http://photos.example/"
SHARED = EXPECTED["texts_shared"][0]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", EXAMPLES / "build_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_site"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


build_site = load_script()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "site.warc.gz"
    assert run_command(build_site.main, ["--output", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def responses() -> dict[str, Any]:
    listed = list(build_site.site_responses(EXAMPLES))
    by_url = {r.url: r for r in listed}
    assert len(by_url) == len(listed), "two responses for one URL"
    return by_url


def body_of(response: Any) -> bytes:
    if response.headers.get("Content-Encoding") == "gzip":
        return gzip.decompress(response.body)
    return bytes(response.body)


def pages(responses: dict[str, Any]) -> dict[str, bytes]:
    found = {
        u: r for u, r in responses.items() if r.headers.get("Content-Type", "")[:9] == "text/html"
    }
    return {u: body_of(r) for u, r in found.items() if r.status == "200 OK"}


@cache
def tree(page: bytes) -> LexborHTMLParser:
    try:
        return LexborHTMLParser(page.decode())
    except UnicodeDecodeError:
        return LexborHTMLParser(page.decode("cp1252"))


def links(url: str, page: bytes) -> set[str]:
    """Every absolute http URL that the page's elements point to."""
    document = tree(page)
    base_tag = document.css_first("base[href]")
    base = url if base_tag is None else urljoin(url, base_tag.attributes["href"] or "")
    values = [
        node.attributes[name]
        for name in ("href", "src", "data-src", "action")
        for node in document.css(f"[{name}]:not(base)")
    ]
    values += [n.attributes["content"] for n in document.css("meta[property='og:image']")]
    for node in document.css("[srcset]"):
        values += [part.split()[0] for part in (node.attributes["srcset"] or "").split(",")]
    usable = [v for v in values if v and not v.startswith(("data:", "http://[", "https:"))]
    return {urljoin(base, v).partition("#")[0] for v in usable}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def size_of(response: Any) -> tuple[int, int]:
    return Image.open(io.BytesIO(response.body)).size


def test_two_runs_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    assert run_command(build_site.main, ["--output", str(tmp_path / "b.warc.gz")]) == 0
    assert (tmp_path / "b.warc.gz").read_bytes() == archive.read_bytes()


def test_archive_holds_every_response(archive: Path, responses: dict[str, Any]) -> None:
    read, ids = {}, []
    with archive.open("rb") as file:
        for record in ArchiveIterator(file, no_record_parse=False, check_digests="raise"):
            ids.append(record.rec_headers.get_header("WARC-Record-ID"))
            if record.rec_type == "response":
                url = record.rec_headers.get_header("WARC-Target-URI")
                read[url] = (record.http_headers.statusline, record.raw_stream.read())
    assert read == {u: (r.status, r.body) for u, r in responses.items()}
    assert len(set(ids)) == len(ids) == len(responses) + 1


def test_each_record_is_a_gzip_member_without_a_time(
    archive: Path, responses: dict[str, Any]
) -> None:
    content = archive.read_bytes()
    with archive.open("rb") as file:
        iterator = ArchiveIterator(file)
        offsets = [iterator.get_record_offset() for _ in iterator]
    assert len(offsets) == len(responses) + 1
    # Magic number, deflate, no flags, modification time 0 (RFC 1952, 2.3).
    assert {content[o : o + 8] for o in offsets} == {b"\x1f\x8b\x08" + bytes(5)}


def test_good_images_are_distinct_large_and_readable(responses: dict[str, Any]) -> None:
    assert len(EXPECTED["kept"]) >= 30
    bodies, formats = set(), set()
    for entry in EXPECTED["kept"]:
        assert len({responses[u].body for u in entry["urls"]}) == 1
        image = Image.open(io.BytesIO(responses[entry["urls"][0]].body))
        image.load()
        assert min(image.size) > 300, entry
        bodies.add(responses[entry["urls"][0]].body)
        formats.add((image.format, bool(image.info.get("progressive"))))
    assert len(bodies) == len(EXPECTED["kept"])
    assert formats == {("JPEG", False), ("JPEG", True), ("PNG", False), ("WEBP", False)}


def test_good_texts_are_distinct_and_of_normal_length() -> None:
    texts = [t for entry in EXPECTED["kept"] + EXPECTED["undecided"] for t in entry["texts"]]
    assert all(entry["texts"] for entry in EXPECTED["kept"])
    assert len({" ".join(words(t)) for t in texts}) == len(texts)
    assert all(3 <= len(words(t)) <= 40 for t in texts)


def test_every_good_text_stands_on_a_page_with_its_image(responses: dict[str, Any]) -> None:
    dropped = {p["url"] for p in EXPECTED["pages_dropped"]}
    usable = {u: p for u, p in pages(responses).items() if u not in dropped}
    linked = {u: links(u, p) for u, p in usable.items()}
    written = {}
    for url, page in usable.items():
        document = tree(page)
        attributes = [v or "" for n in document.css("*") for v in n.attributes.values()]
        visible = " ".join(words(document.body.text()) if document.body else [])
        written[url] = f"{visible} | " + " | ".join(" ".join(words(a)) for a in attributes)
    for entry in EXPECTED["kept"] + EXPECTED["undecided"]:
        addresses = set(entry.get("urls", [entry.get("url")]))
        on_pages = [written[u] for u in usable if addresses & linked[u]]
        for text in entry["texts"]:
            assert any(" ".join(words(text)) in page for page in on_pages), (addresses, text)


def test_every_link_leads_to_a_record_but_for_the_listed_ones(responses: dict[str, Any]) -> None:
    found = set().union(*(links(u, p) for u, p in pages(responses).items()))
    assert found - set(responses) == set(EXPECTED["links_not_archived"])


def test_every_record_is_linked_or_expected(responses: dict[str, Any]) -> None:
    found = set().union(*(links(u, p) for u, p in pages(responses).items()))
    assert set(responses) - found - {HOST} == set()


def test_expectations_cover_every_image_once(responses: dict[str, Any]) -> None:
    listed = [u for e in EXPECTED["kept"] for u in e["urls"]]
    listed += [e["url"] for e in EXPECTED["dropped"] + EXPECTED["undecided"]]
    assert len(set(listed)) == len(listed)
    images = {u for u, r in responses.items() if r.headers.get("Content-Type", "")[:6] == "image/"}
    assert images <= set(listed)
    reasons = {r for e in EXPECTED["dropped"] + EXPECTED["pages_dropped"] for r in e["reasons"]}
    assert reasons <= {str(r) for r in Reason}


def test_dropped_images_are_what_their_reasons_say(responses: dict[str, Any]) -> None:
    for entry in EXPECTED["dropped"]:
        if "too_small" in entry["reasons"]:
            assert min(size_of(responses[entry["url"]])) <= 300, entry
        if "shared_text" in entry["reasons"]:
            assert min(size_of(responses[entry["url"]])) > 300, entry
    assert size_of(responses[HOST + "textures/squares/bricks-300.png"]) == (300, 300)
    assert size_of(responses[HOST + "museum/coin-301.png"]) == (301, 301)
    assert size_of(responses["http://stats.example/pixel.gif?site=photos"]) == (1, 1)
    assert size_of(responses["http://ads.example/banners/skyscraper-320x600.png"]) == (320, 600)


def test_damaged_and_lying_images(responses: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(responses[HOST + "notes/cut-in-half.jpg"].body)).load()
    with pytest.raises(UnidentifiedImageError):
        size_of(responses[HOST + "notes/error-page.png"])
    assert responses[HOST + "notes/error-page.png"].headers["Content-Type"] == "image/png"
    assert responses[HOST + "notes/nothing.png"].body == b""
    skyline = responses[HOST + "people/skyline.jpg"]
    assert skyline.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(skyline.body)).format == "PNG"
    animation = Image.open(io.BytesIO(responses[HOST + "drawings/zoom.gif"].body))
    assert getattr(animation, "n_frames", 1) == 3 and min(animation.size) > 300


def test_shared_text_has_more_than_ten_images_of_its_own(responses: dict[str, Any]) -> None:
    shared = {
        urljoin(url, str(node.attributes["src"]))
        for url, page in pages(responses).items()
        for node in tree(page).css(f'img[alt="{SHARED}"]')
    }
    only_shared = {e["url"] for e in EXPECTED["dropped"] if e["reasons"] == ["shared_text"]}
    kept = {u for e in EXPECTED["kept"] for u in e["urls"]}
    assert only_shared < shared and len(only_shared) > 10
    assert shared - only_shared <= kept


@pytest.mark.parametrize(
    ("path", "needle"),
    [
        ("", b'alt="This is inside a script'),
        ("space/suit.html", b"<style>"),
        ("space/suit.html", b"IMG_0413.PNG"),
        ("space/astronaut.html", b'property="og:image"'),
        ("space/astronaut.html", b'property="og:description"'),
        ("space/deep-field.html", b"<base href="),
        ("space/galaxies.html", b'src="../space/img/'),
        ("space/launch.html", b"<picture>"),
        ("space/launch.html", b"DSC_0042.JPG"),
        ("space/", b'alt="click to enlarge"'),
        ("food/espresso.html", b"srcset="),
        ("food/espresso.html", b"&nbsp;&ndash;"),
        ("garden/petals.html", b'src="data:image/gif;base64,'),
        ("garden/petals.html", b"data-src="),
        ("garden/petals.html", b"&shy;"),
        ("travel/roofs.html", b"&amp;amp;"),
        ("forum/thread-17.html", b'alt="image"'),
        ("people/tripod.html", b"<h1>The tripod, and what is behind it</h2>"),
        ("museum/coins.html", "museum’s".encode("cp1252")),
        ("notes/damaged.html", b"http://[broken/"),
    ],
)
def test_dirt_is_there(responses: dict[str, Any], path: str, needle: bytes) -> None:
    assert needle in body_of(responses[HOST + path])


def test_encodings_languages_and_empty_page(responses: dict[str, Any]) -> None:
    coins = responses[HOST + "museum/coins.html"]
    assert coins.headers["Content-Type"] == "text/html" and b"charset" not in coins.body
    with pytest.raises(UnicodeDecodeError):
        coins.body.decode()
    assert responses[HOST + "science/eye.html"].headers["Content-Encoding"] == "gzip"
    assert responses[HOST + "notes/empty.html"].body == b""
    assert b'lang="de"' in responses[HOST + "de/"].body
    assert "écrivons" in responses[HOST + "fr/"].body.decode()


def test_statuses(responses: dict[str, Any]) -> None:
    others = {
        u.removeprefix(HOST): r.status[:3] for u, r in responses.items() if r.status[:3] != "200"
    }
    assert others == {
        "gone.html": "404",
        "notes/missing.jpg": "404",
        "old/astronaut.html": "301",
        "pictures/old-cat.jpg": "301",
    }


def test_wrong_output_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in (tmp_path, tmp_path / "site.zip"):
        assert run_command(build_site.main, ["--output", str(output)]) == 2
        error = capsys.readouterr().err
        assert "--output" in error and ".warc.gz" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    broken = build_site.Response(url=HOST, status="200 OK", headers={}, body=None)
    path = tmp_path / "site.warc.gz"
    with pytest.raises(TypeError), build_site.atomic_path(path) as temporary:
        build_site.write_warc(temporary, [broken])
    assert list(tmp_path.iterdir()) == []


def test_missing_photograph_names_the_remedy() -> None:
    with pytest.raises(InputError, match="reinstall"):
        build_site.source_path("skimage/no-such-picture.png")


def test_render_crops_and_keeps_gray_images_gray() -> None:
    entry = {"source": "skimage/moon.png", "box": [0, 0, 40, 20], "size": [80, 40], "format": "png"}
    image = Image.open(io.BytesIO(build_site.render(entry)))
    assert (image.size, image.mode) == ((80, 40), "L")
