import codecs
import json

import pytest

from vlmill.runtime.net.opt_outs import (
    MAX_TDMREP_BYTES,
    first_opt_out,
    header_opt_outs,
    meta_opt_outs,
    robots_signals,
    signals_forbid,
    tdmrep_reserves,
    tdmrep_url,
)
from vlmill.schemas.rejects import Reason

AI, IMAGE_AI, INDEX, IMAGE_INDEX, TDM = (
    Reason.NO_AI,
    Reason.NO_IMAGE_AI,
    Reason.NO_INDEX,
    Reason.NO_IMAGE_INDEX,
    Reason.TDM_RESERVED,
)


RESERVED = {"location": "/", "tdm-reservation": 1}


@pytest.mark.parametrize(
    ("value", "opt_outs"),
    [
        ("noai", {AI}),
        ("noml", {AI}),
        ("NoAI, noimageai", {AI, IMAGE_AI}),
        ("noindex,nofollow", {INDEX}),
        ("none", {INDEX}),
        ("noimageindex", {IMAGE_INDEX}),
        ("all", set()),
        ("", set()),
        ("max-image-preview: none, noai", {AI}),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", set()),
        ("googlebot: noindex", set()),
        ("googlebot: noindex, noai", set()),  # both for that robot
        ("googlebot: noindex\nnoai", {AI}),  # two headers
        ("vlmill: noai, noimageai", {AI, IMAGE_AI}),
        ("otherbot: noindex, *: noimageai", {IMAGE_AI}),
        ("noai" + ", noindex" * 10_000, {AI, INDEX}),
    ],
)
def test_robots_are_read_from_headers_and_metadata(value: str, opt_outs: set[Reason]) -> None:
    assert header_opt_outs({"x-robots-tag": value}) == opt_outs
    if "\n" not in value:
        assert meta_opt_outs([("Robots", value)]) == opt_outs
        assert meta_opt_outs([("vlmill", value)]) == opt_outs
        assert meta_opt_outs([("googlebot", value), ("description", value)]) == set()


def test_reservations() -> None:
    assert header_opt_outs({"tdm-reservation": " 1 "}) == {TDM}
    assert header_opt_outs({"tdm-reservation": "0", "x-robots-tag": "noai"}) == {AI}
    assert meta_opt_outs([("tdm-reservation", "1"), ("robots", "noai")]) == {TDM, AI}
    assert header_opt_outs({}) == set()


def test_one_reason_is_counted() -> None:
    assert first_opt_out({INDEX, AI, TDM}) == TDM
    assert first_opt_out({IMAGE_INDEX, IMAGE_AI}) == IMAGE_AI
    assert first_opt_out(()) is None


@pytest.mark.parametrize(
    ("rules", "is_reserved"),
    [
        ([], False),
        ([RESERVED], True),
        ([{"location": "/", "tdm-reservation": "1", "tdm-policy": "https://a.org/p"}], True),
        ([{"location": "/", "tdm-reservation": 0}], False),
        ([{"location": "/", "tdm-reservation": 2}], False),  # no such value: as if unset
        ([{"location": "/", "tdm-reservation": True}], False),
        ([{"location": "/art", "tdm-reservation": 0}, RESERVED], False),
        ([RESERVED, {"location": "/art", "tdm-reservation": 0}], True),
        ([{"location": "/ART", "tdm-reservation": 1}], False),
        ([{"location": "/art/*.jpg", "tdm-reservation": 1}], True),
        ([{"location": "/art/*.jpg$", "tdm-reservation": 1}], False),  # the URL has a query
        ([{"location": "/art/*=1$", "tdm-reservation": 1}], True),
        ([{"location": "/*a*a*.png", "tdm-reservation": 1}], False),
        ([{"location": "/%61rt/", "tdm-reservation": 1}], True),
        ([{"location": "", "tdm-reservation": 1}], True),
        ([{"location": 5, "tdm-reservation": 1}, "x", None, {"tdm-reservation": 1}], False),
        (RESERVED, False),
    ],
)
def test_rules_of_tdmrep(rules: object, is_reserved: bool) -> None:
    content = json.dumps(rules).encode()
    for text in (content, codecs.BOM_UTF8 + content):
        assert tdmrep_reserves(text, "http://a.org/art/a.jpg?b=1") is is_reserved


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"<html>", b"[" * 500_000),
        b'[{"location": "/\xff", "tdm-reservation": 1}]',
        b'[{"location": "/", "tdm-reservation": 1}]' + b" " * MAX_TDMREP_BYTES,
    ],
)
def test_what_is_no_tdmrep_reserves_nothing(content: bytes) -> None:
    assert not tdmrep_reserves(content, "http://a.org/a")


def test_where_tdmrep_stands() -> None:
    assert tdmrep_url("http://a.org:81/b?c") == "http://a.org:81/.well-known/tdmrep.json"


@pytest.mark.parametrize(
    ("value", "forbidden"),
    [
        ("search=yes, ai-train=no", True),
        ("train-ai=n", True),
        ("Train-AI = N;exp=1, search=y", True),
        ("search=no, ai-train=yes", False),
        ("ai-input=no", False),
        ("", False),
    ],
)
def test_content_signals(value: str, forbidden: bool) -> None:
    expected = {Reason.NO_AI} if forbidden else set()
    assert header_opt_outs({"content-usage": value}) == expected
    assert header_opt_outs({"content-signal": value}) == expected


@pytest.mark.parametrize("content", ["noindex nofollow", "noai; noimageai", "NoAI,NoImageAI"])
def test_directives_are_separated_by_whatever_sites_write(content: str) -> None:
    assert meta_opt_outs([("robots", content)])


def test_signals_of_robots_txt_by_group_and_path() -> None:
    text = (
        "User-agent: *\nContent-Signal: search=yes, ai-train=no\nDisallow: /private\n\n"
        "User-agent: other\nContent-Usage: train-ai=y\n"
    )
    assert signals_forbid(robots_signals(text), "http://a.org/x")
    paths = "User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /open train-ai=y\n"
    signals = robots_signals(paths)
    assert signals_forbid(signals, "http://a.org/x")
    assert not signals_forbid(signals, "http://a.org/open/x")
    own = "User-agent: *\nContent-Usage: train-ai=n\n\n"
    own += "User-agent: vlmill\nContent-Usage: train-ai=y\n"
    assert not signals_forbid(robots_signals(own), "http://a.org/x")
    assert robots_signals("<html>Content-Signal</html>") == []
