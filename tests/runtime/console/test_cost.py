"""Rates, the table of a dry run, and the refusal of a disk that is too small."""

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlmill.runtime.console.cost import (
    Estimate,
    Rate,
    compute_rate,
    estimate_lines,
    free_bytes,
    measure_rate,
    require_disk_space,
    size_words,
    time_words,
)
from vlmill.schemas.errors import InputError

Usage = namedtuple("Usage", "total used free")


def ticks(*seconds: float) -> Iterator[float]:
    yield from seconds


def test_a_rate_ends_with_its_limit() -> None:
    clock = ticks(0.0, 4.0, 9.0, 11.0)
    rate = measure_rate(iter("abcdef"), "rows", limit_s=10.0, clock=lambda: next(clock))
    assert rate == Rate(items=3, seconds=11.0, unit="rows")
    assert rate.seconds_for(6) == 22.0


def test_a_rate_ends_with_its_items_and_weighs_them() -> None:
    clock = ticks(0.0, 1.0, 2.0)
    rate = measure_rate([0.5, 2.0], "MB", weight=float, clock=lambda: next(clock))
    assert rate == Rate(items=2.5, seconds=2.0, unit="MB")


def test_nothing_measured_gives_no_time() -> None:
    assert measure_rate([], "rows").seconds_for(10) is None


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2e12, "2.0 TB")]
)
def test_sizes_in_words(count: int, words: str) -> None:
    assert size_words(int(count)) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.2, "3 s"), (600, "10 min"), (7200, "2.0 h"), (4e7, "11,111.1 h")]
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


@pytest.mark.parametrize(
    ("estimate", "output"),
    [
        (Estimate(inputs={}), "unknown until it is made"),
        (Estimate(inputs={}, min_bytes=10), "at least 10 bytes"),
        (Estimate(inputs={}, min_bytes=10, max_bytes=10), "10 bytes"),
        (Estimate(inputs={}, min_bytes=10, max_bytes=20), "10 bytes to 20 bytes"),
        (Estimate(inputs={}, max_bytes=20), "up to 20 bytes"),
        (Estimate(inputs={}, expected_bytes=20), "about 20 bytes, if all is like the first items"),
    ],
)
def test_output_in_words(estimate: Estimate, output: str) -> None:
    assert f"output     {output}" in estimate_lines(estimate, 0)


def test_the_table_says_all_that_is_known() -> None:
    rate = Rate(items=4, seconds=2.0, unit="images")
    estimate = Estimate(
        inputs={"INPUT": "40 images"}, min_bytes=3000, seconds=20.0, rate=rate, note="a note"
    )
    assert estimate_lines(estimate, 2000) == [
        "input      INPUT 40 images",
        "output     at least 3.0 kB",
        "time       20 s, at 2 images/s (measured on 4 in 2.0 s)",
        "free       2.0 kB at --output: NOT ENOUGH",
        "note       a note",
        "dry run: nothing was written",
    ]
    assert "free       unknown at --output" in estimate_lines(estimate, None)


def test_a_disk_that_is_too_small_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 100))
    folder = tmp_path / "not" / "made"
    require_disk_space(100, folder, force=False)
    with pytest.raises(InputError, match=r"at least 101 bytes, 100 bytes are free there.*--force"):
        require_disk_space(101, folder, force=False)
    require_disk_space(101, folder, force=True)
    assert not folder.parent.exists()


def test_a_remote_place_is_never_refused() -> None:
    assert free_bytes("s3://bucket/out") is None
    require_disk_space(1 << 60, "s3://bucket/out", force=False)


def test_the_first_item_counts_only_where_it_is_alone() -> None:
    assert compute_rate([0.0, 10.0, 11.0, 12.0], "steps") == Rate(items=2, seconds=2, unit="steps")
    assert compute_rate([0.0, 10.0], "steps") == Rate(items=1, seconds=10, unit="steps")
    assert compute_rate([0.0], "steps").seconds_for(5) is None
