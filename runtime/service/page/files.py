"""Lists the files of the page with their paths, media types and contents."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vlmill.runtime import console

FOLDER = Path(__file__).parent
SCRIPTS = ("api", "rows", "boxes", "photo", "regions", "search", "tasks", "table", "main")
# Paths that need no token: a browser sends none when it loads a page's files.
MEDIA_TYPES: Mapping[str, str] = {
    "/": "text/html",
    "/page.css": "text/css",
    **{f"/{name}.js": "text/javascript" for name in SCRIPTS},
}


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """Holds the path, the media type and the content of a file of the page."""

    path: str
    media_type: str
    content: bytes


def read_page_files() -> list[PageFile]:
    """Reads all files. The style sheet begins with the rules that reports share."""
    return [
        PageFile(path=path, media_type=media_type, content=_read(path))
        for path, media_type in MEDIA_TYPES.items()
    ]


def _read(path: str) -> bytes:
    content = FOLDER.joinpath(path.removeprefix("/") or "index.html").read_bytes()
    if path != "/page.css":
        return content
    base = resources.files(console).joinpath("base.css").read_bytes()
    return base + b"\n" + content
