"""Encodes images and texts as multipart forms."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

ImageSource = str | os.PathLike[str] | bytes
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
JSON = "application/json"
PART_BYTES = 256  # the boundary and the headers of an image's part, at most


def read_image(image: ImageSource) -> bytes:
    """Returns the bytes of an image. Raises OSError for a file that cannot be read."""
    return image if isinstance(image, bytes) else Path(image).read_bytes()


def image_size(image: ImageSource) -> int:
    """Returns the bytes that an image takes in a form. Raises OSError."""
    size = len(image) if isinstance(image, bytes) else os.stat(image).st_size
    return size + PART_BYTES


def encode_form(
    images: Sequence[ImageSource], words: Mapping[str, Sequence[str]]
) -> tuple[bytes, str]:
    """Returns a multipart form and its content-type. Raises OSError for an unreadable file."""
    boundary = secrets.token_hex(16)
    parts = [
        (f'form-data; name="{name}"', "text/plain; charset=utf-8", word.encode())
        for name, values in words.items()
        for word in values
    ]
    for number, image in enumerate(images):
        about = f'form-data; name="pictures"; filename="{number}"'
        parts.append((about, "application/octet-stream", read_image(image)))
    lines = list[bytes]()
    for about, kind, content in parts:
        headers = f"content-disposition: {about}\r\ncontent-type: {kind}\r\n\r\n"
        lines += [f"--{boundary}\r\n{headers}".encode(), content, b"\r\n"]
    body = b"".join([*lines, f"--{boundary}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={boundary}"
