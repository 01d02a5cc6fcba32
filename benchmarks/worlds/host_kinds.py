"""The kinds of hosts of the generated web, and what must come of each of their URLs.

Every kind of robots.txt, of opt-out, of redirect and of failure has a host of its own; all others
are plain ones with a page and images of every format.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from worlds.hosts import (
    FETCHED,
    FORMATS,
    GIANT,
    PAGE,
    REDIRECTED,
    Expected,
    Reply,
    Site,
    gzip_bomb,
    image,
    page,
    redirect,
    response,
    robots,
    shown,
)


def make_site(port: int, num_hosts: int = 50) -> Site:
    """Returns the web of ``num_hosts`` hosts that listen on ``port``, the same every time."""
    assert len(KINDS) <= num_hosts <= 200
    site = Site(port=port, num_hosts=num_hosts)
    for host in range(num_hosts):
        make = KINDS[host] if host < len(KINDS) else plain
        site.kinds[host] = make.__name__
        make(site, host)
    site.add(num_hosts, "/a.jpg", "no_connection")  # where nobody listens
    for url, outcome in STRANGE.items():
        site.expected.append(Expected(url=url, outcome=outcome))
    return site


def plain(site: Site, host: int) -> None:
    """A page with an image of every format, and one image that is listed itself."""
    paths = [f"/p/{host}-{at}.{kind.lower()}" for at, kind in enumerate(FORMATS)]
    index = site.add(host, "/index.html", FETCHED, response(page(paths), headers=PAGE))
    for at, (path, kind) in enumerate(zip(paths, FORMATS, strict=True)):
        site.add(host, path, FETCHED, shown(kind, 100 * host + at), referrer=index)
    site.add(host, "/listed.jpg", FETCHED, shown(seed=100 * host + 50))
    site.add(host, "/missing.jpg", "bad_status")


def robots_close_all(site: Site, host: int) -> None:
    """Nobody may fetch anything."""
    robots(site, host, "User-agent: *\nDisallow: /\n")
    site.add(host, "/a.jpg", "robots", shown(seed=host))


def robots_close_us(site: Site, host: int) -> None:
    """We may not, others may."""
    robots(site, host, "User-agent: *\nAllow: /\n\nUser-agent: VLMILL/2\nDisallow: /\n")
    site.add(host, "/a.jpg", "robots", shown(seed=host))


def robots_open_us(site: Site, host: int) -> None:
    """Nobody may but us."""
    robots(site, host, "User-agent: vlmill\nAllow: /\n\nUser-agent: *\nDisallow: /\n")
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def robots_mixed(site: Site, host: int) -> None:
    """A folder is closed, one file in it is not; the longer rule wins."""
    robots(site, host, "User-agent: *\nDisallow: /private\nAllow: /private/open.jpg\n")
    paths = ["/private/a.jpg", "/private/open.jpg", "/b.jpg"]
    index = site.add(host, "/", FETCHED, response(page(paths), headers=PAGE))
    for path, outcome in zip(paths, ("robots", FETCHED, FETCHED), strict=True):
        site.add(host, path, outcome, shown(seed=host), referrer=index)


def robots_wildcards(site: Site, host: int) -> None:
    """Patterns, behind a byte order mark and with the line ends of Windows."""
    robots(site, host, "\ufeffUser-agent: *\r\nDisallow: /*.png$\r\nDisallow: /*?size=\r\n")
    site.add(host, "/a.png", "robots", shown("PNG", host))
    site.add(host, "/a.png?x", FETCHED, shown("PNG", host))
    site.add(host, "/a.jpg?size=2", "robots", shown(seed=host))


def robots_delay(site: Site, host: int) -> None:
    """Asks for half a second between requests."""
    robots(site, host, "User-agent: *\nCrawl-delay: 0.5\n")
    for number in range(3):
        site.add(host, f"/{number}.jpg", FETCHED, shown(seed=host))


def robots_forbidden(site: Site, host: int) -> None:
    """Its robots.txt is forbidden, which allows all (RFC 9309, 2.3.1.3)."""
    site.replies[host, "/robots.txt"] = [response(status="403 Forbidden")]
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def robots_failing(site: Site, host: int) -> None:
    """Its robots.txt fails, which forbids all."""
    site.replies[host, "/robots.txt"] = [response(status="500 Oh")]
    site.add(host, "/a.jpg", "robots", shown(seed=host))


def robots_redirected(site: Site, host: int) -> None:
    """Its robots.txt is three redirects away."""
    for number, target in enumerate(("/r1", "/r2", "/rules")):
        path = "/robots.txt" if number == 0 else f"/r{number}"
        site.replies[host, path] = [redirect(target, "301 Moved")]
    site.replies[host, "/rules"] = [response(b"User-agent: *\nDisallow: /no\n")]
    site.add(host, "/no.jpg", "robots", shown(seed=host))
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def robots_endless(site: Site, host: int) -> None:
    """Its robots.txt redirects for ever, which allows all (RFC 9309, 2.3.1.2)."""
    site.replies[host, "/robots.txt"] = [redirect("/robots.txt")]
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def robots_huge(site: Site, host: int) -> None:
    """Of a robots.txt of 700 KB the first 500 KiB count."""
    rules = (
        "User-agent: *\nDisallow: /no\n" + "#" * (500 << 10) + "\nDisallow: /a\n" + "#" * 200_000
    )
    robots(site, host, rules)
    site.add(host, "/no.jpg", "robots", shown(seed=host))
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def robots_no_text(site: Site, host: int) -> None:
    """A page stands where robots.txt should: no rules."""
    robots(site, host, "<!doctype html><html><body>Not found</body></html>", headers=PAGE)
    site.add(host, "/a.jpg", FETCHED, shown(seed=host))


def opt_out_headers(site: Site, host: int) -> None:
    """Headers that forbid, and one that speaks to another robot."""
    for path, headers, outcome in (
        ("/noai.jpg", {"X-Robots-Tag": "noindex, noai"}, "no_ai"),
        ("/noimageai.jpg", {"X-Robots-Tag": "vlmill: noimageai"}, "no_image_ai"),
        ("/noindex.jpg", {"X-Robots-Tag": "noindex"}, "no_index"),
        ("/reserved.jpg", {"TDM-Reservation": "1"}, "tdm_reserved"),
        ("/other.jpg", {"X-Robots-Tag": "otherbot: noai"}, FETCHED),
    ):
        site.add(host, path, outcome, shown(seed=host, headers=headers))


def opt_out_metadata(site: Site, host: int) -> None:
    """Pages that forbid; their images are not asked for."""
    for path, name, content, outcome in (
        ("/noai.html", "robots", "noai, noimageai", "no_ai"),
        ("/tdm.html", "tdm-reservation", "1", "tdm_reserved"),
    ):
        body = page(["/never.jpg"], f'<meta name="{name}" content="{content}">')
        site.add(host, path, outcome, response(body, headers=PAGE))


def opt_out_tdmrep(site: Site, host: int) -> None:
    """A tdmrep.json that reserves a folder, one of its files excepted."""
    rules = [("/art/free", 0), ("/art/*.jpg", 1)]
    entries = [{"location": place, "tdm-reservation": value} for place, value in rules]
    body = json.dumps(entries).encode()
    site.replies[host, "/.well-known/tdmrep.json"] = [
        response(body, headers={"Content-Type": "application/json"})
    ]
    site.add(host, "/art/a.jpg", "tdm_reserved", shown(seed=host))
    site.add(host, "/art/free.jpg", FETCHED, shown(seed=host))
    site.add(host, "/b.jpg", FETCHED, shown(seed=host))


def redirects(site: Site, host: int) -> None:
    """To itself and to other hosts, in a chain, in circles, inside, and to nothing."""
    last = len(KINDS)  # a plain host
    one = site.add(host, "/here", REDIRECTED, redirect("/there.jpg", "301 Moved"))
    site.add(host, "/there.jpg", FETCHED, shown(seed=host), referrer=one)
    away = site.add(host, "/away", REDIRECTED, redirect(site.url(last, "/target.jpg")))
    site.add(last, "/target.jpg", FETCHED, shown(seed=host), referrer=away)
    closed = site.add(host, "/closed", REDIRECTED, redirect(site.url(0, "/from.jpg")))
    site.add(0, "/from.jpg", "robots", shown(seed=host), referrer=closed)
    inside = site.add(host, "/inside", REDIRECTED, redirect("http://10.0.0.1/a.jpg"))
    site.expected.append(
        Expected(url="http://10.0.0.1/a.jpg", outcome="bad_address", referrer=inside)
    )
    site.add(host, "/file", "bad_url", redirect("file:///etc/passwd"))
    site.add(host, "/nowhere", "bad_url", response(status="302 Found"))
    before = None
    for number in range(6):
        outcome = REDIRECTED if number < 5 else "too_many_redirects"
        reply = redirect(f"/chain/{number + 1}")
        before = site.add(host, f"/chain/{number}", outcome, reply, referrer=before)


def statuses(site: Site, host: int) -> None:
    """Answers without content."""
    for status in ("404 Not Found", "410 Gone", "500 Oh", "204 No Content"):
        reply = Reply(sent=f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        site.add(host, f"/{status[:3]}", "bad_status", reply)
    site.add(host, "/empty.jpg", "empty", response(headers={"Content-Type": "image/jpeg"}))
    site.add(
        host, "/text.txt", "other_type", response(b"words", headers={"Content-Type": "text/plain"})
    )


def busy(site: Site, host: int) -> None:
    """Asks twice for a second's patience, then answers."""
    wait = response(status="429 Too Many Requests", headers={"Retry-After": "1"})
    site.add(host, "/a.jpg", FETCHED, wait, wait, shown(seed=host))


