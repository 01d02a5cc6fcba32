"""Reading strangers' tables: quoting, dirt, and that every row is accounted for."""

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.manifest.reading.detected import detect_delimiter
from vlmill.pipelines.manifest.reading.rows import (
    column_names,
    count_rows,
    find_column_indices,
    read_rows,
    table_file,
)
from vlmill.pipelines.manifest.reading.text_rows import MAX_LINE, Fields
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason


def fields(path: Path, **flags: str | bool | None) -> list[Fields | str]:
    """All columns of every row; of a bad one the reason."""
    table = table_file(path, **flags)  # type: ignore[arg-type]
    rows = read_rows(table, range(len(column_names(table))))
    return [row.reason.value if isinstance(row, Drop) else row for _, row in rows]


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_csv_is_quoted_and_may_hold_line_breaks(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b'a,b\r\n"one, ""two""\nthree",1\r\n\r\n4,5')
    assert fields(path) == [['one, "two"\nthree', "1"], ["4", "5"]]


def test_quotation_marks_of_a_tsv_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", b'a\tb\n"Hello" he said\t"x"\r\n"open\ty\n')
    assert fields(path) == [['"Hello" he said', '"x"'], ['"open', "y"]]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b"\xef\xbb\xbfcaption,file\nx,y\n")
    assert column_names(table_file(path)) == ["caption", "file"]


def test_a_quote_that_nothing_closes_costs_its_line_only(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b'a,b\n1,2\n"3,4\n5,6\n7,8\n')
    assert fields(path) == [["1", "2"], "bad_record", ["5", "6"], ["7", "8"]]


def test_a_quote_that_a_later_row_closes_costs_no_row_between(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b'a,b\n"1,2\n3,4\n"5",6\n')
    assert fields(path) == ["bad_record", ["3", "4"], ["5", "6"]]


def test_ragged_rows_and_other_encodings(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", b"a\tb\n1\n1\t2\t3\ncaf\xe9\t2\ncaf\xc3\xa9\t2\n")
    assert fields(path) == ["bad_record", "bad_record", "bad_encoding", ["café", "2"]]
    assert fields(path, encoding="cp1252")[2] == ["café", "2"]


def test_broken_bytes_of_an_unused_column_cost_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b"a,b\nx,\xff\n")
    assert list(read_rows(table_file(path), [0])) == [(2, ["x"])]


@pytest.mark.parametrize("quote", [b"", b'"'])
def test_lines_without_end_are_bounded(tmp_path: Path, quote: bytes) -> None:
    long = quote + b"x" * (3 * MAX_LINE)
    path = write(tmp_path, "x.csv", b"a,b\n1,2\n" + long + b"\n3,4\n")
    assert fields(path) == [["1", "2"], "too_long", ["3", "4"]]


