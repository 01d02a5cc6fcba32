"""An object in a store is read by ranges."""

import io
import os
from typing import Any

from vlmill.schemas.files.stores import asked, filesystem


class Ranges(io.RawIOBase):
    """An object of ``size`` bytes as a file: each read is a request for its range."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "a place before the file", self._url)
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        content = asked(self._url, lambda: self._range(end))
        buffer[: len(content)] = content
        self._at = end
        return len(content)

    def _range(self, end: int) -> bytes:
        content: bytes = filesystem(self._url).cat_file(self._url, start=self._at, end=end)
        if len(content) != end - self._at:
            raise ConnectionError(f"{len(content)} of {end - self._at} bytes have arrived")
        return content
