"""Reads an object in a store by ranges."""

import os
from typing import Any

from vlmill.runtime.files.seekable import PositionedFile
from vlmill.runtime.files.stores import filesystem, retry_request


class Ranges(PositionedFile):
    """Reads an object of ``size`` bytes as a file: each read requests its range."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size = url, size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "a place before the file", self._url)
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content = retry_request(self._url, lambda: self._range(end))
        buffer[: len(content)] = content
        self._position = end
        return len(content)

    def _range(self, end: int) -> bytes:
        content: bytes = filesystem(self._url).cat_file(self._url, start=self._position, end=end)
        if len(content) != end - self._position:
            raise ConnectionError(f"{len(content)} of {end - self._position} bytes have arrived")
        return content
