"""Encodes the rows of spools as bytes: pages, images under their URLs, candidates, rejects.

Keys sort in the order that the next step needs: numbers are big-endian, the best comes first.
"""

import hashlib
import zlib
from urllib.parse import urlsplit

import msgspec

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.pages.page import Page
from vlmill.pipelines.web_pairs.pair import Pair, text_key
from vlmill.runtime.net.urls import join_key
from vlmill.runtime.units.funnel import Drop

KEY = 16  # bytes of a hashed key
PLACE = KEY + 16  # bytes that identify a page: its host, its archive, its record's offset
MOST_PIXELS = 1 << 62  # more than any image has
FACT, REQUEST = b"\0", b"\1"
PAGE, MATCH, ROBOTS = b"\0", b"\1", b"\2"


class Fact(msgspec.Struct, array_like=True, frozen=True):
    """Holds the content of a URL: an image, or why it has none."""

    image: ArchivedImage | None
    drop: Drop | None

    @property
    def outcome(self) -> ArchivedImage | Drop:
        """Returns the image or the Drop."""
        outcome = self.image or self.drop
        assert outcome is not None
        return outcome


encode = msgspec.msgpack.Encoder().encode
page = msgspec.msgpack.Decoder(Page).decode
fact = msgspec.msgpack.Decoder(Fact).decode
pair = msgspec.msgpack.Decoder(Pair).decode
signals = msgspec.msgpack.Decoder(list[tuple[str, bool]]).decode
number = msgspec.msgpack.Decoder(int).decode


def hash_text(text: str) -> bytes:
    """Returns sixteen bytes for a text: a key of joins."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY).digest()


def url_key(url: str) -> bytes:
    """Returns the key that joins images with their pages."""
    return bytes.fromhex(join_key(url))


def page_key(url: str, archive: bytes, offset: int) -> bytes:
    """Returns a page's key: pages of one host are adjacent, in the order of their archives."""
    return hash_text(urlsplit(url).netloc) + archive + offset.to_bytes(8, "big")


def outcome_key(key: bytes, outcome: ArchivedImage | Drop) -> bytes:
    """Returns the key of a URL's fact: the largest image sorts first, a Drop last."""
    if isinstance(outcome, Drop):
        return key + FACT + b"\1"
    return key + FACT + b"\0" + number_key(MOST_PIXELS - outcome.width * outcome.height)


def candidate_key(candidate: Pair) -> bytes:
    """Returns a key that sorts an image's best candidate first: by score, text, source, page."""
    score = round((1 - candidate.score) * 1_000_000_000).to_bytes(4, "big")
    words = f"{candidate.text}\0{candidate.text_source}\0{candidate.page_url}"
    return bytes.fromhex(candidate.image.image_id) + score + words.encode()


def shared_key(text: str) -> bytes:
    """Returns the key of a text: equivalent texts have one key."""
    return hash_text(text_key(text))


def bytes_key(pair: Pair) -> bytes:
    """Returns the location of an image's bytes as a key: archives are read one by one, in order."""
    image = pair.image
    archive = f"{image.archive}\0".encode("utf-8", "surrogateescape")
    return archive + number_key(image.offset) + bytes.fromhex(image.image_id)


def hash_row(image: ArchivedImage, image_key: bytes) -> tuple[int, bytes]:
    """Returns slice and key of an image by its perceptual hash: the largest image sorts first."""
    assert image.phash is not None, "an image that has not been decoded"
    phash = number_key(image.phash)
    return phash[0], phash + number_key(MOST_PIXELS - image.width * image.height) + image_key


def number_key(value: int) -> bytes:
    """Returns eight bytes that sort as the number does."""
    return value.to_bytes(8, "big")


def assign_shard(key: str, shards: int) -> int:
    """Returns the shard of a row: the same on every machine, and evenly distributed."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % shards


def reject_row(row: dict[str, object], shards: int) -> tuple[int, bytes]:
    """Returns a reject's shard and its bytes, which sort by stage, reason, key and detail."""
    detail = row["detail"]
    tail = "" if detail is None else f"\1{detail}"
    line = f"{row['stage']}\0{row['reason']}\0{row['key']}\0{tail}"
    return assign_shard(str(row["key"]), shards), line.encode()


def decode_reject(line: bytes) -> dict[str, object]:
    """Decodes a row of ``rejects`` from its bytes."""
    stage, reason, key, tail = line.decode().split("\0")
    return {"stage": stage, "key": key, "reason": reason, "detail": tail[1:] if tail else None}
