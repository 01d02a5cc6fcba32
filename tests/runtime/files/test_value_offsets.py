"""Places of binary values: what pyarrow reads, or none; never outside of the file."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vlmill.runtime.files.growing import GrowingFile
from vlmill.runtime.files.manifest import verify_folder, write_manifest
from vlmill.runtime.files.shards import ShardWriter, describe_shard
from vlmill.runtime.files.value_offsets import KEY, NULL, ByteRangesWriter, ShardByteRanges
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, Table

Values = list[bytes | None]
SCHEMA = pa.schema([("before", pa.int32()), ("x", pa.large_binary())])
SPEC = Table(name="test", version="1.0", schema=SCHEMA)


def write_file(path: Path, groups: list[Values], **options: Any) -> None:
    """A file as the shards' writer makes it, but with pages of any size and form."""
    about = {"compression": "none", "use_dictionary": False, "write_statistics": False} | options
    places, file = ByteRangesWriter(SPEC), GrowingFile(path)
    with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, SCHEMA, **about) as writer:
        for values in groups:
            columns = [pa.array([1] * len(values), pa.int32()), pa.array(values, pa.large_binary())]
            table = pa.table(columns, schema=SCHEMA)
            file.extend(sink.tell())
            writer.write_table(table)
            if (written := file.extend(sink.tell())) is not None:
                places.add(table, written)
        writer.add_key_value_metadata(places.metadata())


def values_of(path: Path, group: int, name: str = "x") -> Values | None:
    places = ShardByteRanges(path, pq.read_metadata(path)).find_ranges(group, name)
    if places is None:
        return None
    content = path.read_bytes()
    return [
        None if size == NULL else content[at : at + size]
        for at, size in zip(*(part.tolist() for part in places), strict=True)
    ]


def write_images(folder: Path, groups: list[Values], **options: Any) -> Path:
    empty = dict.fromkeys(IMAGES.schema.names)
    number = 0
    with ShardWriter(folder, IMAGES, 0, 1, **options) as writer:
        for values in groups:
            rows = [
                {**empty, "image_id": str(number + i), "bytes": value}
                for i, value in enumerate(values)
            ]
            writer.write(rows)
            number += len(values)
    write_manifest(folder, [writer.shard], job="test", settings={})
    return writer.path


GROUPS: list[Values] = [[b"a" * 40, None, b"bc" * 20, b""], [b"def" * 70], [None, b"", None]]


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(
        st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=70), max_size=3
    ),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([1, 64, 1 << 20]),
    statistics=st.booleans(),
)
def test_places_hold_what_was_written_or_are_unknown(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[Values],
    version: str,
    page: int,
    statistics: bool,
) -> None:
    path = tmp_path_factory.mktemp("places") / "x.parquet"
    options = {"data_page_version": version, "data_page_size": page, "write_batch_size": 8}
    write_file(path, groups, write_statistics=statistics, **options)
    for number, values in enumerate(groups):
        assert values_of(path, number) in (values, None)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page", [1, 64, 1 << 20])
def test_values_are_found_across_pages(tmp_path: Path, version: str, page: int) -> None:
    rng = np.random.default_rng(page)
    groups: list[Values] = [
        [None if i % 5 == 2 else rng.bytes(i % 90) for i in range(300)],
        [None] * 300,
        [b"", None, b"", rng.bytes(100)] + [b"", None] * 40,
        [bytes(2048) for _ in range(30)],  # all the same
    ]
    options = {"data_page_version": version, "data_page_size": page, "write_batch_size": 8}
    write_file(tmp_path / "x.parquet", groups, **options)
    assert [values_of(tmp_path / "x.parquet", g) for g in range(len(groups))] == groups


