"""Returns the host and origin of a URL, and the bucket of a host."""

import hashlib
import re
from functools import lru_cache

MOST_BUCKETS = 1_000
_ORIGIN = re.compile(r"[a-z]+://([^/?#]*)")


def get_origin(url: str) -> str:
    """Returns the normalised scheme, host and port of an absolute URL, which share a robots.txt."""
    return _parts(url)[0]


def get_host(url: str) -> str:
    """Returns host and port of such a URL (no default port), which have one rate limit."""
    return _parts(url)[1]


def is_same_site(host: str, other: str) -> bool:
    """Returns whether one host's name ends with the other's, as ``www.a.org`` with ``a.org``."""
    return host == other or host.endswith(f".{other}") or other.endswith(f".{host}")


def _parts(url: str) -> re.Match[str]:
    parts = _ORIGIN.match(url)
    assert parts is not None, f"{url} is not an absolute URL"
    return parts


@lru_cache(maxsize=65_536)
def assign_bucket(host: str, buckets: int) -> int:
    """Returns the bucket of a host, the same on every machine.

    Ports and ``www.`` are ignored: redirects between such hosts are frequent.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    digest = hashlib.blake2b(name.removeprefix("www.").encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets
