"""A generated web: pages of a given size as journals have them, and their images."""

import gzip
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

SUBJECTS = (
    "the old harbour,a wooden bridge,the market square,a red fox,our neighbour,the chef,a small "
)
SUBJECTS += "boat,the lighthouse,a herd of sheep,the night train,a stone church,the mountain hut"
VERBS = "stands beside,is seen from,looks across,was built near,passes behind,lies between,leads to"
PLACES = (
    "the river in early spring,the village where we stayed,a field of barley,the northern coast,"
)
PLACES += "the road that leads to the lake,the garden of the museum,a quiet valley,the city walls"
MONTHS = ("January", "March", "May", "July", "September", "November")
IMAGES_PER_PAGE = 3  # that the archive holds, where images are asked for
WIDTH, HEIGHT = 400, 320
RULES = "".join(f".c{i}{{margin:0 auto;padding:{i}px}}" for i in range(75))
DISTINCT = 64  # images that look different; each page's have bytes of their own


@dataclass(frozen=True, kw_only=True)
class Web:
    """How much of it: so many pages of about ``page_bytes``, ``pages_per_site`` on each host."""

    pages: int
    page_bytes: int = 20_000
    pages_per_site: int = 50
    images: bool = False
    seed: int = 0


def write_archives(folder: Path, web: Web, archives: int) -> list[Path]:
    """Writes the web as so many archives, a gzip member each record."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(archives):
        path = folder / f"{number:04d}.warc.gz"
        with path.open("wb") as file:
            for page in range(number, web.pages, archives):
                for record in page_records(web, page):
                    file.write(gzip.compress(record, 6, mtime=0))
        paths.append(path)
    return paths


def page_records(web: Web, number: int) -> Iterator[bytes]:
    """The records of a page: itself, and its images if the web has any."""
    host = f"http://site-{number // web.pages_per_site}.example"
    yield record(f"{host}/{number}.html", "text/html; charset=utf-8", html(web, number))
    if web.images:
        for at in range(IMAGES_PER_PAGE):
            yield record(f"{host}/p/{number}-{at}.jpg", "image/jpeg", image(number, at))


def record(url: str, content_type: str, body: bytes) -> bytes:
    """A response as a crawler writes it."""
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    block = http.encode() + body
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\n"
        "WARC-Date: 2020-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:0>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def html(web: Web, number: int) -> bytes:
    """A page with a menu, paragraphs, figures and a related page.

    Of 600 real pages of 19 sites, scaled to 20 KB, the means are 199 elements, 3.7 images and
    27 % text by bytes; here they are 187, 5 and 24 %.
    """
    rng = random.Random(web.seed * 1_000_003 + number)
    menu = "".join(
        f"<li class='menu-item menu-item-{i}'><a href='/topics/{i}.html'>Topic {i}</a></li>"
        for i in range(12)
    )
    parts = [
        f"<!doctype html><html lang=en><head><title>{sentence(rng)} - Our journal</title>"
        "<meta name=description content='A journal of walks'><link rel=stylesheet href=/s.css>"
        f"<style>{RULES}</style></head><body class=home><header><img src=/logo.png alt=Logo>"
        f"<ul class='menu main'>{menu}</ul></header><main><article><h1>{sentence(rng)}</h1>"
    ]
    size, at = len(parts[0]), 0
    while size < web.page_bytes - 1_000:
        text = " ".join(sentence(rng) for _ in range(rng.randint(2, 4)))
        more = (
            f"<p class='entry-footer has-small-font-size'><a class='more-link button' rel=bookmark "
            f"href='https://journal.example/2020/05/{at}/a-walk-along-the-coast-{number}/' "
            f"title='Continue'>Read <b>more</b></a></p>"
        )
        part = (
            f"<div class='row c{at} entry block-group is-layout-flow' id='block-{at}'>"
            f"<p class='has-text-align-left has-medium-font-size' data-block='{at}-{number}' "
            f"style='margin-top:0;margin-bottom:var(--spacing-40)'>{text}</p>{more}</div>"
        )
        if at % 10 == 0:
            part += (
                f"<figure><img src='/p/{number}-{at // 10}.jpg' width={WIDTH} height={HEIGHT} "
                f"alt='{caption(rng)}'><figcaption>{caption(rng)}</figcaption></figure>"
            )
        parts.append(part)
        size, at = size + len(part), at + 1
    related = "<a href=/1><img src=/t/1.png width=60 height=60></a>"
    parts.append(f"</article></main><aside>{related}</aside><footer>All rights</footer></html>")
    return "".join(parts).encode()


def sentence(rng: random.Random) -> str:
    """A sentence in English."""
    subject, verb, place = (rng.choice(words.split(",")) for words in (SUBJECTS, VERBS, PLACES))
    return f"{subject.capitalize()} {verb} {place}."


def caption(rng: random.Random) -> str:
    """A sentence with a date: so many differ that images rarely share one."""
    day, month, year = rng.randint(1, 28), rng.choice(MONTHS), rng.randint(1850, 2020)
    return f"{sentence(rng)[:-1]} on {day} {month} {year}."


def image(number: int, at: int) -> bytes:
    """A JPEG whose bytes no other page has."""
    plain = _image((number * IMAGES_PER_PAGE + at) % DISTINCT)
    comment = f"{number} {at}".encode()
    return plain[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + plain[2:]


@lru_cache(maxsize=DISTINCT)
def _image(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8))
    out = io.BytesIO()
    coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
    return out.getvalue()
