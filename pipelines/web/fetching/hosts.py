"""What a URL's host and origin are, and which bucket a host belongs to."""

import hashlib
import re
from functools import lru_cache

_ORIGIN = re.compile(r"[a-z]+://([^/?#]*)")


def get_origin(url: str) -> str:
    """Scheme, host and port of an absolute URL in one spelling: what one robots.txt is for."""
    return _parts(url)[0]


def get_host(url: str) -> str:
    """Host and port of such a URL (a default port is left out): what one rate is for."""
    return _parts(url)[1]


def is_same_site(host: str, other: str) -> bool:
    """Says whether one host's name ends with the other's, as ``www.a.org`` with ``a.org``."""
    return host == other or host.endswith(f".{other}") or other.endswith(f".{host}")


def _parts(url: str) -> re.Match[str]:
    parts = _ORIGIN.match(url)
    assert parts is not None, f"{url} is no absolute URL"
    return parts


@lru_cache(maxsize=65_536)
def assign_bucket(host: str, buckets: int) -> int:
    """Returns the bucket of a host, the same on every machine.

    Ports do not count, nor does ``www.``: between such hosts redirects are frequent.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    digest = hashlib.blake2b(name.removeprefix("www.").encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets
