"""Reads robots.txt by RFC 9309: which URLs a site allows us to request, and how fast.

Protego reads the rules. Before that, groups of other robots are merged: each group needs memory for
its lines times its robots, so half a megabyte of names and rules could become gigabytes.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from protego import Protego

from vlmill.runtime.net.opt_outs import AGENT, robots_signals, signals_forbid

MAX_BYTES = 500 << 10
"""How much of a robots.txt is read (RFC 9309, 2.5: at least 500 KiB)."""

_MAX_LINES = 10_000  # the largest files have a few thousand; each is tried on each URL
_GROUP = re.compile(r"\s*user[- ]?agent\s*:?\s*([^#]*)", re.IGNORECASE)
_TOKEN = re.compile(r"[a-z_-]+")
_OTHER = "another-robot"


@dataclass(frozen=True, kw_only=True)
class Robots:
    """Holds the rules of a site's robots.txt for this client."""

    crawl_delay: float | None = None  # seconds between two requests; any number from 0 on
    is_closed: bool = False  # nothing may be fetched: the file was not available
    rules: Protego | None = field(default=None, repr=False)
    agent: str = AGENT
    signals: tuple[tuple[str, bool], ...] = ()  # see opt_outs.robots_signals

    def forbids_training(self, url: str) -> bool:
        """Returns whether the site forbids training models on ``url``."""
        return signals_forbid(self.signals, url)

    def allows(self, url: str) -> bool:
        """Returns whether we may fetch ``url``, a URL of this site from ``urls.resolve``."""
        if self.is_closed:
            return False
        return self.rules is None or self.rules.can_fetch(url, self.agent)


def robots_url(url: str) -> str:
    """Returns the address of the robots.txt for ``url``: that of its scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/robots.txt"


def read_robots(status: int, content: bytes, agent: str = AGENT) -> Robots:
    """Returns the meaning of an answer to a request for robots.txt (RFC 9309, 2.3.1).

    ``status`` 0 means no answer. 2xx: the rules of ``content``, up to ``MAX_BYTES``. 3xx (after
    five redirects) and 4xx: everything is allowed. 429, 5xx and no answer: nothing is allowed.
    """
    if status < 200 or status == 429 or status >= 500:
        return Robots(is_closed=True, agent=agent)
    if status >= 300:
        return Robots(agent=agent)
    text = content[:MAX_BYTES].decode("utf-8-sig", "replace")
    rules = Protego.parse("\n".join(_lines(text, agent)))
    signals = tuple(robots_signals(text, agent))
    return Robots(crawl_delay=_delay(rules, agent), rules=rules, agent=agent, signals=signals)


def _delay(rules: Protego, agent: str) -> float | None:
    """Returns the pause in seconds of ``Crawl-delay`` or ``Request-rate``, the longer of both."""
    rate = rules.request_rate(agent)
    delays = [rules.crawl_delay(agent), rate and rate.seconds / rate.requests]
    return max((delay for delay in delays if delay is not None), default=None)


def _lines(text: str, agent: str) -> list[str]:
    """Returns the file's lines, its robots named ``agent``, ``*`` or, all others, ``_OTHER``.

    A robot's name is its letters at the start (RFC 9309, 2.2.1): ``vlmill/1.0`` is ours.
    """
    lines = []
    for line in text.splitlines()[:_MAX_LINES]:
        if group := _GROUP.match(line):
            name = group[1].strip().lower()
            token = _TOKEN.match(name)
            group_agent = "*" if name.startswith("*") else _OTHER
            lines.append(f"User-agent: {agent if token and token[0] == agent else group_agent}")
        else:
            lines.append(line)
    return lines
