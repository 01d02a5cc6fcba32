"""Formats by the first bytes of a file, and the names in rejects."""

import io
import sys
import types
from collections.abc import Iterator

import pytest
from PIL import AvifImagePlugin, Image, ImageFile, features

from vlmill.schemas.images import decode as decoding
from vlmill.schemas.images.decode import Bounds, decode
from vlmill.schemas.images.formats import format_name, other_name
from vlmill.schemas.rejects import Reason, Rejected

BOUNDS = Bounds(max_pixels=10_000, max_bytes=None)
BRANDS = {
    b"avif": "AVIF",
    b"heic": "HEIC",
    b"mif1heic": "HEIC",
    b"mif1": "HEIF",
    b"crx ": "camera raw (CR3)",
    b"qt  ": "video (QuickTime)",
    b"isom": "video (MP4)",
    b"M4A ": None,
}
STARTS = {
    b"\xff\x0a\xfa": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"\xef\xbb\xbf <?xml version='1.0'?><!-- <html> -->\n<!DOCTYPE svg [<!ENTITY a ''>]>": "SVG",
    b"<SVG width='3'>": "SVG",
    b"%PDF-1.4": "PDF",
    b"%!PS-Adobe": "EPS",
    b"FUJIFILMCCD-RAW ": "camera raw (RAF)",
    b"II*\0\x10\0\0\0CR\x02\0": "camera raw (CR2)",
    b"II*\0\x08\0\0\0": "TIFF",
    b"\x1a\x45\xdf\xa3": "video (Matroska or WebM)",
    b"RIFF\0\0\0\0AVI ": "video (AVI)",
    b"RIFF\0\0\0\0WEBP": "WEBP",
    b"RIFF\0\0\0\0WAVE": None,
    b"P6 3 4 255\n": "Netpbm",
    b"P1 is a plan": None,
    b"BMW, MM and II": None,
    b"<html><svg>": None,
    b"<?xml version='1.0'?><annotation>": None,
    b"": None,
}


@pytest.fixture(autouse=True)
def without_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Image.init()
    known = {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"}
    monkeypatch.setattr(Image, "OPEN", known)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    decoding.register_heif.cache_clear()
    yield
    decoding.register_heif.cache_clear()


def encoded(kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 0, 0)).save(out, kind, **options)
    return out.getvalue()


def ftyp(brands: bytes) -> bytes:
    return (12 + len(brands)).to_bytes(4, "big") + b"ftyp" + brands[:4] + bytes(4) + brands[4:]


def test_formats_are_known_by_their_first_bytes() -> None:
    assert {start: format_name(start) for start in STARTS} == STARTS
    assert {brands: format_name(ftyp(brands)) for brands in BRANDS} == BRANDS
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF"):
        assert format_name(encoded(kind)) == kind
    assert other_name(b"<!DOCTYPE html><svg>") == "HTML page"
    assert other_name(b"PK\x03\x04") == "ZIP archive"


def rejected(data: bytes) -> tuple[Reason, str]:
    with pytest.raises(Rejected) as why:
        decode(data, BOUNDS)
    return why.value.reason, why.value.detail.partition(":")[0]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\xff\x0a\xfa\x7f", "JPEG XL"),
        (ftyp(b"heic"), "HEIC"),
        (ftyp(b"isom"), "video (MP4)"),
        (b"<svg/>", "SVG"),
        (b"<html>not found</html>", "HTML page"),
        (encoded("ICO"), "ICO"),
        (encoded("TIFF", tiffinfo={50706: b"\1\4\0\0"}), "camera raw (DNG)"),
        (encoded("TIFF", tiffinfo={254: 1}), "camera raw, or another TIFF of a thumbnail"),
    ],
)
def test_what_is_recognised_and_not_decoded_is_named(data: bytes, name: str) -> None:
    assert rejected(data) == (Reason.UNSUPPORTED_FORMAT, name)


def test_a_known_format_with_a_damaged_header_is_unreadable() -> None:
    assert rejected(b"\xff\xd8\xff\xe0")[0] is Reason.UNREADABLE_IMAGE


def test_an_avif_without_its_decoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("AVIF")
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    monkeypatch.setattr(features, "check", lambda name: False)
    assert rejected(data) == (Reason.UNSUPPORTED_FORMAT, "AVIF")


class RedHeif(ImageFile.ImageFile):
    """Stands in for pillow-heif's plugin: any file is one red pixel."""

    format = "HEIF"

    def _open(self) -> None:
        self._size, self._mode = (1, 1), "RGB"

    def load(self) -> None:
        self.im = Image.new("RGB", (1, 1), (255, 0, 0)).im


def test_heic_is_decoded_where_pillow_heif_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.ModuleType("pillow_heif")
    opener = RedHeif, lambda prefix: prefix[4:8] == b"ftyp"
    plugin.register_heif_opener = lambda: Image.OPEN.update(HEIF=opener)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", plugin)
    assert decode(ftyp(b"heic"), BOUNDS).image.getpixel((0, 0)) == (255, 0, 0)
