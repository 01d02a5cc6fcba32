"""Pictures: decode with bounds, measure, and say why not.

The header decides first (format, size, pixels, animation), the full decode comes last: it is the
only proof that a picture is whole, and the most expensive step.
"""

import io
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

from vlmill.pipelines.counting.funnel import Drop
from vlmill.schemas.ids import image_id_of
from vlmill.schemas.rejects import Reason

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
"""What every consumer downstream decodes, too. Vector graphics and icons are no photographs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFacts:
    """A readable picture: SHA-256 of its bytes, size in pixels, format in lower case."""

    image_id: str
    width: int
    height: int
    format: str


def examine_picture(data: bytes, *, min_side_px: int, max_pixels: int) -> PictureFacts | Drop:
    """Facts about the picture in ``data``, or why it is dropped. Never raises.

    Both sides must be above ``min_side_px`` (ImageBERT, arXiv:2001.07966, section 3: larger than
    300 pixels). An animation is dropped: which of its frames the text means is unknown.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.format not in FORMATS:
                return Drop(Reason.UNSUPPORTED_FORMAT, picture.format)
            width, height = picture.size
            size = f"{width}x{height}"
            if min(width, height) <= min_side_px:
                return Drop(Reason.TOO_SMALL, size)
            if width * height > max_pixels:
                return Drop(Reason.TOO_LARGE, size)
            if getattr(picture, "is_animated", False):
                return Drop(Reason.ANIMATED, size)
            name = picture.format.lower()
            picture.load()
    except Image.DecompressionBombError as error:
        return Drop(Reason.TOO_LARGE, str(error))
    except UnidentifiedImageError:
        vector = b"<svg" in data[:4_096].lower()
        reason = Reason.UNSUPPORTED_FORMAT if vector else Reason.UNREADABLE_IMAGE
        return Drop(reason, "SVG" if vector else None)
    except Exception as error:
        # Decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError, ... on damaged
        # input, and no list of them is complete.
        return Drop(Reason.UNREADABLE_IMAGE, f"{type(error).__name__}: {error}")
    return PictureFacts(image_id=image_id_of(data), width=width, height=height, format=name)
