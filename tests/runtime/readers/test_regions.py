"""Regions: what is encoded is what is read, by any order of access."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import find_value

from vlmill.runtime.files.contract import read_parquet_footer
from vlmill.runtime.files.shards import FINITE, ShardWriter, is_marked_finite, write_shard
from vlmill.runtime.readers.region_rows import LARGEST, MIN_CHUNK
from vlmill.runtime.readers.regions import (
    RegionReader,
    RegionRow,
    encode_regions,
    from_stored,
    region_arrays,
    to_stored,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS


def row(name: str, count: int, dim: int = 6, **changes: Any) -> RegionRow:
    random = np.random.default_rng(sum(name.encode()))
    corners = random.uniform(0, 50, (count, 2))
    values: dict[str, Any] = {
        "image_id": name,
        "width": 200,
        "height": 100,
        "boxes": np.hstack([corners, corners + 20]).astype(np.float32),
        "features": random.normal(size=(count, dim)).astype(np.float16),
        "class_ids": random.integers(0, 1600, count).astype(np.int16),
        "class_scores": random.random(count).astype(np.float32),
        "class_probs": random.random((count, 3)).astype(np.float16),
    }
    return RegionRow(**{**values, **changes})


def write(
    folder: Path, groups: list[list[RegionRow]], index: int = 0, total: int = 1, **about: Any
) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=6, class_probs_dim=3)
    with ShardWriter(folder, REGIONS, index, total, producer=about, arrays=arrays) as writer:
        for rows in groups:
            writer.write(encode_regions(rows, dtype="float16"))


def assert_equal(found: RegionRow, expected: RegionRow) -> None:
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(found, name), value)
            assert getattr(found, name).dtype == value.dtype
        else:
            assert getattr(found, name) == value


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_round_trip_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, counts: list[list[int]], order: Any
) -> None:
    folder = tmp_path_factory.mktemp("regions")
    groups = [[row(f"{g}/{k}", n) for k, n in enumerate(c)] for g, c in enumerate(counts)]
    write(folder, groups)
    reader = RegionReader(folder, cached_rows=1)
    rows = [r for group in groups for r in group]
    assert reader.image_ids == [r.image_id for r in rows]
    order.shuffle(rows)
    for expected in rows:
        assert_equal(reader[expected.image_id], expected)


def test_several_shards_are_one_table(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 2)], [row("b", 0)]], 0, 2, detector_fingerprint="f1")
    write(tmp_path, [[row("c", 3)]], 1, 2, detector_fingerprint="f1")
    reader = RegionReader(tmp_path)
    assert [r.image_id for r in reader] == ["a", "b", "c"]
    assert (len(reader), reader.feature_dim, reader.detector_fingerprint) == (3, 6, "f1")
    assert [reader.num_boxes(image_id) for image_id in "abc"] == [2, 0, 3]
    assert "a" in reader
    assert "d" not in reader
    with pytest.raises(KeyError):
        reader["d"]


def test_shards_of_two_detectors_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 1)]], 0, 2, detector_fingerprint="f1")
    write(tmp_path, [[row("b", 1)]], 1, 2, detector_fingerprint="f2")
    with pytest.raises(InputError, match="different detectors"):
        RegionReader(tmp_path)


def test_an_image_with_two_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 1)], [row("a", 2)]])
    with pytest.raises(InputError, match="a has two rows"):
        RegionReader(tmp_path)


def test_what_the_producer_lacks_stays_none(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 2, class_ids=None, class_scores=None, class_probs=None)]])
    found = RegionReader(tmp_path)["a"]
    assert (found.class_ids, found.class_probs, found.global_feature) == (None, None, None)
    assert RegionReader(tmp_path).detector_fingerprint is None


def test_bytes_that_do_not_fit_the_boxes_are_reported(tmp_path: Path) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=7)
    with ShardWriter(tmp_path, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([row("a", 2, class_probs=None)], dtype="float16"))
    with pytest.raises(InputError, match=r"a: features has 24 bytes, 2 boxes x 7 float16 are 28"):
        RegionReader(tmp_path)["a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((1, 6))}, "1 features for 2 boxes"),
        ({"boxes": np.zeros((2, 5), np.float32)}, r"boxes are \(2, 5\)"),
        ({"boxes": np.full((2, 4), np.nan, np.float32)}, "not finite"),
        ({"boxes": np.full((2, 4), 1e300)}, "a box is not finite"),
        ({"class_scores": np.full(2, np.nan, np.float32)}, "a class's score is not finite"),
        ({"features": np.full((2, 6), 70_000.0)}, "store them as float32"),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_regions([row("a", 2, **changes)], dtype="float16")


def test_the_highest_probabilities_and_their_columns(tmp_path: Path) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=6, class_probs_dim=1601, top_k=3)
    assert arrays["class_probs"] == {"dtype": "float16", "dim": 3, "of": 1601}
    numbers = np.array([[1600, 3, 0], [7, 8, 9]], np.uint16)
    some, none = row("a", 2, class_prob_ids=numbers), row("b", 0, class_prob_ids=numbers[:0])
    with ShardWriter(tmp_path, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([some, none], dtype="float16"))
    reader = RegionReader(tmp_path)
    assert_equal(reader["a"], some)
    assert_equal(reader["b"], none)


@pytest.mark.parametrize("dim", [6, MIN_CHUNK])  # joined values, and a chunk for each
def test_small_and_large_values_and_none_are_stored_alike(tmp_path: Path, dim: int) -> None:
    last = row("d", 1, features=None, class_probs=None)
    rows = [row("a", 2, dim), row("b", 0, dim), row("c", 3, dim), last]
    table = encode_regions(rows, dtype="float16")
    assert table.column("features").num_chunks == (1 if dim == 6 else len(rows))
    table.validate(full=True)
    arrays = region_arrays(dtype="float16", feature_dim=dim, class_probs_dim=3)
    with ShardWriter(tmp_path, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(table)
    reader = RegionReader(tmp_path)
    for number, expected in enumerate(rows):
        assert_equal(reader.row(number), expected)
        assert (reader.row(number).features is None) == (expected.features is None)
    assert not encode_regions([], dtype="float16").num_rows


def test_columns_without_their_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="class_prob_ids without class_probs"):
        encode_regions([row("a", 2, class_prob_ids=np.zeros((2, 5)))], dtype="float16")


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_rounds_to_nearest(value: float) -> None:
    exact = np.array([value], np.float32)
    expected = torch.from_numpy(exact).bfloat16()
    if max(abs(value), abs(expected.item())) > LARGEST:
        with pytest.raises(ValueError, match="bfloat16 cannot hold"):
            to_stored(exact, "bfloat16")
        return
    once = from_stored(to_stored(exact, "bfloat16"), "bfloat16")
    assert once.dtype == np.float32
    assert once.tolist() == expected.float().tolist()
    assert from_stored(to_stored(once, "bfloat16"), "bfloat16").tolist() == once.tolist()


def lists_of_python(row: RegionRow, dtype: str) -> dict[str, Any]:
    """A row's values as plain Python has them, from which Arrow makes the table by itself."""
    values: dict[str, Any] = {**vars(row), "num_boxes": len(row.boxes)}
    for name in ("features", "class_probs", "global_feature"):
        if values[name] is not None:
            values[name] = to_stored(values[name], dtype).tobytes()
    if row.class_prob_ids is not None:
        values["class_prob_ids"] = row.class_prob_ids.astype("<u2").tobytes()
    values["boxes"] = row.boxes.astype(np.float32)
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in values.items()}


