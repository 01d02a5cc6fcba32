import pytest

from vlmill.schemas.net.opt_outs import (
    first_opt_out,
    header_opt_outs,
    meta_opt_outs,
)
from vlmill.schemas.rejects import Reason

AI, IMAGE_AI, INDEX, IMAGE_INDEX, TDM = (
    Reason.NO_AI,
    Reason.NO_IMAGE_AI,
    Reason.NO_INDEX,
    Reason.NO_IMAGE_INDEX,
    Reason.TDM_RESERVED,
)


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