def test_a_field_of_nothing_but_lines_is_bounded(tmp_path: Path) -> None:
    found = fields(write(tmp_path, "x.csv", b'a,b\n"' + b"1,2\n" * (MAX_LINE // 4 + 10)))
    assert found[0] == "bad_record" and found[1:] == [["1", "2"]] * (MAX_LINE // 4 + 9)


def test_nul_bytes_are_characters(tmp_path: Path) -> None:
    assert fields(write(tmp_path, "x.csv", b"a,b\nx\0y,2\n")) == [["x\0y", "2"]]


def test_without_a_header_columns_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", b"a dog\thttp://a/1.jpg\n")
    assert column_names(table_file(path, header=False)) == ["1", "2"]
    assert fields(path, header=False) == [["a dog", "http://a/1.jpg"]]


def test_parquet_texts_numbers_and_nulls(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, pa.array([b"ok", b"\xff\xfe"], pa.binary()).buffers()
    )
    table = pa.table({"n": [7, None], "t": broken, "d": pa.array(["x", "y"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "x.parquet")
    assert fields(tmp_path / "x.parquet") == [["7", "ok", "x"], "bad_encoding"]
    assert list(read_rows(table_file(tmp_path / "x.parquet"), [0])) == [(1, ["7"]), (2, [None])]


def test_parquet_columns_of_another_type_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [["a", "b"]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"t is list<.*expected text or whole numbers"):
        fields(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"", "is empty"),
        ("x.csv", b"\xff\xfea\0,\0b\0", "UTF-16.*iconv"),
        ("x.dat", b"a", "ends in none of .csv, .txt, .tsv, .tab, .json, .*; say --format"),
        ("x.csv.gz", b"a", "ends in none of .csv, .*; unpack it"),
        ("x.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1old", "old Excel workbook"),
        ("x.json", b"{}", "JSON|list has no objects"),
        ("x.parquet", b"PAR1 not", "not a readable Parquet"),
        ("x.csv", b'"open', "first line is not a row"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fields(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"delimiter": "ab"}, "--delimiter 'ab': expected one character"),
        ({"encoding": "utf-32"}, "--encoding utf-32: unknown, or not a superset of ASCII"),
        ({"encoding": "klingon"}, "--encoding klingon: unknown"),
    ],
)
def test_flags_that_fit_no_file(tmp_path: Path, flags: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fields(write(tmp_path, "x.csv", b"a\nb\n"), **flags)


def test_a_missing_column_lists_the_others_and_the_nearest(tmp_path: Path) -> None:
    table = table_file(write(tmp_path, "x.csv", b"image,caption,image\n"))
    assert find_column_indices(table, [("--text-column", "caption")]) == [1]
    with pytest.raises(InputError, match="has image, caption, image; did you mean caption"):
        find_column_indices(table, [("--text-column", "captoin")])
    with pytest.raises(InputError, match="several columns of this name"):
        find_column_indices(table, [("--image-column", "image")])


def test_a_column_without_a_name_is_listed_as_such(tmp_path: Path) -> None:
    table = table_file(write(tmp_path, "x.csv", b"image,,caption\n"))
    with pytest.raises(InputError, match=r"has image, \(no name\), caption"):
        find_column_indices(table, [("--text-column", "text")])


def test_one_known_column_is_enough_to_detect_the_separator(tmp_path: Path) -> None:
    plain = table_file(write(tmp_path, "x.csv", b"image;caption\n1;a dog\n"))
    table = detect_delimiter(plain, ["image", "captoin"])
    with pytest.raises(InputError, match="has image, caption; did you mean caption"):
        find_column_indices(table, [("--text-column", "captoin")])
    assert detect_delimiter(plain, ["file", "text"]) == plain
    assert detect_delimiter(plain, [], [("text", "caption"), ("image",)]).delimiter == ";"
    assert detect_delimiter(plain, ["image"], [("text", "image,caption")]).delimiter == ";"


def test_another_delimiter_is_suspected(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", b"image;caption\n1;a dog\n")
    with pytest.raises(InputError, match="see --delimiter"):
        find_column_indices(table_file(path), [("--text-column", "caption")])
    assert fields(path, delimiter=";") == [["1", "a dog"]]


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=8))
def test_csv_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    folder = tmp_path_factory.mktemp("round")
    assert fields(write(folder, "x.csv", text.getvalue().encode())) == rows


@given(st.lists(st.binary(max_size=30), max_size=12), st.sampled_from(["csv", "tsv"]))
def test_any_bytes_are_counted_rows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = write(folder, f"x.{ending}", b"a,b\tc\n" + b"\n".join(lines))
    table = table_file(path)
    rows = list(read_rows(table, [0]))
    *_, counted = count_rows(read_rows(table, [0]))
    numbers = [number for number, _ in rows]
    assert counted == len(rows) and numbers == sorted(set(numbers))
    reasons = {row.reason for _, row in rows if isinstance(row, Drop)}
    assert reasons <= {Reason.BAD_RECORD, Reason.BAD_ENCODING}
