"""Formats counts for messages: "1 image", "2 images", "1,234 images"."""


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Returns ``count`` with its noun; ``plural`` defaults to ``noun`` with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
