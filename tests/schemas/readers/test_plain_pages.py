"""Places of values in plain Parquet pages: those that pyarrow reads, and never beyond the file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.shards import ShardWriter
from vlmill.schemas.readers.plain_pages import NULL, DamagedPages, plain_places
from vlmill.schemas.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS


def file_of(groups: list[list[bytes | None]], **options: Any) -> bytes:
    sink, schema = io.BytesIO(), pa.schema([("before", pa.int32()), ("x", pa.large_binary())])
    about = {"compression": "none", "use_dictionary": False, "write_statistics": False} | options
    with pq.ParquetWriter(sink, schema, **about) as writer:
        for values in groups:
            columns = [pa.array([1] * len(values), pa.int32()), pa.array(values, pa.large_binary())]
            writer.write_table(pa.table(columns, schema=schema))
    return sink.getvalue()


def values_of(data: bytes, group: int) -> list[bytes | None] | None:
    places = plain_places(data, pq.ParquetFile(io.BytesIO(data)).metadata, group, "x")
    if places is None:
        return None
    return [
        None if at == NULL else data[at : at + size]
        for at, size in zip(*(p.tolist() for p in places), strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(
        st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=70), max_size=3
    ),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([1, 64, 1 << 20]),
    statistics=st.booleans(),
)
def test_places_hold_what_was_written(
    groups: list[list[bytes | None]], version: str, page: int, statistics: bool
) -> None:
    data = file_of(
        groups,
        data_page_version=version,
        data_page_size=page,
        write_batch_size=8,
        write_statistics=statistics,
    )
    for number, values in enumerate(groups):
        assert values_of(data, number) == values


def test_columns_that_are_not_plain_are_left_to_pyarrow() -> None:
    values: list[bytes | None] = [b"ab", b"ab", None]
    for options in (
        {"compression": "zstd"},
        {"use_dictionary": True},
        {"column_encoding": {"x": "DELTA_LENGTH_BYTE_ARRAY"}},
    ):
        assert values_of(file_of([values], **options), 0) is None


def test_a_required_column_has_no_levels() -> None:
    sink = io.BytesIO()
    schema = pa.schema([pa.field("x", pa.large_binary(), nullable=False)])
    table = pa.table([pa.array([b"abc", b"", b"d"], pa.large_binary())], schema=schema)
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    assert values_of(sink.getvalue(), 0) == [b"abc", b"", b"d"]


def test_a_file_that_was_cut_is_damaged() -> None:
    whole = file_of([[b"abcdefgh"] * 20])
    metadata = pq.ParquetFile(io.BytesIO(whole)).metadata
    with pytest.raises(DamagedPages, match="outside the file"):
        plain_places(whole[:100], metadata, 0, "x")


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
    values=st.lists(st.integers(0, 255), min_size=4, max_size=4),
)
def test_whatever_a_page_holds_no_place_is_outside(places: list[float], values: list[int]) -> None:
    whole = file_of([[b"abcdefgh", None, b"", b"0123456789" * 9] * 5], data_page_size=64)
    metadata = pq.ParquetFile(io.BytesIO(whole)).metadata
    chunk = metadata.row_group(0).column(1)
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    data = bytearray(whole)
    for at, value in zip(places, values, strict=False):
        data[start + int(at * size)] = value
    try:
        found = plain_places(bytes(data), metadata, 0, "x")
    except DamagedPages:
        return
    if found is not None:
        assert (found[0] + found[1] <= len(data)).all()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regions")
    rows = [
        RegionRow(
            image_id=str(i),
            width=9,
            height=9,
            boxes=np.zeros((3, 4), np.float32),
            features=np.full((3, 8), i, np.float16),
        )
        for i in range(6)
    ]
    arrays = region_arrays(dtype="float16", feature_dim=8)
    with ShardWriter(folder, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions(rows[:4], dtype="float16"))
        writer.write(encode_regions(rows[4:], dtype="float16"))
    return next(folder.glob("*.parquet"))


def test_features_are_views_of_the_file(shard: Path) -> None:
    reader = RegionReader(shard)
    data = np.fromfile(shard, np.uint8)
    for number in range(6):
        row, place = reader.row(number), reader.place("features", number)
        assert row.features is not None and place is not None
        assert not row.features.flags.owndata and not row.features.flags.writeable
        assert (reader.bytes_at(*place) == data[place[1] : place[1] + place[2]]).all()
        assert (row.features == number).all() and row.features.shape == (3, 8)
        reader.read_ahead(*place)
        assert reader.place("class_probs", number) is None


def test_a_hostile_shard_gives_errors_and_no_crash(shard: Path, tmp_path: Path) -> None:
    whole, metadata = shard.read_bytes(), pq.ParquetFile(shard).metadata
    last = metadata.row_group(1).column(metadata.num_columns - 1)
    end = last.data_page_offset + last.total_compressed_size
    rng, refused = np.random.default_rng(0), 0
    target = tmp_path / shard.name
    for _ in range(100):
        data = bytearray(whole)
        for at in rng.integers(4, end, size=3):
            data[at] = rng.integers(256)
        target.write_bytes(data)
        try:
            assert len(list(RegionReader(target))) == 6
        except (InputError, KeyError):
            refused += 1
    assert refused
