"""Reads the proxies of the environment: ``http_proxy``, ``https_proxy``, ``all_proxy`` and so on.

A proxy resolves names itself, so the client cannot check the address of the connection. It still
refuses addresses, and names that resolve here, if they are not of the web.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from urllib.request import proxy_bypass_environment as is_excluded  # type: ignore[attr-defined]

from vlmill.schemas.errors import InputError

SCHEMES = ("http", "https", "socks5h")


@dataclass(frozen=True, kw_only=True)
class Proxies:
    """Holds the proxy of each scheme, and the hosts that are connected to without one."""

    by_scheme: tuple[tuple[str, str], ...]
    excluded: str = ""

    def choose(self, url: str) -> str | None:
        """Returns the proxy for a normalised URL, None for a direct connection."""
        scheme, _, rest = url.partition("://")
        proxies = dict(self.by_scheme)
        proxy = proxies.get(scheme) or proxies.get("all")
        if proxy is None:
            return None
        host = rest.partition("/")[0]
        return None if is_excluded(host, {"no": self.excluded}) else proxy


def read_proxies() -> Proxies | None:
    """Returns the proxies of the environment, None without any.

    Raises InputError for a proxy that is not a URL of a supported scheme.
    """
    variables = getproxies_environment()
    excluded = variables.pop("no", "")
    proxies = {
        name: _check(name, variables[name])
        for name in ("http", "https", "all")
        if (variables.get(name))
    }
    return Proxies(by_scheme=tuple(sorted(proxies.items())), excluded=excluded) if proxies else None


def _check(name: str, value: str) -> str:
    url = value if "://" in value else f"http://{value}"
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        known = ", ".join(f"{scheme}://HOST:PORT" for scheme in SCHEMES)
        shown = url.rpartition("@")[2][:80]  # without a password
        raise InputError(f"{name}_proxy is {shown}; give {known}, or unset the variable")
    return url
