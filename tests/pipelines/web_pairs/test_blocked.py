"""Lists of domains and URLs whose pages are kept out."""

from pathlib import Path

import pytest

from vlmill.pipelines.web_pairs.blocked import BlockedPages, read_blocked_pages
from vlmill.schemas.errors import InputError


@pytest.fixture
def blocked(tmp_path: Path) -> BlockedPages:
    lines = "# spam\nspam.org\nhttps://www.b.org/ads/\nb.org/one.html # a page\n\n"
    (tmp_path / "list").write_text(lines)
    return read_blocked_pages([str(tmp_path / "list")])


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("http://spam.org/", "spam.org"),
        ("https://www.shop.spam.org/x?y", "spam.org"),
        ("http://notspam.org/", None),
        ("http://b.org/ads/1.html", "b.org/ads/"),
        ("https://www.b.org/one.html", "b.org/one.html"),
        ("http://b.org/one.html5", None),
        ("http://b.org/", None),
    ],
)
def test_domains_and_beginnings_of_urls(blocked: BlockedPages, url: str, entry: str | None) -> None:
    assert blocked.find_block(url) == entry


def test_a_line_that_is_neither_is_named(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("spam.org\nnot a domain\n")
    with pytest.raises(InputError, match=r"list: line 2 .*not a domain"):
        read_blocked_pages([str(tmp_path / "list")])
    with pytest.raises(InputError, match="--blocked-pages"):
        read_blocked_pages([str(tmp_path / "absent")])