def unavailable(site: Site, host: int) -> None:
    """Is away once, then answers; it says for how long in fractions of a second."""
    wait = response(status="503 Oh", headers={"Retry-After": "0.2"})
    site.add(host, "/a.jpg", FETCHED, wait, shown(seed=host))


def never_available(site: Site, host: int) -> None:
    """Is away for ever, and never says how long."""
    site.add(host, "/a.jpg", "bad_status", response(status="503 Oh"))


def slow_drip(site: Site, host: int) -> None:
    """Sends a byte every 50 ms."""
    reply = response(b"\xff", length=100_000, then="drip", headers={"Content-Type": "image/jpeg"})
    site.add(host, "/a.jpg", "timed_out", reply, is_slow=True)


def slow_silent(site: Site, host: int) -> None:
    """Says nothing at all."""
    site.add(host, "/a.jpg", "timed_out", Reply(sent=b"", then="silent"), is_slow=True)


def too_large(site: Site, host: int) -> None:
    """10 GB by its own word, without a word, and when unpacked."""
    site.add(host, "/declared.jpg", "too_large", response(length=GIANT, then="endless"))
    site.add(
        host, "/endless.jpg", "too_large", Reply(sent=b"HTTP/1.1 200 OK\r\n\r\n", then="endless")
    )
    bomb = response(gzip_bomb(), headers={**PAGE, "Content-Encoding": "gzip"})
    site.add(host, "/bomb.html", "too_large", bomb)


