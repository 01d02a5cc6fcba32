"""Provides a readable file over another source: an archive, an object, a server."""

import io


class PositionedFile(io.RawIOBase):
    """Stores a position; subclasses define ``seek`` and how bytes are read."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    def readable(self) -> bool:
        """Returns True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Returns True, though seeking may read the bytes in between."""
        return True

    def tell(self) -> int:
        """Returns the position in the bytes that are read here."""
        return self._position
