"""Builds the WARC archive of a static site from the git repository it is published from.

HTML and images are byte for byte as in the repository. Images over 600 KB are left out, so what
shows them is dead, as on a site crawled in part. The pages are a seeded draw: those with images
before those without, posts before lists. An image that pages name by several addresses has a
record under each of them.

Run: PYTHONPATH=benchmarks python -m labelled_sites.build --git DIR --url URL --out SITE.warc.gz
"""

import argparse
import gzip
import hashlib
import mimetypes
import os
import random
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urljoin, urlsplit

from labelled_sites.labels import read_labels

KB = 1 << 10
MAX_IMAGE = 600 * KB
MAX_READ = 800  # pages that are read to find those with images
MAX_USES = 8  # pages that name an image which is not one of the whole site
_PAGE = re.compile(r"\.html?$", re.IGNORECASE)
_IMAGE = re.compile(r"\.(?:jpe?g|png|gif|webp|bmp)$", re.IGNORECASE)
_LIST = re.compile(r"(?:^|/)(?:tags?|categor(?:y|ies)|archives?|page|search)/|(?:^|/)404")
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([A-Za-z0-9_-]+)", re.IGNORECASE)


def is_held_out(site: str) -> bool:
    """Whether a site (the archive's name without ``.warc.gz``) is kept away from every choice."""
    return int(hashlib.sha256(site.encode()).hexdigest(), 16) % 3 == 0


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of the repository."""

    object_id: str
    size: int


def list_files(git: Path, ref: str, root: str = "") -> dict[str, Blob]:
    """The files of a commit under a folder, by their path in it."""
    listed = _git(git, "ls-tree", "-r", "-l", "-z", ref).decode("utf-8", "replace")
    files = {}
    for line in filter(None, listed.split("\0")):
        facts, path = line.split("\t", 1)
        _, kind, object_id, size = facts.split()
        if kind == "blob" and size.isdigit() and path.startswith(root):  # BAD: not at hand
            files[path.removeprefix(root)] = Blob(object_id, int(size))
    return files


def read_blobs(git: Path, blobs: Sequence[Blob]) -> Iterator[bytes | None]:
    """The bytes of each, None for one that the snapshot lacks."""
    asked = "".join(f"{blob.object_id}\n" for blob in blobs).encode()
    answer = _git(git, "cat-file", "--batch", given=asked)
    at = 0
    for _ in blobs:
        end = answer.index(b"\n", at)
        head, at = answer[at:end].split(), end + 1
        if head[-1] == b"missing":
            yield None
            continue
        size = int(head[2])
        yield answer[at : at + size]
        at += size + 1


def _git(git: Path, *words: str, given: bytes | None = None) -> bytes:
    command = ["git", "-C", str(git), *words]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


class _References(HTMLParser):
    """Collects what looks like an image's address in any attribute, in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            several = "srcset" in name
            for one in value.split(",") if several else [value]:
                url = one.split()[0] if several and one.split() else one.strip()
                if _IMAGE.search(url.split("#")[0].split("?")[0]):
                    self.found[url] = None


def image_urls(html: bytes, page_url: str) -> list[str]:
    """The full addresses of images that a page names, each once, without fragments."""
    parser = _References()
    parser.feed(html.decode(_charset(html) or "utf-8", "replace"))
    urls = (urljoin(page_url, url.replace("\\", "/")).split("#")[0] for url in parser.found)
    return list(dict.fromkeys(quote(url, safe="%/:=&?~#+!$,;'@()*[]") for url in urls))


def _charset(html: bytes) -> str | None:
    stated = _CHARSET.search(html[: 4 * KB])
    for name in (stated.group(1).decode() if stated else "utf-8", "utf-8"):
        try:
            html.decode(name, "strict" if name == "utf-8" else "replace")
        except (LookupError, UnicodeDecodeError):
            continue
        return name
    return None


def _is_list(path: str) -> bool:
    return bool(_LIST.search(path))


def page_address(site_url: str, path: str) -> str:
    """``dir/index.html`` is served as ``dir/``."""
    folder = PurePosixPath(path)
    if folder.name in ("index.html", "index.htm"):
        path = "" if str(folder.parent) == "." else f"{folder.parent}/"
    return urljoin(site_url, quote(path))


@dataclass(frozen=True, slots=True)
class PageImages:
    """A page and its images that lie in the repository: (address, path)."""

    path: str
    images: Sequence[tuple[str, str]]