def test_a_required_column_has_no_levels(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field(0), SCHEMA.field(1).with_nullable(False)])
    values: Values = [b"abc" * 30, b"", b"d"]
    path = tmp_path / "x.parquet"
    table = pa.table([pa.array([1, 1, 1], pa.int32()), pa.array(values, pa.large_binary())], schema)
    places, file = ByteRangesWriter(SPEC), GrowingFile(path)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, schema, **options) as writer:
        writer.write_table(table)
        written = file.extend(sink.tell())
        assert written is not None
        places.add(table, written)
        writer.add_key_value_metadata(places.metadata())
    assert values_of(path, 0) == values


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": True},
        {"column_encoding": {"x": "DELTA_BYTE_ARRAY"}},
    ],
)
def test_columns_that_are_not_plain_are_left_to_pyarrow(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "x.parquet"
    write_file(path, [[b"ab" * 50, b"ab" * 50, None]], **options)
    assert values_of(path, 0) is None


def test_a_shard_lists_the_places_of_its_values(tmp_path: Path) -> None:
    path = write_images(tmp_path, GROUPS)
    assert [values_of(path, group, "bytes") for group in range(3)] == GROUPS
    assert verify_folder(tmp_path) == []
    assert len(pq.read_metadata(path).metadata[KEY.encode()]) < 300


def test_a_table_that_is_written_anew_takes_no_places_along(tmp_path: Path) -> None:
    table = pq.read_table(write_images(tmp_path / "one", GROUPS), partitioning=None)
    pq.write_table(table.take([4, 2, 0, 1, 3]), tmp_path / "other.parquet", compression="none")
    assert KEY.encode() not in pq.read_metadata(tmp_path / "other.parquet").metadata
    reader = ImageReader(tmp_path / "other.parquet")
    assert [reader[i] for i in "01234"] == [*GROUPS[0], *GROUPS[1]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.none() | st.sampled_from([b"", b"\0", b"\0" * 9, b"\1\0\0\0", b"x" * 70])),
        max_size=3,
    )
)
def test_images_of_few_bytes_are_read_and_verified(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Values]
) -> None:
    folder = tmp_path_factory.mktemp("images")
    path = write_images(folder, groups)
    assert verify_folder(folder) == []
    reader = ImageReader(path)
    values = [value for group in groups for value in group]
    assert [reader.read_bytes(i) for i in range(len(reader))] == values


# What strangers may write where the places stand.


def numbers(text: str, kind: str, count: int) -> list[int]:
    content = pa.decompress(base64.b64decode(text), count * int(kind[-1]), codec="zstd")
    listed: list[int] = np.frombuffer(content, kind).tolist()
    return listed


def packed(values: list[int], kind: str) -> str:
    return base64.b64encode(
        pa.compress(np.array(values, kind), codec="zstd", asbytes=True)
    ).decode()


def with_places(path: Path, change: Callable[[list[int], list[int]], Any]) -> None:
    """Write the file anew, byte for byte but for the places in its footer.

    ``change`` alters sizes and gaps, or gives what the metadata shall say instead of them.
    """
    metadata = pq.read_metadata(path)
    listed = json.loads(metadata.metadata[KEY.encode()])
    rows = metadata.num_rows
    sizes = numbers(listed["bytes"]["sizes"], "<i4", rows)
    gaps = numbers(listed["bytes"]["gaps"], "<i8", sum(size > 0 for size in sizes))
    said = change(sizes, gaps)
    if said is None:
        said = {"bytes": {"sizes": packed(sizes, "<i4"), "gaps": packed(gaps, "<i8")}}
    table_of = pq.ParquetFile(path)
    groups = [table_of.read_row_group(g) for g in range(table_of.num_row_groups)]
    names = [name for name in IMAGES.schema.names if name != "bytes"]
    options = {"compression": "none", "use_dictionary": names, "write_statistics": names}
    before = path.read_bytes()
    with pq.ParquetWriter(path, table_of.schema_arrow, **options) as writer:
        for group in groups:
            writer.write_table(group)
        writer.add_key_value_metadata({KEY: said if isinstance(said, str) else json.dumps(said)})
    first = metadata.row_group(0).column(0).data_page_offset
    last = metadata.row_group(metadata.num_row_groups - 1).column(metadata.num_columns - 1)
    end = last.data_page_offset + last.total_compressed_size
    assert path.read_bytes()[first:end] == before[first:end]
    shard = describe_shard(path, IMAGES.name)  # with the right checksum
    write_manifest(path.parent, [shard], job="test", settings={})


def shift(numbers: list[int], at: int, by: int) -> None:
    numbers[at] += by


