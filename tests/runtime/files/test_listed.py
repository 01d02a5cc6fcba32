"""Files are compared with the record of what was written."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from vlmill.runtime.files.listed import describe_file, file_problems, parse_listed


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"abc", None), (b"abd", "SHA-256 differs"), (b"ab", "2 bytes and was written with 3")],
)
def test_a_file_that_has_changed_is_named(
    content: bytes, expected: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    record = describe_file(path)
    assert record.sha256 == hashlib.sha256(b"abc").hexdigest()
    path.write_bytes(content)
    problems = file_problems(tmp_path, [record])
    assert [expected in p and str(path) in p for p in problems if expected] == [True] * bool(
        expected
    )
    path.unlink()
    assert file_problems(tmp_path, [record]) == [f"{path} is missing"]


def test_without_hashes_or_a_digest_the_size_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    record = describe_file(path)
    path.write_bytes(b"abd")
    assert file_problems(tmp_path, [record], hashes=False) == []
    assert file_problems(tmp_path, [dataclasses.replace(record, sha256=None)]) == []


def test_names_are_of_the_folder() -> None:
    (record,) = parse_listed([{"name": "../../a", "bytes": 3, "records": 1}])
    assert (record.name, record.sha256) == ("a", None)