MIXED = [
    row("a", 3, global_feature=np.arange(4, dtype=np.float32)),
    row("b", 0),
    row("c", 2, features=None, class_ids=None, class_scores=None, class_probs=None),
    row("d", 4, class_prob_ids=np.arange(12).reshape(4, 3), boxes=np.eye(4)),
    row("e", 1, class_ids=np.array([-1]), class_scores=np.array([0.1]), attribute_ids=np.ones(1)),
    row("f", 2, attribute_ids=np.array([7, 8], np.int16), attribute_scores=np.ones(2, np.float32)),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rows", [MIXED, MIXED[:1], MIXED[2:3], []])
def test_the_bytes_are_those_of_lists_of_python(
    tmp_path: Path, rows: list[RegionRow], dtype: str
) -> None:
    schema = REGIONS.schema.with_metadata({FINITE: "true"})
    expected = pa.Table.from_pylist([lists_of_python(r, dtype) for r in rows], schema=schema)
    contents = []
    for name, checked in (("plain", False), ("checked", True)):
        table = encode_regions(rows, dtype=dtype, checked=checked)
        table.validate(full=True)
        assert table.equals(expected, check_metadata=True)
        write_shard(tmp_path / name, REGIONS, table)
        contents += [path.read_bytes() for path in (tmp_path / name).iterdir()]
    write_shard(tmp_path / "expected", REGIONS, expected)
    assert contents == 2 * [path.read_bytes() for path in (tmp_path / "expected").iterdir()]


def test_numbers_that_a_column_cannot_hold_are_refused() -> None:
    for ids in (np.array([40_000]), np.array([0.5])):
        with pytest.raises(ValueError, match=r"40000|truncated"):
            encode_regions([row("a", 1, class_ids=ids)], dtype="float16")
    with pytest.raises(ValueError, match=r"a: class_ids are \(2, 1\), must be \(2,\)"):
        encode_regions([row("a", 2, class_ids=np.zeros((2, 1), np.int16))], dtype="float16")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e10, -3e38])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_not_finite_or_overflows_is_never_stored(value: float, dtype: str) -> None:
    with pytest.raises(ValueError, match=dtype):
        to_stored(np.array([value], np.float32), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["features", "class_probs", "global_feature"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_the_writer_does_not_vouch_for_is_looked_at(
    tmp_path: Path, dtype: str, name: str, compression: str
) -> None:
    whole = np.zeros(6, np.float32)
    table = encode_regions([row(i, 2, global_feature=whole) for i in ("a", "b")], dtype=dtype)
    plain = table.to_pylist()
    plain.append({**plain[0], "image_id": "c", name: None})
    infinity = {"float16": b"\x00\xfc", "bfloat16": b"\x80\xff", "float32": b"\x00\x00\x80\xff"}
    overflow = infinity | {"bfloat16": b"\x80\x7e", "float32": b"\x00\x00\x80\xfe"}  # 2e38
    for bad, last in ((1, infinity[dtype]), (3, overflow[dtype])):
        plain.insert(bad, {**plain[0], "image_id": f"bad-{bad}"})
        plain[bad][name] = plain[bad][name][: -len(last)] + last
    arrays = region_arrays(dtype=dtype, feature_dim=6, class_probs_dim=3)
    about: dict[str, Any] = {"arrays": arrays, "compression": compression}
    write_shard(tmp_path / "theirs", REGIONS, plain, **about)
    reader = RegionReader(tmp_path / "theirs")
    expected = [True, False, True, False, True, False]
    assert [reader.is_finite(number) for number in (0, 1, 2, 3, 4, 1)] == expected
    assert [pickle.loads(pickle.dumps(reader)).is_finite(n) for n in (0, 1)] == [True, False]
    write_shard(tmp_path / "ours", REGIONS, table, **about)
    reader = RegionReader(tmp_path / "ours")
    assert reader.is_finite(0) and reader.is_finite(1)


def test_scores_and_boxes_are_looked_at_too(tmp_path: Path) -> None:
    plain = encode_regions([row(i, 1) for i in "abcde"], dtype="float16").to_pylist()
    plain[1]["class_scores"] = [float("inf")]
    plain[2]["boxes"] = [[0.0, 0.0, float("inf"), 1.0]]
    plain[3]["boxes"] = [[0.0, 0.0, 1e30, 1.0]]
    plain[4]["width"] = 0  # boxes are fed as shares of it
    arrays = region_arrays(dtype="float16", feature_dim=6, class_probs_dim=3)
    write_shard(tmp_path, REGIONS, plain, arrays=arrays)
    reader = RegionReader(tmp_path)
    assert [reader.is_finite(number) for number in range(5)] == [True, *[False] * 4]


def test_a_row_of_a_marked_shard_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [[row("a", 2)], [row("b", 2)]])
    reader = RegionReader(tmp_path)
    monkeypatch.setattr(RegionReader, "locate_row", None)
    assert reader.is_finite(0) and reader.is_finite(1)


def test_one_table_that_is_not_marked_takes_the_mark_from_its_shard(tmp_path: Path) -> None:
    arrays = region_arrays(dtype="float16", feature_dim=6, class_probs_dim=3)
    ours = encode_regions([row("a", 2)], dtype="float16")
    theirs = encode_regions([row("b", 2)], dtype="float16").to_pylist()
    for index, second in enumerate((encode_regions([row("c", 2)], dtype="float16"), theirs)):
        with ShardWriter(tmp_path, REGIONS, index, 2, arrays=arrays) as writer:
            writer.write(ours)
            writer.write(second)
    marks = [
        is_marked_finite(read_parquet_footer(p).metadata)
        for p in sorted(tmp_path.glob("*.parquet"))
    ]
    assert marks == [True, False]


def test_bfloat16_features_are_read_as_float32(tmp_path: Path) -> None:
    features = np.array([[1.0, -2.5, 0.0, 3.140625, 1e9, 1e-30]], np.float32)
    arrays = region_arrays(dtype="bfloat16", feature_dim=6)
    given_row = row("a", 1, features=features, class_probs=None, global_feature=features[0])
    with ShardWriter(tmp_path, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([given_row], dtype="bfloat16"))
    found = RegionReader(tmp_path)["a"]
    assert found.features is not None and found.global_feature is not None
    np.testing.assert_allclose(found.features, features, rtol=2**-8)
    assert np.array_equal(found.global_feature, found.features[0])


def test_memory_is_bounded_by_the_rows_that_are_cached(tmp_path: Path) -> None:
    write(tmp_path, [[row(f"{g}-{k}", 2) for k in range(4)] for g in range(20)])
    reader = RegionReader(tmp_path, cached_rows=8)
    for _ in range(2):
        assert [found.image_id for found in reader] == reader.image_ids
        assert sum(group.num_rows for group in reader._cache.values()) == reader._cached_rows <= 8


def test_a_reader_is_sent_without_its_index(tmp_path: Path) -> None:
    write(tmp_path, [[row(f"{g}-{k}", 2) for k in range(4)] for g in range(3)])
    reader = RegionReader(tmp_path)
    sent = pickle.dumps(reader)
    again = pickle.loads(sent)
    assert b"0-1" not in sent
    assert_equal(again.row(5), reader.row(5))
    assert again["2-3"].image_id == "2-3"
    with pytest.raises(IndexError):
        again.row(12)


def test_features_are_views_of_the_file(tmp_path: Path) -> None:
    rows = [row(str(i), 3, class_probs=None) for i in range(6)]
    write(tmp_path, [rows[:4], rows[4:]])
    path = next(tmp_path.glob("*.parquet"))
    reader, content = RegionReader(path), np.fromfile(path, np.uint8)
    for number, expected in enumerate(rows):
        read, place = reader.row(number), find_value(reader, "features", number)
        assert_equal(read, expected)
        assert read.features is not None and place is not None
        assert not read.features.flags.owndata and not read.features.flags.writeable
        assert (reader.bytes_at(*place) == content[place[1] : place[1] + place[2]]).all()
        reader.read_ahead(*place)
        assert find_value(reader, "class_probs", number) is None


def test_a_shard_without_places_is_read_with_a_copy(tmp_path: Path) -> None:
    rows = [row(str(i), i) for i in range(5)]
    write(tmp_path / "new", [rows[:3], rows[3:]])
    path = next((tmp_path / "new").glob("*.parquet"))
    old = tmp_path / "old" / path.name
    old.parent.mkdir()
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table, old, compression="none", use_dictionary=False, row_group_size=3)
    assert b"vlmill.places" in pq.read_metadata(path).metadata
    assert b"vlmill.places" not in pq.read_metadata(old).metadata
    reader = RegionReader(old)
    assert find_value(reader, "features", 2) is None
    for number, expected in enumerate(rows):
        assert_equal(reader.row(number), expected)


