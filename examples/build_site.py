"""Writes the example web site into a WARC, as a crawler would have written it.

The pages are in ``site/``. The images are made from photographs in the installed packages
scikit-image and scikit-learn (``images.json``); ``responses.json`` lists unusual responses of the
server. The same packages give the same bytes in every run.
"""

import gzip
import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urljoin

from PIL import Image, ImageDraw, ImageFont

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.atomic import atomic_path
from vlmill.schemas.errors import InputError

HERE = Path(__file__).parent
HOST = "http://photos.example/"
DATE = "2015-03-01T12:00:00Z"
# Record ids are derived from URL and content, so that equal archives are equal byte by byte.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, HOST)
SOURCES = {"skimage": "data", "sklearn": "datasets/images"}
CONTENT_TYPES = {
    ".css": "text/css",
    ".gif": "image/gif",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
EPILOG = """\
example:
  python examples/build_site.py --output demo/site.warc.gz
  python -m vlmill.pipelines.web_pairs --warc demo/site.warc.gz --output demo/pairs \\
    --safety-model none --realism-model none

The packages scikit-image and scikit-learn contain the photographs (pip install -e ".[demo]");
nothing is downloaded. examples/expected.json lists the correct result of mining the site.
"""


@dataclass(frozen=True, kw_only=True)
class Response:
    """Holds the server's response to the request of a URL; ``headers`` lack Content-Length."""

    url: str
    status: str
    headers: Mapping[str, str]
    body: bytes


def main(argv: Sequence[str]) -> int:
    """Writes the archive and prints its number of responses."""
    parser = Parser(prog="build_site.py", description=__doc__, epilog=EPILOG)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.warc.gz",
        help="archive to write; it appears completely or not at all",
    )
    output: Path = parser.parse_args(argv).output
    _check(output)
    responses = list(site_responses(HERE))
    with atomic_path(output) as temporary:
        write_warc(temporary, responses)
    pages = sum(r.headers.get("Content-Type", "").startswith("text/html") for r in responses)
    print(f"{output}: {len(responses)} responses, {pages} of them pages")
    return 0


def _check(output: Path) -> None:
    """Raises InputError for problems that would fail later with a less helpful message."""
    if not output.name.endswith(".warc.gz"):
        raise InputError(f"--output {output} is written as a WARC; give a name in .warc.gz")
    if output.is_dir():
        raise InputError(f"--output {output} is a folder; give the name of a file in it")
    if missing := [name for name in (*SOURCES, "warcio") if find_spec(name) is None]:
        raise InputError(f'{missing[0]} is not installed; run: pip install -e ".[demo]"')


def site_responses(root: Path) -> Iterator[Response]:
    """Yields all responses in the order of their URLs: pages, images, unusual ones."""
    odd = json.loads((root / "responses.json").read_text(encoding="utf-8"))
    bodies = {**_pages(root / "site"), **_images(root / "images.json")}
    bodies |= {url: bodies[path] for url, path in odd["copies"].items()}
    responses = [_ordinary(path, body, odd) for path, body in bodies.items()]
    responses += [
        Response(
            url=urljoin(HOST, answer["path"]),
            status=answer["status"],
            headers=answer["headers"],
            body=answer["body"].encode(),
        )
        for answer in odd["answers"]
    ]
    yield from sorted(responses, key=lambda response: response.url)


def _ordinary(path: str, body: bytes, odd: Mapping[str, Any]) -> Response:
    """Returns the usual response of a server for a file."""
    suffix = PurePosixPath(path.partition("?")[0]).suffix
    headers = {"Content-Type": odd["content_types"].get(path, CONTENT_TYPES[suffix])}
    if path in odd["gzip"]:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, mtime=0)
    folder = path.removesuffix("index.html") if path.endswith("index.html") else path
    return Response(
        url=urljoin(HOST, folder),
        status=odd["status"].get(path, "200 OK"),
        headers=headers,
        body=body,
    )


