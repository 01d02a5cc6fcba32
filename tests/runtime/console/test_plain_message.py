"""A command's error line has no notation of Python's own errors."""

import pytest

from vlmill.runtime.console.command import Parser, plain_message
from vlmill.schemas.errors import InputError


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "--config e: [Errno 21] Is a directory: 'e'; give one",
            "--config e: Is a directory; give one",
        ),
        ("--index e ([Errno 2] No such file: 'e/a.json')", "--index e (e/a.json: No such file)"),
        (
            "b: 'utf-8' codec can't decode byte 0xff in position 7: invalid start byte",
            "b: not utf-8 text (byte 7)",
        ),
        ("--seed -1: expected a number from 0", "--seed -1: expected a number from 0"),
    ],
)
def test_a_message_without_python_notation(message: str, expected: str) -> None:
    assert plain_message(InputError(message)) == expected


def test_a_wrong_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="job")
    parser.add_argument("--share", type=float)
    with pytest.raises(SystemExit):
        parser.parse_args(["--share", "abc"])
    assert "--share: expected a number, got 'abc'" in capsys.readouterr().err
