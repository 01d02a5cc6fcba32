import pytest

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.markup import decode, expensive, mentions_image, parse


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        ("<p>café".encode(), None),
        ("<p>café".encode(), "no-such-charset"),
        ("<p>café".encode("utf-16"), "latin-1"),
        ("<p>café".encode("latin-1"), "iso-8859-1"),
        ("<meta charset=windows-1252><p>café".encode("cp1252"), None),
        ("<p>café ".encode("cp1252") + b"and many more words of plain English text " * 5, None),
        ("<p>café ".encode("cp1252") + b"and many more words of plain English text " * 5, "utf-8"),
    ],
)
def test_encodings(body: bytes, charset: str | None) -> None:
    assert "café" in decode(body, charset)


def test_nothing_that_can_be_sent_breaks_decoding() -> None:
    assert decode(b"a\0b\xff", "utf-8") == "ab\ufffd" or "ab" in decode(b"a\0b\xff", "utf-8")
    assert decode(b"", None) == ""


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 100_000,
        "<div>" * 100_000 + "</div>" * 100_000,
        "<div " + " ".join(f"a{n}=1" for n in range(20_000)) + ">",
        "<div " + " ".join(f'a{n}=">"' for n in range(20_000)) + ">",
        "<div " + "/".join(f"a{n}" for n in range(20_000)) + ">",
        "<p>" + "".join(f"<b id={n}>" for n in range(500)) + "</p>" + "<p>x</p>" * 5_000,
    ],
)
def test_pages_that_would_take_too_long_are_not_parsed(page: str) -> None:
    assert expensive(page, 1_000)
    assert isinstance(parse(page, max_nesting=1_000), Drop)


def test_real_pages_are_cheap() -> None:
    rows = "<tr><td><p>cell<img src=a.jpg><li>x" * 5_000
    assert expensive("<table>" + rows, 1_000) is None
    assert expensive('<img alt="' + "word " * 50_000 + '">', 1_000) is None


def test_lone_surrogates_are_parsed() -> None:
    tree = parse("<p>\ud800x", max_nesting=10)
    assert not isinstance(tree, Drop)


def test_pages_without_pictures_are_told_apart() -> None:
    assert mentions_image(b"<p><IMG src=a>") and mentions_image(b'<meta property="og:image">')
    assert not mentions_image(b"<p>imagine")
