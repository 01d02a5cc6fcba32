from pathlib import Path

import pytest

from vlmill.pipelines.filters.labels import read_labels, require_rows
from vlmill.schemas.errors import InputError

LINES = [f"a{n}\t{n % 2}" for n in range(20)]


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "labels.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_tabs_commas_words_and_headers(tmp_path: Path) -> None:
    labels = read_labels(written(tmp_path, *LINES))
    assert labels == {f"a{n}": n % 2 == 1 for n in range(20)}
    commas = [line.replace("\t", ",") + ',"a note, too"' for line in LINES]
    assert read_labels(written(tmp_path, "image_id,label", *commas, "")) == labels
    words = [f"a{n}\t{('No', 'YES')[n % 2]}" for n in range(20)]
    assert read_labels(written(tmp_path, *words, *words[:3])) == labels


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*LINES, "b\tmaybe"], "line 21 has the label 'maybe'"),
        ([*LINES, "b"], "line 21 has the label ''"),
        ([*LINES, "a1\t0"], "a1 is both 1 and 0 .line 21"),
        ([line for line in LINES if line.endswith("1")], "0 of 10 ids have the label 0"),
        ([line for line in LINES if line.endswith("0")], "0 of 10 ids have the label 1"),
        ([], "0 of 0 ids"),
    ],
)
def test_what_are_no_labels(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_labels(written(tmp_path, *lines))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes", "absent", "."):
        with pytest.raises(InputError, match="--labels"):
            read_labels(tmp_path / name)


def test_ids_without_rows_are_named() -> None:
    require_rows({"a": True}, {"a": 1, "b": 2}, "--images x")
    with pytest.raises(InputError, match=r"2 of 3 ids have no row in --images x \(c, d\)"):
        require_rows({"a": True, "c": True, "d": False}, {"a": 1}, "--images x")
