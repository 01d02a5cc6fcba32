import random
from pathlib import Path

import pytest

from vlmill.pipelines.web_pairs.spool import (
    EVERY_KEY,
    SORT_BYTES,
    Block,
    Row,
    Tape,
    cut_keys,
    read_blocks,
    sorted_rows,
    spool,
    unsorted_rows,
)

RNG = random.Random(0)
ROWS: list[Row] = [(RNG.randbytes(3), RNG.randbytes(RNG.randrange(40))) for _ in range(2_000)]


def write(path: Path, rows: list[Row], **bounds: int) -> Path:
    with spool(path, **bounds) as writer:
        for key, value in rows:
            writer.add(key[0] % 4, key, value)
    assert writer.rows == len(rows)
    return path


def read(paths: list[Path], sort_bytes: int = SORT_BYTES) -> list[list[Row]]:
    return [list(sorted_rows(paths, slice_, sort_bytes=sort_bytes)) for slice_ in range(4)]


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


@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("run_bytes", [1, 4_000, 1 << 20])
def test_ranges_of_keys_hold_each_row_once(run_bytes: int, number: int, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.spool", ROWS[n::2], run_bytes=run_bytes) for n in range(2)]
    for slice_ in range(4):
        cuts = cut_keys(paths, slice_, number)
        assert len(cuts) == number and cuts[0][0] == b"" and cuts[-1][1] is None
        parts = [list(sorted_rows(paths, slice_, between=between)) for between in cuts]
        assert [row for part in parts for row in part] == list(sorted_rows(paths, slice_))
        if run_bytes == 1:  # a block for each row: the ranges are even
            assert max(map(len, parts)) < 1.3 * len(ROWS) / 4 / number + 3


def test_long_keys_are_cut_where_the_footer_cuts_them(tmp_path: Path) -> None:
    rows = [(b"\0" + b"x" * 200 + bytes([n]), b"") for n in range(200)]
    path = write(tmp_path / "long.spool", rows, run_bytes=1)
    cuts = cut_keys([path], 0, 3)
    parts = [list(sorted_rows([path], 0, between=between)) for between in cuts]
    assert [row for part in parts for row in part] == rows


def test_only_blocks_of_the_range_are_read(tmp_path: Path) -> None:
    rows = [(b"\0" + bytes([n]), b"") for n in range(100)]
    path = write(tmp_path / "a.spool", rows, run_bytes=1)
    low, high = rows[40][0], rows[60][0]
    assert len([b for b in read_blocks(path)[0] if b.may_hold((low, high))]) == 20
    assert list(unsorted_rows([path], 0, (low, high))) == rows[40:60]
    old = Block(0, 0, 1, 1)  # of a spool without keys in its footer
    assert old.may_hold((low, high)) and old.may_hold(EVERY_KEY)


def test_an_empty_spool(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.spool", [])
    assert cut_keys([path], 0, 3) == [(b"", b""), (b"", b""), (b"", None)]
    assert read_blocks(path) == {} and read([path]) == [[]] * 4 and read([]) == [[]] * 4


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
