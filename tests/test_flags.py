"""Numeric flags of every command refuse values that are invalid or out of range."""

import argparse
from collections.abc import Callable

import pytest
from docs.site.hooks import COMMANDS, helps

from vlmill.runtime.console.command import int_at_least, non_negative_float

NUMBER = int_at_least(0).__code__  # of all such types
Flag = tuple[str, list[str], str, Callable[[str], object]]  # command, subcommand, flag, its type
CRAWL, WEB, MANIFEST, TABLES, NEAREST, HARD = (
    f"python -m vlmill.pipelines.{job}"
    for job in ("crawl", "web_pairs", "manifest", "tables", "nearest_images", "hard_negatives")
)
# Counts of which there must be one: what would otherwise do nothing, or wait for ever.
AT_LEAST_ONE = [
    *((CRAWL, flag) for flag in ("--workers", "--buckets", "--warc-bytes")),
    *((WEB, flag) for flag in ("--workers", "--shards")),
    *((f"{MANIFEST} {name}", "--workers") for name in ("own", "coco")),
    *((f"{MANIFEST} {name}", "--rows-per-shard") for name in ("own", "coco")),
    *((NEAREST, flag) for flag in ("--top", "--threads", "--images-per-shard")),
    *((HARD, flag) for flag in ("--workers", "--pairs-per-shard", "--document-parts")),
    (f"{TABLES} sample", "--rows"),
    *(("train-vl search", flag) for flag in ("--top", "--threads", "--rerank")),
    *(("train-vl serve", flag) for flag in ("--batch-size", "--index-seconds")),
    *((f"extract-rois {name}", "--batch-size") for name in ("run", "serve")),
    ("extract-rois import", "--images-per-shard"),
]


@pytest.fixture(scope="module")
def flags() -> list[Flag]:
    """Each flag that is a number, of each command and subcommand, as its parser declares it."""
    declared: list[Flag] = []
    shown: list[argparse.ArgumentParser] = []
    print_help = argparse.ArgumentParser.print_help

    def seen(parser: argparse.ArgumentParser) -> None:
        shown.append(parser)
        print_help(parser)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "print_help", seen)
        for name, main in COMMANDS.items():
            for command, _ in helps(name, main):
                words = command.removeprefix(name).split()
                declared += [
                    (name, words, action.option_strings[-1], action.type)
                    for action in shown.pop()._actions
                    if action.option_strings and callable(action.type)
                ]
    return declared


def refusals(flags: list[Flag], value: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each flag says to a value that no command may take."""
    said = []
    for name, words, flag, _ in flags:
        with pytest.raises(SystemExit) as stopped:
            COMMANDS[name]([*words, f"{flag}={value}"])
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and error.count("\n") == 1, (name, words, flag)
        said.append(error)
    return said


def test_no_flag_takes_what_is_no_finite_number(
    flags: list[Flag], capsys: pytest.CaptureFixture[str]
) -> None:
    floats = [flag for flag in flags if flag[3] in (float, non_negative_float)]
    assert {"--delay", "--threshold", "--seconds", "--lock-seconds"} <= {flag[2] for flag in floats}
    for error in refusals(floats, "nan", capsys):
        assert "'nan': expected a finite number" in error


def test_counts_have_a_least(flags: list[Flag], capsys: pytest.CaptureFixture[str]) -> None:
    counts = [flag for flag in flags if getattr(flag[3], "__code__", None) is NUMBER]
    assert {"--workers", "--top", "--rows", "--max-boxes"} <= {flag[2] for flag in counts}
    for error in refusals(counts, "-1", capsys):
        assert "'-1': expected a whole number from " in error


def test_there_is_one_at_least(flags: list[Flag], capsys: pytest.CaptureFixture[str]) -> None:
    named = {(" ".join((flag[0], *flag[1])), flag[2]): flag for flag in flags}
    for error in refusals([named[one] for one in AT_LEAST_ONE], "0", capsys):
        assert "'0': expected a whole number from 1" in error


def test_a_lock_of_less_than_no_time_is_refused(
    flags: list[Flag], capsys: pytest.CaptureFixture[str]
) -> None:
    locks = [flag for flag in flags if flag[2] == "--lock-seconds"]
    assert len(locks) > 8
    for error in refusals(locks, "-1", capsys):
        assert "'-1': expected a number from 0" in error


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", "inf", "1e3"])
def test_a_count_is_a_whole_number_from_its_least(text: str) -> None:
    assert int_at_least(0)("0") == 0 and int_at_least(1)("1000000") == 1_000_000
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': expected a whole number"):
        int_at_least(1)(text)


@pytest.mark.parametrize("text", ["-1", "-0.1", "nan", "inf", "-inf"])
def test_a_number_from_zero_is_finite(text: str) -> None:
    assert non_negative_float("0.5") == 0.5 and non_negative_float("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': expected a (finite )?number"):
        non_negative_float(text)
