"""robots.txt by RFC 9309: what a site lets us fetch, and how fast."""

from dataclasses import dataclass

from vlmill.schemas.net.opt_outs import AGENT

MAX_BYTES = 500 << 10
"""How much of a robots.txt is read (RFC 9309, 2.5: at least 500 KiB)."""


@dataclass(frozen=True, kw_only=True)
class Robots:
    """What a site's robots.txt says to us; cheap to make again from (status, content)."""

    crawl_delay: float | None = None  # seconds between two requests, where it asks for some

    def allows(self, url: str) -> bool:
        """Returns whether we may fetch ``url``, a URL of this site as ``urls.resolve`` gives it."""
        raise NotImplementedError


def robots_url(url: str) -> str:
    """Returns the address of the robots.txt that rules ``url``: of its scheme, host and port."""
    raise NotImplementedError


def read_robots(status: int, content: bytes, agent: str = AGENT) -> Robots:
    """Returns what an answer to a request for robots.txt means (RFC 9309, 2.3.1).

    ``status`` 0 stands for no answer at all. 2xx: the rules of ``content``. 3xx (left over after
    five redirects) and 4xx: everything is allowed. 429, 5xx and no answer: nothing is.
    """
    raise NotImplementedError
