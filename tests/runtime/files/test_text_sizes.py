"""Texts of Parquet files are bounded before they are decoded, however small the file is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlmill.pipelines.crawl.lists import read_lists
from vlmill.pipelines.manifest.reading.columns import parquet_rows
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.runtime.files.reading import find_shards, iter_batches
from vlmill.runtime.files.shards import file_metadata
from vlmill.runtime.files.text_sizes import MAX_BATCH_BYTES, MAX_TEXT_BYTES, limit_batch_rows
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

LONG = "a" * (MAX_TEXT_BYTES + 1)


def write(path: Path, texts: pa.Array, **options: object) -> Path:
    pq.write_table(pa.table({"url": texts}), path, **options)
    return path


def test_a_file_of_some_kilobytes_with_a_gigabyte_of_text_is_refused(tmp_path: Path) -> None:
    """One text that is compressed, and one in a dictionary that every row repeats."""
    one = write(tmp_path / "one", pa.array(["a" * (80 << 20)]), compression="brotli")
    many = write(tmp_path / "many", pa.array([LONG]).take(pa.array([0] * 300)))
    nested = write(tmp_path / "nested", pa.array([[LONG] * 10] * 30))
    for path, size in ((one, r"838861\d\d"), (many, len(LONG)), (nested, len(LONG))):
        before = pa.total_allocated_bytes()
        with pytest.raises(InputError, match=rf"{path}: .* {size} bytes") as told:
            limit_batch_rows(path, 300)
        assert "\n" not in str(told.value)
        assert pa.total_allocated_bytes() - before < 8 * MAX_TEXT_BYTES


def test_every_reader_refuses_it(tmp_path: Path) -> None:
    path = write(tmp_path / "many", pa.array([LONG]).take(pa.array([0] * 300)))
    source = Source(name="many", path=path, member=None, size=1)
    readers = (
        lambda: list(read_lists([path], column=None, follow=0)),
        lambda: list(parquet_rows(source, ["url"])),
    )
    for read in readers:
        with pytest.raises(InputError, match=f"{path}: a text of column url has {len(LONG)} bytes"):
            read()
    columns = {name: [LONG if name == "text" else None] * 300 for name in PAIRS.schema.names}
    columns |= {"pair_id": [f"p{number}" for number in range(300)]}
    schema = PAIRS.schema.with_metadata(file_metadata(PAIRS, {}, {}))
    pairs = tmp_path / "pairs-00000-of-00001.parquet"
    pq.write_table(pa.table(columns, schema=schema), pairs)
    for call in (lambda: find_shards(pairs, PAIRS), lambda: list(iter_batches(pairs, PAIRS))):
        with pytest.raises(InputError, match=f"{pairs}: a text of column text"):
            call()


def test_a_long_text_among_short_ones_is_refused_when_it_is_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "one", pa.array([*["a" * 2_000] * 1_000, LONG]), use_dictionary=False)
    with pytest.raises(InputError, match=f"a text of column url has {len(LONG)} bytes"):
        list(read_lists([path], column=None, follow=0))


def test_long_texts_that_repeat_are_read_in_smaller_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "many", pa.array(["a" * MAX_TEXT_BYTES]).take(pa.array([0] * 300)))
    assert limit_batch_rows(path, 1_000) == MAX_BATCH_BYTES // MAX_TEXT_BYTES


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "zstd"}])
def test_ordinary_columns_are_read_as_before(options: dict[str, object], tmp_path: Path) -> None:
    captions = [f"a dog number {number} runs after a ball" for number in range(20_000)]
    labels = ["conceptual_captions"] * 200_000
    for texts in (captions, labels, [], [None, ""]):
        path = write(tmp_path / "a", pa.array(texts, pa.string()), **options)
        assert limit_batch_rows(path, 65_536) == 65_536
