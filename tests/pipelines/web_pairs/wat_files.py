"""WAT files that describe small archives, in the layout of Common Crawl's extractor."""

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType
from selectolax.lexbor import LexborHTMLParser

Headers = Mapping[str, str | list[str]]
META = ("name", "rel", "content", "http-equiv", "property")


def describe_html(html: bytes) -> dict[str, Any]:
    """The ``HTML-Metadata`` of a page: its head, and images before the anchors around them."""
    tree = LexborHTMLParser(html)
    head: dict[str, Any] = {}
    metas = [
        {name: node.attributes[name] for name in META if name in node.attributes}
        for node in tree.css("meta")
    ]
    root = tree.css_first("html")
    for name in ("lang", "xml:lang"):
        if root is not None and root.attributes.get(name):
            metas.append({"name": f"HTML@/{name}", "content": root.attributes[name]})
    if metas:
        head["Metas"] = metas
    if title := tree.css_first("title"):
        head["Title"] = title.text().strip()
    if base := tree.css_first("base[href]"):
        head["Base"] = base.attributes["href"]
    if links := tree.css("link[href]"):
        head["Link"] = [
            {
                "path": "LINK@/href",
                "url": node.attributes["href"],
                "rel": node.attributes.get("rel"),
            }
            for node in links
        ]
    links_of_body = []
    for node in tree.css("img[src],a[href]"):
        given, image = node.attributes, node.tag == "img"
        link = {
            "path": "IMG@/src" if image else "A@/href",
            "url": given["src" if image else "href"],
        }
        link |= {name: given[name] or "" for name in ("alt", "title", "rel") if name in given}
        if not image and node.text().strip():
            link["text"] = node.text().strip()[:128]
        links_of_body.append(link)
    return {"Head": head, **({"Links": links_of_body} if links_of_body else {})}


def describe(
    url: str,
    html: bytes | None,
    *,
    status: str = "200",
    headers: Headers | None = None,
    kind: str = "response",
) -> dict[str, Any]:
    """The JSON of a record; without ``html`` that of another content."""
    given = {"Content-Type": "text/html" if html is not None else "image/png", **(headers or {})}
    response = {
        "Headers": given,
        "Response-Message": {"Status": status, "Version": "HTTP/1.1", "Reason": "OK"},
        **({"HTML-Metadata": describe_html(html)} if html is not None else {}),
    }
    name = "HTTP-Request-Metadata" if kind == "request" else "HTTP-Response-Metadata"
    return {
        "Container": {"Filename": "a.warc.gz", "Offset": "846", "Compressed": True},
        "Envelope": {
            "Format": "WARC",
            "WARC-Header-Metadata": {"WARC-Type": kind, "WARC-Target-URI": url},
            "Payload-Metadata": {name: response},
        },
    }


def wat_record(
    url: str, content: bytes | Mapping[str, Any], type: str = "application/json"
) -> bytes:
    """One gzip member: a metadata record."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: metadata\r\nWARC-Target-URI: {url}\r\n"
        f"Content-Type: {type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0)


def describe_archive(warc: Path) -> bytes:
    """The WAT file of an archive: two records for each response, as of its request."""
    parts = []
    for record in ArchiveIterator(
        io.BytesIO(warc.read_bytes()), record_types=WarcRecordType.response
    ):
        url = record.headers["WARC-Target-URI"]
        head = record.http_headers
        html = record.reader.read() if "html" in (head.get("Content-Type") or "") else None
        described = describe(url, html, status=str(head.status_code), headers=dict(head.items()))
        parts += [wat_record(url, describe(url, None, kind="request")), wat_record(url, described)]
    return b"".join(parts)
