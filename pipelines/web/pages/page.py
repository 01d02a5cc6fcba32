"""Reads pages: their title, main text and metadata, and every image with its addresses and texts.

Nothing is judged here: ``choice`` selects the content images and their texts, once it is known
which images are available and how large they are.

An image's texts include the names that it has for screen readers in addition to its alt text.
"""

import bisect
import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages import context, markup
from vlmill.pipelines.web.pages.addresses import (
    IMAGE_NAME,
    IMAGE_TAGS,
    MAX_INLINE_BYTES,
    MAX_VARIANTS,
    addresses,
    find_references,
    inline_image,
)
from vlmill.pipelines.web.pages.blocks import Block, Spot, fold
from vlmill.pipelines.web.pages.metadata import Metadata, read_metadata
from vlmill.pipelines.web.pages.walk import walk_page
from vlmill.runtime.net.opt_outs import first_opt_out
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop

_MAX_LINK, _MAX_LINK_TEXT = 300, 500
_BASE = re.compile(rb"<base[\s/]", re.IGNORECASE)  # most pages have none
_REACH = 12  # blocks before and after an image that are kept


class PageImage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an image on a page, with the page's unprocessed texts for it, "" by default."""

    order: int  # unique among the page's images
    src: str  # the address in the page, for rejects
    urls: tuple[str, ...]  # absolute, best guess first; empty if none is usable
    alt: str = ""
    title: str = ""
    label: str = ""  # aria-label or aria-labelledby, its own or its link's
    caption: str = ""
    metadata: tuple[str, ...] = ()  # texts of the page's head for this image or the page
    block: int = 0  # index in the page's ``blocks`` of the block that follows the image
    path: tuple[int, ...] = ()  # serial numbers of the elements around it, the nearest first
    width: int | None = None  # as declared, in pixels
    height: int | None = None
    marks: tuple[str, ...] = ()  # class and id, lower-case: its own, then its parents' upwards
    ancestors: tuple[str, ...] = ()  # tags, the nearest first
    link: str = ""  # its target, as the page writes it
    is_metadata: bool = False  # og:image, twitter:image, JSON-LD or itemprop=image
    is_background: bool = False  # a background image of an element's style
    is_furniture: bool = False  # in a menu, a footer or the like, by tags and classes
    links_to_picture: bool = False  # a thumbnail; the full image is among ``urls``


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the content of a page that this job needs."""

    url: str
    title: str
    images: tuple[PageImage, ...]
    blocks: tuple[Block, ...] = ()  # texts near images and headings, in order
    site: str = ""  # the site's name from the metadata
    license: str | None = None
    language: str = ""  # as detected
    inline: tuple[tuple[str, bytes], ...] = ()  # ``data:`` images: name and bytes
    num_beyond: int = 0  # images beyond the limit for a page


def read_page(
    tree: LexborHTMLParser,
    url: str,
    *,
    max_text_chars: int,
    max_images: int,
    ignore_opt_outs: bool = False,
    data_images: Sequence[str] = (),
) -> Page | Drop:
    """Returns the content of the parsed page at ``url``, or the opt-out in its metadata.

    Lengths and numbers are cut at the given limits. ``data_images`` are the data: URIs that
    ``markup.take_out_data`` has removed from the page.
    """
    metadata = read_metadata(tree, max_text_chars)
    if not ignore_opt_outs and (why := first_opt_out(metadata.opt_outs)):
        return Drop(why, "by the page's metadata")
    has_base = _BASE.search(tree.raw_html or b"") is not None
    base_node = tree.css_first("base[href]") if has_base else None
    base = (resolve(url, base_node.attributes.get("href") or "") if base_node else None) or url
    title_node = tree.css_first("head > title")
    title = fold(title_node.text() if title_node else "", max_text_chars)
    blocks, spots, num_beyond = walk_page(tree, max_chars=max_text_chars, max_images=max_images)
    inline: dict[str, bytes] = {}
    numbers = context.nearby(blocks, [spot.block for spot in spots], _REACH)
    images = _images(tree, spots, blocks, numbers, base, inline, data_images, max_text_chars)
    images = add_metadata(_without_copies(images, spots), metadata, base)
    return Page(
        url=url,
        title=title,
        images=tuple(images),
        blocks=tuple(blocks[number] for number in numbers),
        site=metadata.site,
        license=metadata.license or None,
        inline=tuple(inline.items()),
        num_beyond=num_beyond,
    )


def _images(
    tree: LexborHTMLParser,
    spots: Sequence[Spot],
    blocks: Sequence[Block],
    numbers: Sequence[int],
    base: str,
    inline: dict[str, bytes],
    data_images: Sequence[str],
    max_chars: int,
) -> list[PageImage]:
    captions = context.captions_by_image(blocks, spots, max_chars=max_chars)
    in_cells = sum("td" in spot.ancestors for spot in spots)
    in_tables = context.captions_in_tables(tree) if in_cells > 1 else {}
    labels = context.Labels(tree)
    referenced = context.captions_by_reference(tree, labels)
    bytes_left = MAX_INLINE_BYTES
    images = []
    for order, spot in enumerate(spots):
        attributes = spot.attributes
        references = list(find_references(spot.node, attributes, spot.link))
        urls = addresses(base, iter(references))
        data_image = None
        if not urls:
            source = _stored_uri(next(filter(None, references), ""), data_images)
            data_image = inline_image(source, bytes_left)
        if data_image is not None:
            inline[data_image[0]] = data_image[1]
            bytes_left -= len(data_image[1])
            urls = (data_image[0],)
        width, height = spot.sides
        link = _link_around(spot)
        images.append(
            PageImage(
                order=order,
                src=(attributes.get("src") or next(filter(None, references), ""))[:200],
                urls=urls,
                alt=fold(attributes.get("alt"), max_chars),
                title=fold(attributes.get("title"), max_chars)
                or fold(link.attributes.get("title") if link else "", _MAX_LINK_TEXT),
                label=fold(labels.find_label(spot.node), max_chars)
                or fold(labels.find_label(link) if link else "", _MAX_LINK_TEXT),
                caption=captions.get(order)
                or in_tables.get(spot.node.mem_id)
                or fold(referenced.get(spot.node.mem_id), max_chars),
                block=bisect.bisect_left(numbers, spot.block),
                path=spot.path,
                width=width,
                height=height,
                marks=spot.marks,
                ancestors=spot.ancestors,
                link=spot.link[:_MAX_LINK],
                is_metadata=(attributes.get("itemprop") or "").lower() == "image",
                is_background=spot.node.tag not in (*IMAGE_TAGS, "video"),
                is_furniture=spot.furniture > 0,
                links_to_picture=IMAGE_NAME.search(spot.link) is not None,
            )
        )
    return images


def _stored_uri(reference: str, data_images: Sequence[str]) -> str:
    """Returns the data: URI that ``reference`` replaces."""
    number = reference.removeprefix(markup.INLINE)
    is_stored = number != reference and number.isascii() and number.isdigit()
    return data_images[int(number)] if is_stored and int(number) < len(data_images) else reference


def _link_around(spot: Spot) -> LexborNode | None:
    """Returns the link that contains only the image."""
    parent = spot.node.parent
    if parent is not None and parent.tag == "picture":
        parent = parent.parent
    return parent if parent is not None and parent.tag == "a" else None


def _without_copies(images: list[PageImage], spots: Sequence[Spot]) -> list[PageImage]:
    """Merges the ``noscript`` copies that follow a lazily loaded image into that image."""
    originals: list[PageImage] = []
    for image, spot in zip(images, spots, strict=True):
        last = originals[-1] if originals else None
        if last and "noscript" in spot.ancestors and spot.block - last.block <= 1:
            late = "noscript" not in last.ancestors and (
                all(url.startswith("urn:") for url in last.urls)
                or not set(last.urls).isdisjoint(image.urls)
            )
            if late:
                originals[-1] = replace(
                    last,
                    urls=tuple(dict.fromkeys((*image.urls, *last.urls))),
                    alt=last.alt or image.alt,
                    title=last.title or image.title,
                    caption=last.caption or image.caption,
                )
                continue
        originals.append(image)
    return originals


def add_metadata(images: list[PageImage], metadata: Metadata, base: str) -> list[PageImage]:
    """Gives images the head's texts; adds images that the head names but the body does not show."""
    captions = {resolve(base, name): text for name, text in metadata.captions.items()}
    images = _with_preloads(images, metadata, base)
    heads = list(
        dict.fromkeys(u for u in (resolve(base, reference) for reference in metadata.images) if u)
    )
    page_urls: set[str] = set()
    result: list[PageImage] = []
    for image in images:
        page_urls.update(image.urls)
        label = next((captions[url] for url in image.urls if url in captions), "")
        if label or image.is_metadata or not set(heads).isdisjoint(image.urls):
            image = _add_description(image, label, metadata)
        result.append(image)
    order = images[-1].order + 1 if images else 0
    for head in heads:
        if head not in page_urls:  # the body may still use it, but not as an image
            image = PageImage(order=order, src=head[:200], urls=(head,))
            result.append(_add_description(image, captions.get(head, ""), metadata))
            order += 1
    return result


def _with_preloads(images: list[PageImage], metadata: Metadata, base: str) -> list[PageImage]:
    """Gives images the further addresses under which the head preloads them."""
    groups = [addresses(base, iter(references)) for references in metadata.preloads]
    if not groups:
        return images
    result: list[PageImage] = []
    for image in images:
        more = [url for urls in groups if not set(urls).isdisjoint(image.urls) for url in urls]
        urls = tuple(dict.fromkeys((*image.urls, *more)))[:MAX_VARIANTS] if more else image.urls
        result.append(replace(image, urls=urls) if more else image)
    return result


def _add_description(image: PageImage, label: str, metadata: Metadata) -> PageImage:
    """Returns an image that the head names, with the head's texts for it and for the page."""
    words = label or next(iter(metadata.image_texts), "")
    texts = tuple(dict.fromkeys((*metadata.image_texts, *metadata.page_texts)))
    return replace(image, label=image.label or words, is_metadata=True, metadata=texts)
