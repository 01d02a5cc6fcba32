"""Finds the URLs to fetch on a page: its images, and, if links are followed, other pages."""

from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.fetching.hosts import get_host
from vlmill.pipelines.web.pages import markup
from vlmill.pipelines.web.pages.page import PageImage, read_page
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

BOUNDS = WebPairRules()  # a page that web_pairs would drop is not searched for images


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Holds which URLs of a page are fetched."""

    same_host: bool = False  # links to other hosts are not followed
    max_pages_per_host: int = 1_000  # that links lead to; listed pages do not count
    max_links: int = 1_000  # of one page
    addresses: int = 4  # of an image that are tried, the largest first, until one succeeds
    contents: bool = False  # images are stored without their records, for this run alone


@dataclass(frozen=True, kw_only=True)
class References:
    """Holds the URLs of a page, in its order; for each image the addresses to try in turn."""

    images: tuple[tuple[str, ...], ...]
    links: tuple[str, ...]


def read_references(
    body: bytes, charset: str | None, url: str, *, scope: Scope, follow: bool
) -> References | Drop:
    """Returns the URLs that the page at ``url`` refers to, or why it is not used."""
    text = markup.take_out_data(markup.decode(body, charset)).text
    if len(text) > BOUNDS.max_page_bytes:
        return Drop(Reason.TOO_LARGE, f"{len(text)} characters without data: URIs")
    tree = markup.parse(text, max_nesting=BOUNDS.max_nesting)
    if isinstance(tree, Drop):
        return tree
    page = read_page(tree, url, max_text_chars=1, max_images=BOUNDS.max_images_per_page)
    if isinstance(page, Drop):
        return page
    images: dict[str, tuple[str, ...]] = {}
    for image in page.images:
        if urls := order_addresses(image, page.url)[: scope.addresses]:
            images.setdefault(urls[0], urls)
    links = dict.fromkeys(_links(tree, url, scope)) if follow else {}
    return References(
        images=tuple(images.values()), links=tuple(u for u in links if u not in images)
    )


def order_addresses(image: PageImage, page_url: str) -> tuple[str, ...]:
    """Returns the addresses of an image, the largest first as far as the page states sizes.

    A thumbnail's link leads to the full image; a srcset states sizes. Inline images have no
    address.
    """
    urls = [url for url in image.urls if not url.startswith("urn:")]
    linked = resolve(page_url, image.link) if image.links_to_picture else None
    if linked in urls:
        urls = [linked, *(url for url in urls if url != linked)]
    return tuple(urls)


def _links(tree: LexborHTMLParser, url: str, scope: Scope) -> Iterator[str]:
    """Yields the targets of a page's links, except links that robots should not follow."""
    if any(_forbids_following(node.attributes) for node in tree.css("meta[name][content]")):
        return
    base_node = tree.css_first("base[href]")
    base = (resolve(url, base_node.attributes.get("href") or "") if base_node else None) or url
    number = 0
    for node in tree.css("a[href]"):
        if "nofollow" in (node.attributes.get("rel") or "").lower().split():
            continue
        target = resolve(base, node.attributes.get("href") or "")
        if target is None or (scope.same_host and get_host(target) != get_host(url)):
            continue
        yield target
        number += 1
        if number >= scope.max_links:
            return


def _forbids_following(attributes: dict[str, str | None]) -> bool:
    name, content = attributes.get("name") or "", attributes.get("content") or ""
    directives = (word.strip().lower() for word in content[:1_000].split(","))
    return name.strip().lower() == "robots" and "nofollow" in directives
