import random
from pathlib import Path

import pytest

from vlmill.pipelines.web_pairs.spool import Row, Tape, blocks_of, sorted_rows, spool

RNG = random.Random(0)
ROWS: list[Row] = [(RNG.randbytes(3), RNG.randbytes(RNG.randrange(40))) for _ in range(2_000)]


def write(path: Path, rows: list[Row], **bounds: int) -> Path:
    with spool(path, **bounds) as writer:
        for key, value in rows:
            writer.add(key[0] % 4, key, value)
    assert writer.rows == len(rows)
    return path


def read(paths: list[Path], **bounds: int) -> list[list[Row]]:
    return [list(sorted_rows(paths, slice_, **bounds)) for slice_ in range(4)]


@pytest.mark.parametrize("run_bytes", [1, 4_000, 1 << 20])
@pytest.mark.parametrize("sort_bytes", [2_000, 1 << 20])
def test_slices_come_sorted_whatever_fits_into_memory(
    run_bytes: int, sort_bytes: int, tmp_path: Path
) -> None:
    halves = [ROWS[:900], ROWS[900:]]
    paths = [
        write(tmp_path / f"{n}.spool", half, run_bytes=run_bytes) for n, half in enumerate(halves)
    ]
    expected = [sorted(row for row in ROWS if row[0][0] % 4 == n) for n in range(4)]
    assert read(paths, sort_bytes=sort_bytes) == expected
    assert read(paths[::-1], sort_bytes=sort_bytes) == expected


def test_an_empty_spool(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.spool", [])
    assert blocks_of(path) == {} and read([path]) == [[]] * 4 and read([]) == [[]] * 4


def test_a_spool_that_fails_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), spool(tmp_path / "x.spool") as writer:
        writer.add(0, b"k")
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep_bytes", [1, 5_000, 1 << 20])
def test_a_tape_is_read_again(keep_bytes: int, tmp_path: Path) -> None:
    tape = Tape(tmp_path, keep_bytes=keep_bytes)
    for row in ROWS:
        tape.add(row)
    assert list(tape) == ROWS == list(tape)
    tape.close()
