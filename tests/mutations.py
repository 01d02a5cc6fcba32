"""Damages bytes as files on the web and on disks are damaged, and as an attacker would."""

import random
import struct
from collections.abc import Callable, Iterator, Sequence

LONGEST = 64  # bytes that one change inserts, removes or copies, unless it truncates
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
DEPTHS = (3, 50, 2_000)  # of nested structures

Change = Callable[[random.Random, bytes], bytes]


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, LONGEST)) + data[at:]


def remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, LONGEST) :]


def repeat(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    end = at + rng.randint(1, LONGEST)
    return data[:end] + data[at:end] * rng.randint(1, 20) + data[end:]


def move(rng: random.Random, data: bytes) -> bytes:
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[source : source + rng.randint(1, LONGEST)]
    return data[:target] + part + data[target + len(part) :]


def write_number(rng: random.Random, data: bytes) -> bytes:
    """Puts an extreme number of one to eight bytes anywhere, where a length may stand."""
    order, letter = rng.choice("<>"), rng.choice("BHIQ")
    size = struct.calcsize(letter)
    number = struct.pack(order + letter, rng.choice(NUMBERS) % (1 << 8 * size))
    at = rng.randrange(max(1, len(data) - size))
    return data[:at] + number + data[at + size :]


CHANGES: tuple[Change, ...] = (
    *(flip_bits, truncate, insert, remove, repeat, move),
    *(write_number, write_number),  # what parsers trust most
)


def nested(opening: Sequence[bytes]) -> Change:
    """Returns a change that opens one of these structures some thousand times."""

    def nest(rng: random.Random, data: bytes) -> bytes:
        at = rng.randrange(len(data) + 1)
        return data[:at] + rng.choice(list(opening)) * rng.choice(DEPTHS) + data[at:]

    return nest


def mutate(data: bytes, name: str, number: int, changes: Sequence[Change] = CHANGES) -> bytes:
    """Returns ``data`` after one to three changes, which ``name`` and ``number`` decide.

    May return no bytes at all, or by chance the same ones.
    """
    rng = random.Random(f"{name} {number}")
    for _ in range(rng.randint(1, 3)):
        if data:
            data = rng.choice(list(changes))(rng, data)
    return data


def mutations(
    data: bytes, name: str, count: int, changes: Sequence[Change] = CHANGES
) -> Iterator[tuple[int, bytes]]:
    """Yields (number, mutated bytes) ``count`` times; the same ones for the same name."""
    for number in range(count):
        yield number, mutate(data, name, number, changes)
