"""Computes stable ids: the same bytes and text give the same id on every run and runner."""

import hashlib


def compute_image_id(data: bytes) -> str:
    """Returns the SHA-256 of an image's bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def compute_pair_id(image_id: str, text: str) -> str:
    """Returns a pair's id: 32 hexadecimal digits of SHA-256 over both parts.

    A NUL separates the parts, so that no two different pairs are hashed as the same bytes. Lone
    surrogates (from broken pages) are hashed as they are rather than refused.
    """
    message = f"{image_id}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(message).hexdigest()[:32]


def key64(text: str) -> int:
    """Returns 64 bits of a text's BLAKE2b, equal on every run and machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
