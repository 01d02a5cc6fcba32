"""Recognises the format of a file by its first bytes, regardless of its name."""

import re

HEAD_BYTES = 4_096  # read by :func:`format_name`: an SVG may begin with a licence
# The start of a file, at a fixed offset, and the name. Formats of Pillow have Pillow's names.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (8, b"CR\x02\x00", "camera raw (CR2)"),  # looks like a TIFF to other readers
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"8BPS\0", "PSD"),
    (0, b"%PDF-", "PDF"),
    (0, b"%!PS", "EPS"),
    (0, b"\xc5\xd0\xd3\xc6", "EPS"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"qoif", "QOI"),
    (0, b"v/1\x01", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"#?RGBE", "Radiance HDR"),
    (0, b"DDS |\0\0\0", "DDS"),
    (0, b"SIMPLE  =", "FITS"),
    (128, b"DICM", "DICOM"),
    (0, b"\xd7\xcd\xc6\x9a", "WMF"),
    (40, b" EMF\0\0\1\0", "EMF"),
    (0, b"gimp xcf", "XCF"),
    (0, b"BPG\xfb", "BPG"),
    (0, b"FUJIFILMCCD-RAW", "camera raw (RAF)"),
    (0, b"IIRO", "camera raw (ORF)"),
    (0, b"IIRS", "camera raw (ORF)"),
    (0, b"MMOR", "camera raw (ORF)"),
    (0, b"IIU\0", "camera raw (RW2)"),
    (0, b"FOVb", "camera raw (X3F)"),
    (0, b"\0MRM", "camera raw (MRW)"),
    (0, b"\x1a\x45\xdf\xa3", "video (Matroska or WebM)"),
    (0, b"FLV\1", "video (FLV)"),
    (0, b"\0\0\1\xba", "video (MPEG)"),
    (0, b"\0\0\1\xb3", "video (MPEG)"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "video (WMV)"),
    (4, b"moov", "video (QuickTime)"),
    (4, b"mdat", "video (QuickTime)"),
)
_OTHERS: tuple[tuple[int, bytes, str], ...] = (
    (257, b"ustar", "tar archive"),
    (0, b"PK\x03\x04", "ZIP archive"),
    (0, b"PK\x05\x06", "ZIP archive"),
    (0, b"\x1f\x8b", "gzip archive"),
    (0, b"BZh", "bzip2 archive"),
    (0, b"\xfd7zXZ\0", "xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "zstd archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (0, b"Rar!\x1a\x07", "RAR archive"),
    (0, b"PAR1", "Parquet file"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 file"),
    (0, b"\0\5\x16\7", "AppleDouble file"),
)
_HEIC = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs"}
_AUDIO = {b"M4A ", b"M4B ", b"M4P "}
# A BMP's own two bytes also begin texts: its reserved bytes and its header's size do not.
_BMP = re.compile(rb"BM.{4}\0{4}.{4}(?:\x0c|\x28|\x34|\x38|\x40|\x6c|\x7c)\0\0\0", re.DOTALL)
_NETPBM = re.compile(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*\d+\s+\d+\s")
# The content that XML may have before its first element.
_PROLOGUE = ((b"<?", b"?>"), (b"<!--", b"-->"))
_DRAWING = (b"<svg", b"<!doctype svg")
_PAGE = (b"<!doctype html", b"<html", b"<head", b"<body")


def format_name(head: bytes) -> str | None:
    """Returns the name of the image, document or video format that a file begins with, or None.

    ``head``: its first :data:`HEAD_BYTES` or more. "JPEG", "HEIC", "JPEG XL", "SVG", "PDF",
    "camera raw (CR3)", "video (MP4)". A name does not mean that the rest can be decoded.
    """
    head = head[:HEAD_BYTES]
    if head[4:8] == b"ftyp":
        return _name_of_boxes(head)
    if head[:4] == b"RIFF":
        return {b"WEBP": "WEBP", b"AVI ": "video (AVI)"}.get(head[8:12])
    if name := _by_magic(head, _MAGIC):
        return name
    if _BMP.match(head):
        return "BMP"
    if _NETPBM.match(head):
        return "Netpbm"
    return "SVG" if _first_element(head).startswith(_DRAWING) else None


def other_name(head: bytes) -> str | None:
    """Returns the type of a file that is no image (an archive, a table, an HTML page), or None."""
    head = head[:HEAD_BYTES]
    is_page = _first_element(head).startswith(_PAGE)
    return _by_magic(head, _OTHERS) or ("HTML page" if is_page else None)


def is_tar(head: bytes) -> bool:
    """Returns whether a file begins with the header of a tar's member."""
    return head[257:262] == b"ustar"


def _by_magic(head: bytes, magic: tuple[tuple[int, bytes, str], ...]) -> str | None:
    return next((name for offset, start, name in magic if head.startswith(start, offset)), None)


def _first_element(head: bytes) -> bytes:
    """Returns a markup text from its first element on, in lower case; empty without one."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"<"):
        return b""
    text = text.lower()
    while (part := next((p for p in _PROLOGUE if text.startswith(p[0])), None)) is not None:
        _, _, text = text.partition(part[1])
        text = text.lstrip()
    return text


def _name_of_boxes(head: bytes) -> str | None:
    """Returns the name of a file of ISO's base media format by its brands."""
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = [head[8:12], *(head[offset : offset + 4] for offset in range(16, end, 4))]
    if {b"avif", b"avis"} & {*brands}:
        return "AVIF"
    if _HEIC & {*brands}:
        return "HEIC"
    match brands[0]:
        case b"mif1" | b"msf1":
            return "HEIF"
        case b"crx ":
            return "camera raw (CR3)"
        case b"qt  ":
            return "video (QuickTime)"
        case brand if brand in _AUDIO:
            return None
    return "video (MP4)"