def draw_pages(
    pages: Sequence[PageImages],
    files: Mapping[str, Blob],
    *,
    first: Set[str],
    keep: Set[str],
    seed: int,
    most: int,
    budget: int,
) -> list[PageImages]:
    """``first``, then pages in a seeded order till ``most`` or the archive's bytes are used up.

    Of a page the images ``keep`` are packed, then the first ones, to a sixth of the archive (half
    of it for all of ``first``); 1 page of 10 may have none but those of many pages (logos).
    """
    left = budget
    uses = Counter(path for page in pages for path in {path for _, path in page.images})
    own = {page.path for page in pages if any(uses[p] <= MAX_USES for _, p in page.images)}
    shuffled = random.Random(seed).sample(list(pages), len(pages))
    shuffled.sort(key=lambda p: (p.path not in first, p.path not in own, _is_list(p.path)))
    drawn: list[PageImages] = []
    packed: set[str] = set()
    plain = 0
    for page in shuffled:
        plain += page.path not in own | first
        if page.path not in first and (len(drawn) == most or plain > max(2, most // 10)):
            break
        images, cost = [], 0
        share = budget // (2 * max(3, len(first))) if page.path in first else budget // 6
        for url, path in sorted(page.images, key=lambda image: image[0] not in keep):
            new = 0 if path in packed else files[path].size
            if url in keep or cost + new <= share:
                images.append((url, path))
                cost += new
        size = files[page.path].size // 4 + cost
        if size > left and page.path not in first:
            continue
        left -= size
        packed |= {path for _, path in images}
        drawn.append(PageImages(page.path, images))
    return drawn


def survey(
    git: Path, files: Mapping[str, Blob], paths: Sequence[str], url: str
) -> list[PageImages]:
    """The images of the repository that each page names."""
    host = urlsplit(url).netloc.removeprefix("www.")
    under = unquote(urlsplit(url).path)
    pages = []
    for path, html in zip(paths, read_blobs(git, [files[path] for path in paths]), strict=True):
        images = []
        for address in image_urls(html or b"", page_address(url, path)):
            parts = urlsplit(address)
            found = unquote(parts.path).removeprefix(under).lstrip("/")
            same = parts.netloc.removeprefix("www.") == host
            if same and 0 < files.get(found, Blob("", 0)).size <= MAX_IMAGE:
                images.append((address, found))
        if html is not None:
            pages.append(PageImages(path, images))
    return pages


def record(kind: str, url: str, body: bytes, mime: str, when: str) -> bytes:
    """A WARC record as a gzip member."""
    if kind == "response":
        http = f"HTTP/1.1 200 OK\r\nContent-Type: {mime}\r\nContent-Length: {len(body)}\r\n\r\n"
        body, mime = http.encode() + body, "application/http; msgtype=response"
    target = f"WARC-Target-URI: {url}\r\n" if kind == "response" else ""
    head = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\n{target}WARC-Date: {when}\r\n"
        f"WARC-Record-ID: <urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, kind + url)}>\r\n"
        f"Content-Type: {mime}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0)


def records(
    git: Path, files: Mapping[str, Blob], pages: Sequence[PageImages], url: str, when: str
) -> Iterator[bytes]:
    """The archive: a warcinfo, the pages, the images under each address that names them."""
    yield record("warcinfo", url, b"software: labelled_sites\r\n", "application/warc-fields", when)
    bodies = read_blobs(git, [files[page.path] for page in pages])
    for page, html in zip(pages, bodies, strict=True):
        charset = _charset(html or b"")
        mime = f"text/html; charset={charset}" if charset else "text/html"
        yield record("response", page_address(url, page.path), html or b"", mime, when)
    images = list(dict.fromkeys(one for page in pages for one in page.images))
    for (address, path), body in zip(
        images, read_blobs(git, [files[path] for _, path in images]), strict=True
    ):
        mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
        yield record("response", address, body or b"", mime, when)


def write(path: Path, members: Iterable[bytes]) -> None:
    """Writes an archive; it appears whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.writelines(members)
    os.replace(part, path)


def build(
    git: Path,
    url: str,
    out: Path,
    *,
    ref: str,
    root: str,
    skip: str,
    keep: Set[str],
    most: int,
    budget: int,
    seed: int,
) -> list[PageImages]:
    """Builds a site's archive, with the addresses ``keep`` in any case; its pages."""
    files = list_files(git, ref, root)
    skipped = re.compile(skip) if skip else None
    paths = [p for p in sorted(files) if _PAGE.search(p) and not (skipped and skipped.search(p))]
    random.Random(seed).shuffle(paths)
    first = {path for path in paths if keep and page_address(url, path) in keep}
    paths.sort(key=lambda path: (path not in first, _is_list(path)))
    surveyed = survey(git, files, paths[:MAX_READ], url)
    pages = draw_pages(surveyed, files, first=first, keep=keep, seed=seed, most=most, budget=budget)
    stamp = datetime.fromisoformat(_git(git, "log", "-1", "--format=%cI", ref).decode().strip())
    when = stamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    write(out, records(git, files, pages, url, when))
    return pages


def labelled_urls(labels: Path, archive: str) -> set[str]:
    """Addresses of an archive's labelled images and of the pages that show them."""
    own = [label for label in read_labels(labels) if label.archive == archive]
    return {url for label in own for url in (label.page_url, label.image_url)}


def main(argv: Sequence[str] | None = None) -> int:
    """Builds one archive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--git", type=Path, required=True, help="git directory of the site")
    parser.add_argument("--url", required=True, help="address of the site's root, with a slash")
    parser.add_argument("--out", type=Path, required=True, help="archive to write")
    parser.add_argument("--ref", default="HEAD", help="commit or branch with the pages")
    parser.add_argument(
        "--root", default="", help="folder of the repository that is served, such as docs/"
    )
    parser.add_argument("--skip", default="", help="pattern of paths of pages to leave out")
    parser.add_argument("--keep", type=Path, help="file of labels whose pages and images are kept")
    parser.add_argument("--pages", type=int, default=60, help="largest number of pages")
    parser.add_argument(
        "--megabytes", type=float, default=4.0, help="approximate size of the archive"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample of pages")
    options = parser.parse_args(argv)
    pages = build(
        options.git,
        options.url,
        options.out,
        ref=options.ref,
        root=options.root,
        skip=options.skip,
        keep=labelled_urls(options.keep, options.out.name) if options.keep else set(),
        most=options.pages,
        budget=int(options.megabytes * KB * KB),
        seed=options.seed,
    )
    images = {path for page in pages for _, path in page.images}
    shown = sum(bool(page.images) for page in pages)
    print(f"{options.out}: {len(pages)} pages ({shown} with images), {len(images)} images")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
