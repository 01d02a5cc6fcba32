"""Reads images that a table names, under one folder; nothing outside it is ever opened."""

import os
import re
from itertools import product
from pathlib import Path
from typing import Any

from vlmill.pipelines.web.pages.images import Examiner
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.names import IMAGE_ENDINGS, spellings
from vlmill.schemas.rejects import Reason

MAX_BYTES = 64 * 2**20
_FIRST = (".jpg", ".jpeg", ".png", ".webp", ".gif")
_LOWER = (*_FIRST, *(ending for ending in IMAGE_ENDINGS if ending not in _FIRST))
ENDINGS = ("", *_LOWER, *(ending.upper() for ending in _LOWER))
"""What may follow a name; the first that is there counts."""
_UNSAFE = re.compile(r"^/|^[A-Za-z]:[\\/]|\\|\0|(^|/)\.\.(/|$)")


_DRIVE = re.compile(r"[A-Za-z]:|\\\\")  # also a share: \\server\share


def is_unsafe(name: str) -> bool:
    """Returns whether a name may lead out of the folder that it is joined to."""
    return _UNSAFE.search(name) is not None


def image_path(root: Path, name: str) -> Path | Drop:
    """Returns the file of an image under ``root``, or why it is missing or refused.

    Absolute names, drive letters, backslashes, ``..`` and links that leave ``root`` are refused. A
    name may be composed Unicode and its file's name decomposed (macOS), or vice versa.
    """
    missing = Drop(Reason.MISSING_IMAGE, f"no file of this name, also not with {', '.join(_LOWER)}")
    if is_unsafe(name):
        detail = "leads out of --image-root (--image-prefix removes the beginning of names)"
        return Drop(Reason.UNSAFE_PATH, detail)
    if isinstance(root, RemotePath):
        paths = (root / f"{one}{e}" for one in spellings(name) for e in ENDINGS)
        return next((path for path in paths if path.is_file()), missing)
    base = os.path.realpath(root)
    for one, ending in product(spellings(name), ENDINGS):
        path = os.path.join(base, one + ending)
        if os.path.isfile(path):
            if os.path.commonpath([base, os.path.realpath(path)]) != base:
                return Drop(Reason.UNSAFE_PATH, "a link that leads out of --image-root")
            return Path(path)
    return missing


def image_row(
    root: Path, image_id: str, examiner: Examiner, *, prefix: str = ""
) -> dict[str, Any] | Drop:
    """Returns the row of ``images`` for an image under ``root``, decoded once, or a Drop.

    Its file's name is the id without ``prefix``; the separators of Windows are accepted.
    """
    path = image_path(root, _below(root, _plain_name(image_id, prefix)))
    if isinstance(path, Drop):
        return path
    content = _content(path)
    if isinstance(content, Drop):
        return content
    return make_image_row(content, image_id, examiner)


def _plain_name(image_id: str, prefix: str) -> str:
    """Returns an id without a prefix, and without Windows' separators unless it has a drive."""
    name = image_id.removeprefix(prefix).replace("\\", "/") if prefix else image_id
    if prefix and len(name) < len(image_id):
        return name.lstrip("/")
    return name if _DRIVE.match(image_id) else image_id.replace("\\", "/")


def _below(root: Path, name: str) -> str:
    """Returns a name relative to ``root``; an absolute path below ``root`` is shortened."""
    if isinstance(root, RemotePath) or not os.path.isabs(name) or "\0" in name:
        return name
    base = os.path.realpath(root)
    path = os.path.normpath(name)
    inside = next(
        (prefix for prefix in (os.path.abspath(root), base) if path.startswith(prefix + "/")), None
    )
    return name if inside is None else os.path.relpath(path, inside)


def make_image_row(content: bytes, image_id: str, examiner: Examiner) -> dict[str, Any] | Drop:
    """Returns the row of ``images`` for an image's bytes, decoded once, or a Drop.

    An examiner that hashes adds the perceptual hash as ``phash``, which is not a column.
    """
    facts = examiner.examine(content)
    if isinstance(facts, Drop):
        return facts
    extra = {} if facts.phash is None else {"phash": facts.phash}
    return {
        "image_id": image_id,
        "bytes": content,
        "width": facts.width,
        "height": facts.height,
        "format": facts.format,
        "sha256": facts.image_id,
        **extra,
    }


def image_content(root: Path, name: str) -> bytes | Drop | None:
    """Returns the bytes of a published image under ``root``; None if the file does not exist."""
    path = image_path(root, name)
    if isinstance(path, Drop):
        return None if path.reason is Reason.MISSING_IMAGE else path
    return _content(path)


def _content(path: Path) -> bytes | Drop:
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_BYTES:
            reason = Reason.TOO_LARGE if size else Reason.EMPTY
            return Drop(reason, f"{size} bytes, at most {MAX_BYTES}")
        return path.read_bytes()
    except OSError as error:
        return Drop(Reason.UNREADABLE_IMAGE, error.strerror)