def large_headers(site: Site, host: int) -> None:
    """A megabyte of headers, in one line and in many."""
    one = b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * (1 << 20) + b"\r\n\r\n"
    many = b"HTTP/1.1 200 OK\r\n" + b"X-A: aaaaaaaaaaaaaaaaaaaa\r\n" * 40_000 + b"\r\n"
    site.add(host, "/one.jpg", "headers_too_large", Reply(sent=one, then="close"))
    site.add(host, "/many.jpg", "headers_too_large", Reply(sent=many, then="close"))


def broken_framing(site: Site, host: int) -> None:
    """Chunks that are none, and what is not HTTP."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    good = chunked + b"3\r\n<p>\r\n0\r\n\r\n"
    site.add(
        host,
        "/chunked.html",
        FETCHED,
        Reply(sent=good.replace(b"200 OK\r\n", b"200 OK\r\nContent-Type: text/html\r\n")),
    )
    site.add(host, "/chunks.jpg", "bad_response", Reply(sent=chunked + b"zz\r\nabc", then="close"))
    site.add(host, "/junk.jpg", "bad_response", Reply(sent=b"SSH-2.0-x\r\n\r\n", then="close"))


def cut(site: Site, host: int) -> None:
    """Closes in the middle."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    site.add(host, "/body.jpg", "cut_off", Reply(sent=head + b"\xff" * 10, then="close"))
    site.add(host, "/head.jpg", "cut_off", Reply(sent=b"HTTP/1.1 200 OK\r\nX-", then="close"))
    site.add(host, "/reset.jpg", "cut_off", Reply(sent=b"", then="reset"))


def wrong_length(site: Site, host: int) -> None:
    """Sends more than it says, which is cut: there is no image in 4 bytes."""
    body = image(seed=host)
    site.add(host, "/short.jpg", FETCHED, response(body + b"junk", length=len(body), then="close"))


def lying_types(site: Site, host: int) -> None:
    """Names its images pages, its pages images, and both nothing at all."""
    site.add(host, "/a.html", FETCHED, shown(seed=host, headers=PAGE))
    index = site.add(
        host, "/b.jpg", FETCHED, response(page(["/c"]), headers={"Content-Type": "image/jpeg"})
    )
    site.add(host, "/c", FETCHED, response(image(seed=host + 1)), referrer=index)


KINDS: Sequence[Callable[[Site, int], None]] = (
    robots_close_all,
    robots_close_us,
    robots_open_us,
    robots_mixed,
    robots_wildcards,
    robots_delay,
    robots_forbidden,
    robots_failing,
    robots_redirected,
    robots_endless,
    robots_huge,
    robots_no_text,
    opt_out_headers,
    opt_out_metadata,
    opt_out_tdmrep,
    redirects,
    statuses,
    busy,
    unavailable,
    never_available,
    slow_drip,
    slow_silent,
    too_large,
    large_headers,
    broken_framing,
    cut,
    wrong_length,
    lying_types,
)
# What a list may hold besides; nothing of it reaches a server.
STRANGE: Mapping[str, str] = {
    "ftp://127.0.0.11/a.jpg": "bad_url",
    "127.0.0.11/no-scheme.jpg": "bad_url",
    "http://127.0.0.11/" + "a" * 100_000: "bad_url",
    "http://10.0.0.2/a.jpg": "bad_address",
    "http://[::ffff:10.0.0.2]/a.jpg": "bad_address",
    "http://2130706433/a.jpg": "bad_address",
    "http://no-such-host.invalid/a.jpg": "unknown_host",
}