def test_columns_in_another_order_are_checked_by_their_names(tmp_path: Path) -> None:
    rows = [row(str(i), i) for i in range(3)]
    write(tmp_path, [rows])
    path = next(tmp_path.glob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    table = table.select(table.column_names[::-1])
    pq.write_table(table, path, compression="none", use_dictionary=False)
    for found, expected in zip(RegionReader(path), rows, strict=True):
        assert_equal(found, expected)
    widths = pa.chunked_array([[200, None, 200]], pa.int32())
    number = table.column_names.index("width")
    pq.write_table(table.set_column(number, "width", widths), path)
    with pytest.raises(InputError, match="width"):
        RegionReader(path).row(0)


def test_features_that_moved_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, [[row("a", 3), row("b", 3)]])
    path = next(tmp_path.glob("*.parquet"))
    _, offset, size = find_value(RegionReader(path), "features", 1) or (0, 0, 0)
    content = bytearray(path.read_bytes())
    assert content[offset - 4 : offset] == size.to_bytes(4, "little")
    content[offset - 4] ^= 8
    path.write_bytes(content)
    reader = RegionReader(path)
    assert reader["a"].features is not None
    with pytest.raises(InputError, match="features of b is not at its recorded position"):
        reader["b"]
    with pytest.raises(InputError, match="features of b is not at its recorded position"):
        find_value(reader, "features", 1)


def test_a_hostile_shard_gives_errors_and_no_crash(tmp_path: Path) -> None:
    write(tmp_path, [[row(str(i), 3) for i in range(4)], [row("4", 3), row("5", 3)]])
    path = next(tmp_path.glob("*.parquet"))
    whole, metadata = path.read_bytes(), pq.read_metadata(path)
    last = metadata.row_group(1).column(metadata.num_columns - 1)
    end = last.data_page_offset + last.total_compressed_size
    random, refused = np.random.default_rng(0), 0
    for _ in range(100):
        content = bytearray(whole)
        for at in random.integers(4, end, size=3):
            content[at] = random.integers(256)
        path.write_bytes(content)
        try:
            assert len(list(RegionReader(path))) == 6
        except (InputError, KeyError):
            refused += 1
    assert refused
