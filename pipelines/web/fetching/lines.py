"""Parses lines of a list of URLs, each into a URL to fetch or the reason for dropping it."""

import re

from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.stages import FETCH_LISTED
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import MAX_KEY, Reason

Line = tuple[str, UrlEntry | Drop]
"""A line of a list of URLs, and what it asks for"""
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


def parse_url_line(line: str, follow: int) -> Line:
    """Returns a line's normalised URL, or why it is not a URL."""
    url = resolve("", line) if len(line) <= MAX_KEY else None
    if url is not None and len(url) <= MAX_KEY:
        return line, UrlEntry(url=url, source=FETCH_LISTED.name, follow=follow)
    return line[:MAX_KEY], Drop(Reason.BAD_URL, _fault(line))


def _fault(line: str) -> str:
    if len(line) > MAX_KEY // 3:
        return f"longer than {MAX_KEY} characters when it is encoded"
    if not _SCHEME.match(line):
        return "no scheme: http:// or https:// must begin it"
    return "no http(s) URL"
