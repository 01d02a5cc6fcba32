"""A file for reading that something else lies behind: an archive, an object, a server."""

import io


class PositionedFile(io.RawIOBase):
    """Holds a position of its own; ``seek``, and how bytes come, are its heirs'."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    def readable(self) -> bool:
        """Says yes."""
        return True

    def seekable(self) -> bool:
        """Says yes, though seeking may cost what lies between."""
        return True

    def tell(self) -> int:
        """Returns the position in the bytes that are read here."""
        return self._position
