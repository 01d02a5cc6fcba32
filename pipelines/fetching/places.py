"""What a URL's host and origin are, and which bucket a host belongs to."""

import hashlib
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(maxsize=4_096)
def _split(head: str) -> str:
    return urlsplit(head).netloc.rpartition("@")[2]


def origin_of(url: str) -> str:
    """Scheme, host and port of an absolute URL: what one robots.txt is for."""
    return url[: _end_of_host(url)]


def host_of(url: str) -> str:
    """Host and port of an absolute URL (a default port is left out): what one rate is for."""
    return _split(origin_of(url))


def _end_of_host(url: str) -> int:
    start = url.index("://") + 3
    ends = (end for mark in "/?#" if (end := url.find(mark, start)) >= 0)
    return min(ends, default=len(url))


def bucket_of(host: str, buckets: int) -> int:
    """The bucket of a host, the same on every machine.

    Ports do not count, nor does ``www.``: between such hosts redirects are frequent.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    digest = hashlib.blake2b(name.removeprefix("www.").encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets
