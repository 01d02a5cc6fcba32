import pytest

from vlmill.pipelines.web.pages.markup import (
    declared_language,
    decode,
    expensive,
    mentions_image,
    parse,
    quick_text,
)
from vlmill.runtime.units.funnel import Drop


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        ("<p>café".encode(), None),
        ("<p>café".encode(), "no-such-charset"),
        ("<p>café".encode(), "iso-8859-1"),  # UTF-8 to the last byte is nothing else
        ("<?xml version='1.0' encoding='cp1252'?><p>café".encode("cp1252"), None),
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
    assert expensive("<table>" + "<tr><td><p>cell<img src=a.jpg><li>x" * 5_000, 1_000) is None
    assert expensive('<img alt="' + "word " * 50_000 + '">', 1_000) is None


def test_lone_surrogates_are_parsed() -> None:
    assert not isinstance(parse("<p>\ud800x", max_nesting=10), Drop)


def test_pages_without_images_are_told_apart() -> None:
    assert mentions_image(b"<p><IMG src=a>") and mentions_image(b'<meta property="og:image">')
    assert not mentions_image(b"<p>imagine")


def test_quick_text_is_the_longest_stretches() -> None:
    page = """<html lang="de"><head><title>A title that is in the head</title></head><body>
    <ul><li>Home</li><li>Impressum</li></ul><script>var text = "<p>not shown at all</p>";</script>
    <p>Der <b>Fuchs</b> springt &uuml;ber den faulen Hund.</p><p>Niemand wunderte sich sehr.</p>
    <p>0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef</p><p>© 2026 by us</p>
    <style>p { color: red; }</style>"""
    assert quick_text(page, 1_000) == (
        "springt über den faulen Hund. Niemand wunderte sich sehr. Impressum"
    )
    assert quick_text(page, 40) == "springt über den faulen Hund. Niemand wu"
    assert quick_text("", 40) == ""
    assert len(quick_text("<p>" + "many words " * 100_000, 1_000)) <= 1_000
    assert quick_text("<script>" * 20_000 + "</noscript><svg>" * 10_000, 100) == ""


@pytest.mark.parametrize(
    ("page", "language"),
    [
        ('<!doctype html><HTML class=x LANG="de-AT">', "de-AT"),
        ("<html xml:lang=fr>", "fr"),
        ("<html><body lang=fr>", None),
        ("<html data-lang=x>", None),
        ("", None),
    ],
)
def test_declared_languages(page: str, language: str | None) -> None:
    assert declared_language(page) == language