@pytest.mark.parametrize(
    "change",
    [
        lambda sizes, gaps: shift(gaps, 0, 1 << 40),  # beyond the file
        lambda sizes, gaps: shift(gaps, 0, 1),
        lambda sizes, gaps: shift(gaps, 1, -44),  # over the value before
        lambda sizes, gaps: shift(gaps, 1, -(1 << 62)),
        lambda sizes, gaps: gaps.__setitem__(0, -1),
        lambda sizes, gaps: shift(sizes, 2, 1),  # beyond the column
        lambda sizes, gaps: shift(sizes, 4, (1 << 31) - 211),
        lambda sizes, gaps: sizes.__setitem__(1, -7),
    ],
)
def test_places_that_do_not_fit_the_footer_are_not_used(
    tmp_path: Path, change: Callable[[list[int], list[int]], None]
) -> None:
    path = write_images(tmp_path, GROUPS)
    with_places(path, change)
    expected = [value for group in GROUPS for value in group]
    reader = ImageReader(path)
    assert [reader.read_bytes(i) for i in range(len(expected))] == expected
    assert "values of bytes are not at their recorded position" in verify_folder(tmp_path)[0]


def test_verify_tells_an_empty_image_from_none(tmp_path: Path) -> None:
    path = write_images(tmp_path, GROUPS)
    with_places(path, lambda sizes, gaps: sizes.__setitem__(3, NULL))
    assert "row group 0: values of bytes are not at their" in verify_folder(tmp_path)[0]


def swap(sizes: list[int], gaps: list[int]) -> None:
    sizes[0], sizes[2] = sizes[0] + 3, sizes[2] - 3


def test_a_value_of_another_length_than_its_place_is_an_error(tmp_path: Path) -> None:
    path = write_images(tmp_path, GROUPS)
    with_places(path, swap)
    reader = ImageReader(path)
    with pytest.raises(InputError, match="image 0 of row group 0 is not at its recorded position"):
        reader.read_bytes(0)
    with pytest.raises(InputError, match="image 2 of row group 0 is not at its recorded position"):
        reader.read_bytes(2)
    assert reader.read_bytes(4) == GROUPS[1][0]
    assert "row group 0: values of bytes" in verify_folder(tmp_path)[0]


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[1]",
        '{"bytes": 1}',
        '{"bytes": {"sizes": "", "gaps": ""}}',
        '{"bytes": {"sizes": "?", "gaps": ""}}',
        json.dumps({"bytes": {"sizes": packed([1] * 7, "<i4"), "gaps": packed([9] * 7, "<i8")}}),
        json.dumps({"bytes": {"sizes": packed([1] * 8, "<i4"), "gaps": packed([9] * 9, "<i8")}}),
    ],
)
def test_places_that_cannot_be_read_are_named(tmp_path: Path, said: str) -> None:
    path = write_images(tmp_path, GROUPS)
    with_places(path, lambda sizes, gaps: said)
    reader = ImageReader(path)
    with pytest.raises(InputError, match=r"its metadata vlmill\.places cannot be read"):
        reader.read_bytes(0)
    assert "cannot be read" in verify_folder(tmp_path)[0]


@settings(max_examples=100, deadline=None)
@given(
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
    values=st.lists(st.integers(0, 255), min_size=4, max_size=4),
)
@example(places=[0.642578125], values=[1, 0, 0, 0])  # a number of rows below 0
def test_whatever_a_page_holds_no_place_is_outside(
    tmp_path_factory: pytest.TempPathFactory, places: list[float], values: list[int]
) -> None:
    path = tmp_path_factory.mktemp("places") / "x.parquet"
    write_file(path, [[b"abcdefgh", None, b"", b"0123456789" * 9] * 5], data_page_size=64)
    content = bytearray(path.read_bytes())
    for at, value in zip(places, values, strict=False):
        content[int(at * len(content))] = value
    path.write_bytes(content)
    try:
        listed = ShardByteRanges(path, pq.read_metadata(path)).find_ranges(0, "x")
    except (InputError, OSError, pa.ArrowException, UnicodeDecodeError):
        return
    if listed is not None:
        assert (listed.offsets >= 0).all()
        assert (listed.offsets + listed.sizes <= len(content)).all()
