"""Reads lists of domains and URLs whose pages are dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vlmill.runtime.net.urls import resolve
from vlmill.schemas.errors import InputError

MAX_LIST_BYTES = 256 << 20  # the largest public lists of domains have 100 MB
FLAG = "--blocked-pages"


@dataclass(frozen=True)
class BlockedPages:
    """Holds domains, each with its subdomains, and prefixes of URLs without their scheme."""

    domains: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()

    def find_block(self, url: str) -> str | None:
        """Returns the entry that blocks a page's URL, or None."""
        host = urlsplit(url).hostname or ""
        while self.domains and host:
            if host in self.domains:
                return host
            host = host.partition(".")[2]
        if self.prefixes:
            rest = _without_scheme(url)
            for end in (len(rest), *(n + 1 for n, c in enumerate(rest) if c in "/?")):
                if rest[:end] in self.prefixes:
                    return rest[:end]
        return None


NO_BLOCKED_PAGES = BlockedPages()


def read_blocked_pages(paths: Sequence[str]) -> BlockedPages:
    """Reads files of one domain or URL per line; ignores empty lines and text after #.

    A URL blocks the page of that URL, and with a final ``/`` everything below it. Raises InputError
    for a file that cannot be read, and for a line that is neither a domain nor a URL.
    """
    domains, prefixes = set[str](), set[str]()
    for path in paths:
        try:
            if (size := Path(path).stat().st_size) > MAX_LIST_BYTES:
                raise ValueError(f"it has {size} bytes, limit {MAX_LIST_BYTES}")
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise InputError(f"{FLAG} {path}: {error}; give one domain or URL per line") from None
        for number, line in enumerate(text.splitlines(), 1):
            entry = line.partition(" #")[0].strip()
            if not entry or entry.startswith("#"):
                continue
            url = resolve("", entry if "://" in entry else f"http://{entry}")
            if url is None:
                raise InputError(
                    f"{FLAG} {path}: line {number} is neither a domain nor a URL: {entry[:60]!r}"
                )
            rest = _without_scheme(url)
            if rest.rstrip("/") == urlsplit(url).netloc:
                domains.add((urlsplit(url).hostname or "").removeprefix("www."))
            else:
                prefixes.add(rest)
    return BlockedPages(frozenset(domains), frozenset(prefixes))


def _without_scheme(url: str) -> str:
    return url.split("://", 1)[-1].removeprefix("www.")
