"""Stores the rows of a part on a runner: one worker reads them and writes files for the others.

A part's rows depend on the rows before them, so one worker reads the entire input once, and writes
a file for each part: frames of MessagePack, each after its length.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import remove_tree
from vlmill.runtime.units.unit import Unit

Item = TypeVar("Item")
LENGTH_BYTES = 8


def part_unit(index: int) -> Unit:
    """Returns the unit of a part."""
    return Unit(name=f"part-{index:05d}", number=index)


def spool_path(output: Path, kind: str, index: int) -> Path:
    """Returns the file of a part that one step writes for the next."""
    return output / WORK / "parts" / f"{kind}-{index:05d}.msgpack"


def write_frames(path: Path, frames: Iterable[Any]) -> None:
    """Writes plain values, each as a frame."""
    encode = msgspec.msgpack.Encoder().encode
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for frame in frames:
            content = encode(frame)
            file.write(len(content).to_bytes(LENGTH_BYTES, "little"))
            file.write(content)


def read_frames(path: Path) -> Iterator[Any]:
    """Yields the written values. Memory: one value."""
    decode = msgspec.msgpack.Decoder().decode
    with path.open("rb") as file:
        while head := file.read(LENGTH_BYTES):
            yield decode(file.read(int.from_bytes(head, "little")))


def write_parts(output: Path, items: Iterable[Item], size: int, pack: Callable[[Item], Any]) -> int:
    """Writes items to files of parts of ``size``; returns how many parts there are, at least 1."""
    stream, index = iter(items), 0
    while True:
        write_frames(spool_path(output, "rows", index), map(pack, islice(stream, size)))
        index += 1
        if (first := next(stream, None)) is None:
            return index
        stream = chain((first,), stream)


def read_chunks(output: Path, index: int, size: int) -> Iterator[Sequence[Any]]:
    """Yields the frames of a part, ``size`` at a time."""
    frames = read_frames(spool_path(output, "rows", index))
    while chunk := list(islice(frames, size)):
        yield chunk


def remove_parts(output: Path) -> None:
    """Deletes the files that steps have written for each other."""
    for name in ("parts", "units"):
        remove_tree(output / WORK / name)
    if (output / WORK).is_dir() and not any((output / WORK).iterdir()):
        remove_tree(output / WORK)