def _pages(folder: Path) -> dict[str, bytes]:
    """Returns the files of the site by path, as bytes, since some have unusual encodings."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.suffix in CONTENT_TYPES)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def _images(manifest: Path) -> dict[str, bytes]:
    """Returns the encoded images and graphics of images.json by path or URL."""
    listed = json.loads(manifest.read_text(encoding="utf-8"))
    photographs = {entry["path"]: render(entry) for entry in listed["pictures"]}
    return photographs | {entry["path"]: draw(entry) for entry in listed["graphics"]}


def render(entry: Mapping[str, Any]) -> bytes:
    """Crops, resizes and encodes one entry of ``pictures`` in images.json.

    ``keep`` cuts the encoded bytes to that fraction, as an interrupted upload does.
    """
    photograph = Image.open(source_path(entry["source"]))
    boxes = entry.get("frames") or [entry.get("box")]
    frames = [_crop(photograph, box, entry["size"]) for box in boxes]
    encoded = _encode(frames, entry)
    return encoded[: int(len(encoded) * entry.get("keep", 1.0))]


def _crop(photograph: Image.Image, box: Sequence[int] | None, size: Sequence[int]) -> Image.Image:
    width, height = size
    cropped = photograph if box is None else photograph.crop((box[0], box[1], box[2], box[3]))
    if cropped.size == (width, height):
        return cropped
    return cropped.resize((width, height), Image.Resampling.BICUBIC)


def _encode(frames: Sequence[Image.Image], entry: Mapping[str, Any]) -> bytes:
    options: dict[str, Any] = {}
    if entry["format"] in ("jpeg", "webp"):
        options["quality"] = entry.get("quality", 88)
    if entry["format"] == "jpeg":
        options["progressive"] = entry.get("progressive", False)
    if len(frames) > 1:
        options |= {"save_all": True, "append_images": frames[1:], "duration": 400, "loop": 0}
    buffer = io.BytesIO()
    frames[0].save(buffer, format=entry["format"], **options)
    return buffer.getvalue()


def source_path(source: str) -> Path:
    """Returns the file of a photograph named ``package/file``; InputError if it is missing."""
    package, _, name = source.partition("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f'{package} is not installed; run: pip install -e ".[demo]"')
    path = Path(spec.origin).parent / SOURCES[package] / name
    if not path.is_file():
        raise InputError(f"{path} is missing: this {package} has other images; reinstall it")
    return path


def draw(entry: Mapping[str, Any]) -> bytes:
    """Draws one entry of ``graphics`` in images.json: a rectangle, an ellipse and a text."""
    width, height = entry["size"]
    plate = Image.new("RGB", (width, height), entry["color"])
    if entry["text"]:
        pencil = ImageDraw.Draw(plate)
        pencil.ellipse((1, 1, width - 2, height - 2), outline="white", width=2)
        font = ImageFont.load_default(size=max(10, min(width, height) // 4))
        pencil.text((width / 2, height / 2), entry["text"], "white", font, anchor="mm")
    return _encode([plate], entry)


def write_warc(path: Path, responses: Sequence[Response]) -> None:
    """Writes ``responses`` after a warcinfo record, one gzip member for each record."""
    from warcio.warcwriter import WARCWriter  # an extra: --help works without it

    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        about = b"software: vlmill example site\r\nformat: WARC File Format 1.0\r\n"
        writer.write_record(
            writer.create_warc_record(
                "",
                "warcinfo",
                payload=io.BytesIO(about),
                length=len(about),
                warc_headers_dict=_record_headers("warcinfo", about),
            )
        )
        for response in responses:
            writer.write_record(_record(writer, response))


def _record(writer: Any, response: Response) -> Any:
    from warcio.statusandheaders import StatusAndHeaders

    headers = {**response.headers, "Content-Length": str(len(response.body))}
    return writer.create_warc_record(
        response.url,
        "response",
        payload=io.BytesIO(response.body),
        length=len(response.body),
        http_headers=StatusAndHeaders(response.status, list(headers.items()), "HTTP/1.1"),
        warc_headers_dict=_record_headers(response.url, response.body),
    )


def _record_headers(name: str, content: bytes) -> dict[str, str]:
    identifier = uuid.uuid5(NAMESPACE, f"{name} {uuid.uuid5(NAMESPACE, content.hex())}")
    return {"WARC-Record-ID": f"<urn:uuid:{identifier}>", "WARC-Date": DATE}


if __name__ == "__main__":
    raise SystemExit(run_command(main))
