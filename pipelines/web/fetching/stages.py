"""Defines the lines of a crawl's funnel: by how a URL became known."""

from vlmill.runtime.units.funnel import Stage

URLS = Stage("urls", "lines of the list")
FETCH_LISTED = Stage("fetch_listed", "URLs")
FETCH_IMAGES = Stage("fetch_pictures", "URLs of images on pages")
FETCH_LINKS = Stage("fetch_links", "URLs that pages link to")
FETCH_REDIRECTS = Stage("fetch_redirects", "URLs that redirects lead to")

STAGES = (URLS, FETCH_LISTED, FETCH_IMAGES, FETCH_LINKS, FETCH_REDIRECTS)
