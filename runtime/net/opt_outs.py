"""Reads the opt-outs of site owners for pages and images from headers and metadata.

These are ``X-Robots-Tag`` and ``<meta name="robots">`` (noai, noimageai, noml, noindex,
noimageindex, none), the TDM Reservation Protocol (``tdm-reservation`` as a header and as metadata,
and a site's ``/.well-known/tdmrep.json``), and statements about training in headers and robots.txt
(``Content-Signal: ai-train=no``, ``Content-Usage: train-ai=n``). Every function is pure and returns
members of ``Reason``; the caller decides whether to honour them.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from vlmill.schemas.rejects import Reason

AGENT = "vlmill"
"""Our product token: rules that name another agent are not for us."""

MAX_TDMREP_BYTES = 1 << 20

_DIRECTIVES: dict[str, tuple[Reason, ...]] = {
    "noai": (Reason.NO_AI,),
    "noml": (Reason.NO_AI,),
    "noimageai": (Reason.NO_IMAGE_AI,),
    "noindex": (Reason.NO_INDEX,),
    "none": (Reason.NO_INDEX,),  # noindex and nofollow in one word
    "noimageindex": (Reason.NO_IMAGE_INDEX,),
}
# Directives with a value, whose name would be read as an agent's.
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_AGENT = re.compile(r"\s*([A-Za-z0-9_.*-]{1,64})\s*:(.*)", re.DOTALL)
_MAX_CHARS = 8_192
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_RESERVED_FIRST = (
    Reason.TDM_RESERVED,
    Reason.NO_AI,
    Reason.NO_IMAGE_AI,
    Reason.NO_INDEX,
    Reason.NO_IMAGE_INDEX,
)


def header_opt_outs(headers: Mapping[str, str], agent: str = AGENT) -> frozenset[Reason]:
    """Returns the opt-outs in the headers of a response, whose names are in lower case.

    Repeated headers may be joined by commas or line ends.
    """
    robots = headers.get("x-robots-tag")
    reserved = headers.get("tdm-reservation")
    usage = headers.get("content-usage") or headers.get("content-signal")
    if robots is None and reserved is None and usage is None:
        return frozenset()
    opt_outs = {r for line in (robots or "").split("\n") for r in _robots(line, agent)}
    if usage is not None and forbids_training(usage):
        opt_outs.add(Reason.NO_AI)
    return frozenset(opt_outs | _reserved(reserved))


_USAGE = re.compile(r"([a-z][a-z-]*)\s*=\s*([a-z?0-9]+)")
_TRAINING = frozenset(("ai-train", "train-ai", "train-genai", "ai-training", "genai"))
_NO = frozenset(("n", "no", "?0"))


def forbids_training(usage: str) -> bool:
    """Returns whether a value of Content-Signal or Content-Usage forbids training models.

    ``ai-train=no`` (Cloudflare's Content Signals), ``train-ai=n`` (IETF AIPREF).
    """
    pairs = _USAGE.findall(usage[:_MAX_CHARS].lower())
    return any(name in _TRAINING and value in _NO for name, value in pairs)


_SIGNAL = re.compile(r"\s*content-(?:signal|usage)\s*:\s*(?:(/\S*)\s+)?([^#]*)", re.IGNORECASE)
_AGENT_LINE = re.compile(r"\s*user-?agent\s*:\s*([^#\s]*)", re.IGNORECASE)


def robots_signals(text: str, agent: str = AGENT) -> list[tuple[str, bool]]:
    """Returns the statements of a robots.txt about training: (pattern of paths, whether it is
    forbidden).

    Statements of the group for ``agent`` count, else those for all robots; statements before the
    first group are for all.
    """
    agent_rules: list[tuple[str, bool]] = []
    general_rules: list[tuple[str, bool]] = []
    names, in_names = {"*"}, False
    for line in text.splitlines():
        if group := _AGENT_LINE.match(line):
            names = (names if in_names else set()) | {group[1].lower()}
            in_names = True
        elif signal := _SIGNAL.match(line):
            in_names = False
            if any(name in _TRAINING for name, _ in _USAGE.findall(signal[2].lower())):
                rule = signal[1] or "/", forbids_training(signal[2])
                if agent in names:
                    agent_rules.append(rule)
                elif "*" in names:
                    general_rules.append(rule)
        elif line.strip() and not line.lstrip().startswith("#"):
            in_names = False
    return agent_rules or general_rules


def signals_forbid(signals: Iterable[tuple[str, bool]], url: str) -> bool:
    """Returns whether signals of a robots.txt forbid training on ``url``; the longest path wins."""
    parts = urlsplit(url)
    path = _decode_escapes(parts.path + (f"?{parts.query}" if parts.query else ""))
    rules = [
        (len(pattern), forbidden)
        for pattern, forbidden in signals
        if _matches(_decode_escapes(pattern), path)
    ]
    return max(rules)[1] if rules else False


def meta_opt_outs(elements: Iterable[tuple[str, str]], agent: str = AGENT) -> frozenset[Reason]:
    """Returns the opt-outs in a page's metadata: (name, content) of its ``<meta>`` elements."""
    opt_outs: set[Reason] = set()
    for name, content in elements:
        name = name.strip().lower()
        if name in ("robots", agent):
            opt_outs.update(_robots(content, agent))
        elif name == "tdm-reservation":
            opt_outs.update(_reserved(content))
    return frozenset(opt_outs)


def first_opt_out(opt_outs: Iterable[Reason]) -> Reason | None:
    """Returns the reason under which a reject is counted: rights before indexes, or None."""
    present = frozenset(opt_outs)
    return next((reason for reason in _RESERVED_FIRST if reason in present), None)


def _robots(value: str, agent: str) -> Iterator[Reason]:
    """Yields the opt-outs in a list of directives; ``bot: a, b`` applies to that bot only.

    Commas separate directives; sites also write semicolons and spaces.
    """
    is_ours = True
    for token in re.split("[,;]", value[:_MAX_CHARS]):
        scoped = _AGENT.fullmatch(token)
        if scoped and scoped[1].lower() in _VALUED:
            continue
        if scoped:
            is_ours = scoped[1].lower() in ("*", agent)
            token = scoped[2]
        if is_ours:
            for word in token.lower().split():
                yield from _DIRECTIVES.get(word, ())


def _reserved(value: str | None) -> set[Reason]:
    return {Reason.TDM_RESERVED} if (value or "").strip() == "1" else set()


def tdmrep_url(url: str) -> str:
    """Returns the address of the tdmrep.json that applies to ``url``: that of its origin."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/.well-known/tdmrep.json"


def tdmrep_reserves(content: bytes, url: str) -> bool:
    """Returns whether a site's tdmrep.json reserves the rights to mine ``url``.

    The file is a list of rules with ``location``, a pattern as in robots.txt, and
    ``tdm-reservation``; the first rule that matches the path applies (TDM Reservation Protocol,
    "TDM File on the Origin Server"). An invalid file, or one above ``MAX_TDMREP_BYTES``, reserves
    nothing. A page's own header or metadata may still reserve: any one of several declarations is
    enough.
    """
    parts = urlsplit(url)
    path = _decode_escapes(parts.path + (f"?{parts.query}" if parts.query else ""))
    for rule in _rules(content):
        location, reserved = rule.get("location"), rule.get("tdm-reservation")
        if isinstance(location, str) and _matches(_decode_escapes(location), path):
            return reserved in (1, "1") and reserved is not True
    return False


def _rules(content: bytes) -> list[dict[str, object]]:
    if len(content) > MAX_TDMREP_BYTES:
        return []
    try:
        rules = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []


def _decode_escapes(path: str) -> str:
    """Decodes unnecessary escapes, so that ``/%61`` and ``/a`` are the same path."""
    return _ESCAPE.sub(lambda m: _plain(int(m[1], 16)) or m[0].upper(), path)


def _plain(code: int) -> str | None:
    return (
        chr(code) if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "-._~") else None
    )


def _matches(pattern: str, path: str) -> bool:
    """Returns whether ``pattern`` matches the start of ``path``: ``*`` anything, ``$`` the end."""
    is_whole = pattern.endswith("$")
    first, *parts = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not parts:
        return not is_whole or path == first
    position = len(first)
    for part in parts[:-1]:
        position = path.find(part, position)
        if position < 0:
            return False
        position += len(part)
    if is_whole:
        return len(path) - len(parts[-1]) >= position and path.endswith(parts[-1])
    return path.find(parts[-1], position) >= 0
