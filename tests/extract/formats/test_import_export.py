"""What is exported is imported again, in every format; what is wrong in a file is a reject."""

import base64
import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vlmill.extract.cli import command
from vlmill.extract.formats import tsv
from vlmill.extract.formats.export_file import export_file
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.names import FORMATS
from vlmill.extract.formats.records import InvalidRecord
from vlmill.extract.verify import verify
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.contract import read_parquet_footer
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import ShardWriter, is_marked_finite
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS, REJECTS

DIM, CLASSES = 6, 101
CLASSES_OF_ROWS = ("class_ids", "class_scores")


def make_row(name: str, count: int, **changes: Any) -> RegionRow:
    random = np.random.default_rng(sum(name.encode()) + count)
    corners = random.uniform(0, 50, (count, 2))
    probs = random.random((count, CLASSES)).astype(np.float32) / CLASSES
    values: dict[str, Any] = {
        "image_id": name,
        "width": 200,
        "height": 100,
        "boxes": np.hstack([corners, corners + 20]).astype(np.float32),
        "features": random.normal(size=(count, DIM)).astype(np.float32),
        "class_ids": probs[:, 1:].argmax(axis=1).astype(np.int16),
        "class_scores": probs[:, 1:].max(axis=1),
        "class_probs": probs,
        "attribute_ids": random.integers(0, 400, count).astype(np.int16),
        "attribute_scores": random.random(count).astype(np.float32),
    }
    return RegionRow(**{**values, **changes})


def write_regions(folder: Path, rows: list[RegionRow], dtype: str = "float32") -> Path:
    arrays = region_arrays(dtype=dtype, feature_dim=DIM, class_probs_dim=CLASSES)
    with ShardWriter(folder, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions(rows, dtype=dtype))
    return folder


ROWS = [make_row("coco/a b", 3), make_row("ü", 0), make_row("12", 5)]
# What import finds in addition to what a format holds: classes of the distribution.
DERIVED = {"tsv7": CLASSES_OF_ROWS, "vl-bert": CLASSES_OF_ROWS, "npz-uniter": CLASSES_OF_ROWS}
KEPT = {name: {*format_.holds, *DERIVED.get(name, ())} for name, format_ in FORMATS.items()}
EVERY = {"class_probs", *CLASSES_OF_ROWS, "attribute_ids", "attribute_scores"}


def write_names(folder: Path) -> dict[str, str]:
    """Names of the classes and attributes of make_row, as files."""
    files = {}
    for what, count in (("classes", CLASSES - 1), ("attributes", 400)):
        files[what] = str(folder / f"{what}.txt")
        Path(files[what]).write_text("\n".join(f"{what} {n}" for n in range(count)))
    return files


def export(source: Path, path: Path, name: str, **options: Any) -> int:
    """Exports with the names that some formats need."""
    if FORMATS[name].reader == "oscar":
        options |= write_names(path.parent)
    return export_file(source, path, name, **options)


def exported(path: Path, name: str) -> Path:
    """The path that an export is imported from."""
    return path.with_name(f"{path.name}_att") if name == "npz-cocobu" else path


def assert_rows(found: Path, expected: list[RegionRow], kept: set[str]) -> None:
    reader = RegionReader(found)
    assert sorted(reader.image_ids) == sorted(row.image_id for row in expected)
    for row in expected:
        other = reader[row.image_id]
        assert (other.width, other.height) == (row.width, row.height)
        for name in ("boxes", "features", *EVERY):
            if name not in kept | {"boxes", "features"}:
                assert getattr(other, name) is None
            elif len(row.boxes):
                np.testing.assert_array_equal(getattr(other, name), getattr(row, name))


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(tmp_path: Path, name: str) -> None:
    rows = [row for row in ROWS if name != "hdf5-fixed" or len(row.boxes) == 3]
    source, file = write_regions(tmp_path / "source", rows), tmp_path / "file"
    assert export(source, file, name) == len(rows)
    job = Import(files=[exported(file, name)], output=tmp_path / "back")
    assert import_file(job) == (len(rows), 0)
    assert_rows(tmp_path / "back", rows, KEPT[name])
    assert verify(tmp_path / "back") == []
    producer = RegionReader(tmp_path / "back").producer
    reader = FORMATS[name].reader
    files = {"npz-cocobu": "file_att", "oscar": "feature.tsv", "oscar-retrieval": "features.tsv"}
    assert producer["format"] == (name if reader == "tsv" else reader)
    assert producer["file"] == files.get(name, "file")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_export_gives_equal_rows(tmp_path: Path, name: str) -> None:
    rows = [make_row(f"00{number}.jpg", 3) for number in range(3)]
    source = write_regions(tmp_path / "source", rows)
    export(source, tmp_path / "first", name)
    import_file(Import(files=[exported(tmp_path / "first", name)], output=tmp_path / "once"))
    export(tmp_path / "once", tmp_path / "second", name)
    import_file(Import(files=[exported(tmp_path / "second", name)], output=tmp_path / "twice"))
    assert_rows(tmp_path / "twice", list(RegionReader(tmp_path / "once")), KEPT[name])


@pytest.mark.parametrize("name", ["tsv", "tsv6", "tsv7"])
def test_the_second_export_equals_the_first(tmp_path: Path, name: str) -> None:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "first", name)
    import_file(Import(files=[tmp_path / "first"], output=tmp_path / "back"))
    export_file(tmp_path / "back", tmp_path / "second", name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@settings(max_examples=25, deadline=None)
@example(counts=[0], name="tsv7", per_shard=1)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    name=st.sampled_from(sorted(FORMATS)),
    per_shard=st.integers(1, 3),
)
def test_any_number_of_boxes(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], name: str, per_shard: int
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    rows = [make_row(f"{number:03}", count) for number, count in enumerate(counts)]
    if name == "hdf5-fixed" and len(set(counts)) > 1:
        return
    export(write_regions(folder / "source", rows), folder / "file", name)
    path = exported(folder / "file", name)
    job = Import(files=[path], output=folder / "back", images_per_shard=per_shard)
    assert import_file(job) == (len(rows), 0)
    assert_rows(folder / "back", rows, KEPT[name])
    assert len(list((folder / "back").glob("regions-*"))) == -(-len(rows) // per_shard)
    assert verify(folder / "back") == []


@pytest.mark.parametrize("name", FORMATS)
def test_boxes_outside_their_image_are_rejected(tmp_path: Path, name: str) -> None:
    border = np.array([[-1, 0, 201, 101]], np.float32)  # whole pixels may be counted
    rows = [
        make_row("at-the-border", 1, boxes=border),
        make_row("beyond", 1, boxes=border + np.array([0, 0, 0, 5], np.float32)),  # no padding
        make_row("before", 1, boxes=border - np.array([1, 0, 0, 0], np.float32)),
    ]
    export(write_regions(tmp_path / "source", rows), tmp_path / "file", name)
    path = exported(tmp_path / "file", name)
    assert import_file(Import(files=[path], output=tmp_path / "back")) == (1, 2)
    assert RegionReader(tmp_path / "back").image_ids == ["at-the-border"]
    rejects = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert {row["reason"] for row in rejects} == {"bad_boxes"}
    assert verify(tmp_path / "back") == []


def test_verify_finds_imported_boxes_outside_their_image(tmp_path: Path) -> None:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "file", "tsv6")
    import_file(Import(files=[tmp_path / "file"], output=tmp_path / "back"))
    assert verify(tmp_path / "back") == []
    reader = RegionReader(tmp_path / "back")
    small = [dataclasses.replace(row, width=30) for row in reader]
    arrays = region_arrays(dtype="float32", feature_dim=DIM)
    with ShardWriter(
        tmp_path / "old", REGIONS, 0, 1, producer=reader.producer, arrays=arrays
    ) as writer:
        writer.write(encode_regions(small, dtype="float32"))
    write_manifest(tmp_path / "old", [writer.shard], job="extract-rois import", settings={})
    problems = verify(tmp_path / "old")
    assert problems and all("a box leaves the image of 30 x 100" in line for line in problems)


def test_an_import_of_rejects_alone_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_file(
        write_regions(tmp_path / "source", [make_row("a", 2, width=5)]), tmp_path / "file", "tsv6"
    )
    arguments = ["import", str(tmp_path / "file"), "--output", str(tmp_path / "back")]
    assert run_command(command, arguments) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].endswith("0 rows of regions, 1 reject (1 bad_boxes)")
    assert "no image can be read; the first is a: a box leaves the image of 5 x" in said.err


def test_stored_halves_are_widened_exactly(tmp_path: Path) -> None:
    source = write_regions(tmp_path / "source", ROWS, dtype="float16")
    export_file(source, tmp_path / "file", "tsv6")
    import_file(Import(files=[tmp_path / "file"], output=tmp_path / "back", dtype="float16"))
    for row in RegionReader(source):
        np.testing.assert_array_equal(
            RegionReader(tmp_path / "back")[row.image_id].features, row.features
        )


def test_what_a_format_needs_and_rows_lack_is_named(tmp_path: Path) -> None:
    bare = [make_row("a", 2, class_probs=None, attribute_ids=None)]
    source = write_regions(tmp_path / "source", bare)
    for name, missing in {"tsv": "attribute_ids", "tsv7": "whole class distribution"}.items():
        with pytest.raises(InputError, match=f"has no {missing}.*--format"):
            export_file(source, tmp_path / "file", name)
        assert not (tmp_path / "file").exists()


def test_a_full_disk_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    regions, full = write_regions(tmp_path / "regions", ROWS), "No space left on device"
    export(regions, tmp_path / "a.tsv", "tsv6")
    calls = {"import": str(tmp_path / "a.tsv"), "export": str(regions)}
    errors = {
        "import": OSError(f"Error writing bytes to file. Detail: [errno 28] {full}"),
        "export": OSError(errno.ENOSPC, full),
    }
    for name, source in calls.items():

        def fail(*_: Any, error: OSError = errors[name], **__: Any) -> None:
            raise error

        monkeypatch.setattr(f"vlmill.extract.formats.{name}_file.{name}_file", fail)
        output = tmp_path / f"{name}.out"
        arguments = [name, source, "--output", str(output)]
        arguments += ["--format", "tsv6"] if name == "export" else []
        assert run_command(command, arguments) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        expected = f"failed: --output {output}: {full}; free disk space, and the same command"
        assert line.startswith(expected)


def test_an_export_never_replaces_a_folder(tmp_path: Path) -> None:
    source = write_regions(tmp_path / "source", ROWS)
    for name in FORMATS:
        with pytest.raises(InputError, match="--output"):
            export_file(source, source, name)  # cocobu: of a folder, too
    assert len(RegionReader(source)) == 3


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_replaced_only_when_told(tmp_path: Path, name: str) -> None:
    output = tmp_path / "out"
    rows = [make_row("a/b", 3), make_row("ü", 3), make_row("12", 3)]
    export(write_regions(tmp_path / "three", rows), output, name)
    source = write_regions(tmp_path / "one", rows[:1])
    with pytest.raises(InputError, match="already exists; give another, or --fresh"):
        export(source, output, name)
    path = exported(output, name)
    assert import_file(Import(files=[path], output=tmp_path / "before")) == (3, 0)
    assert export(source, output, name, fresh=True) == 1
    assert import_file(Import(files=[path], output=tmp_path / "after")) == (1, 0)


@pytest.mark.parametrize("name", ["lmdb", "npz"])
def test_fresh_deletes_no_folder_of_other_files(tmp_path: Path, name: str) -> None:
    source = write_regions(tmp_path / "source", ROWS)
    with pytest.raises(InputError, match="not part of an export"):
        export_file(source, source, name, fresh=True)
    assert len(RegionReader(source)) == 3


# --- TSV ------------------------------------------------------------------------------------------


def lines_of(tmp_path: Path, name: str = "tsv") -> list[bytes]:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "good", name)
    return (tmp_path / "good").read_bytes().split(b"\r\n")[:-1]


def imported(tmp_path: Path, content: bytes, **options: Any) -> list[tuple[str, str]]:
    """Keys and reasons of the rejects."""
    (tmp_path / "bad").write_bytes(content)
    output = tmp_path / "back"
    regions, rejects = import_file(
        Import(files=[tmp_path / "bad"], output=output, **options), fresh=output.exists()
    )
    found = read_table(output, REJECTS).to_pylist()
    assert len(found) == rejects
    assert len(RegionReader(output)) == regions
    assert verify(output) == []
    return [(row["key"], row["reason"]) for row in found]


def with_field(line: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    fields = line.split(b"\t")
    fields[number] = change(fields[number])
    return b"\t".join(fields)


def nan(_: bytes) -> bytes:
    return base64.b64encode(np.full((3, DIM), np.nan, "<f4").tobytes())


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (9, lambda text: text[:-1], "bad_record"),  # wrong padding
        (9, lambda text: text[: len(text) // 2 - 1] + b"!", "bad_record"),
        (7, lambda text: b"4", "bad_record"),
        (7, lambda text: b"-1", "bad_record"),
        (7, lambda text: b"9" * 5000, "bad_record"),
        (7, lambda text: b"", "bad_record"),
        (1, lambda text: b"0", "bad_record"),
        (2, lambda text: b"wide", "bad_record"),
        (3, lambda text: base64.b64encode(np.array([1, 2, 70_000]).tobytes()), "bad_record"),
        (8, lambda text: base64.b64encode(bytes(47)), "bad_record"),
        (
            8,
            lambda text: base64.b64encode(np.arange(12, 0, -1).astype("<f4").tobytes()),
            "bad_record",
        ),
        (9, nan, "not_finite"),
        (4, lambda text: base64.b64encode(np.array([1, 0, 1.1], "<f4").tobytes()), "bad_record"),
        (6, lambda text: base64.b64encode(np.array([1, -1, 0], "<f4").tobytes()), "bad_record"),
        (9, lambda text: base64.b64encode(bytes(3 * 4 * 7)), "bad_record"),  # another width
        (0, lambda text: b"\xff", "bad_record"),
        (0, lambda text: b"", "bad_record"),
        (4, lambda text: text + b"\t", "bad_record"),  # a field too many
    ],
)
def test_a_bad_line_is_a_reject_and_costs_no_other(
    tmp_path: Path, number: int, change: Callable[[bytes], bytes], reason: str
) -> None:
    first, empty, last = lines_of(tmp_path)
    content = b"\n".join([last, with_field(first, number, change), empty]) + b"\n"
    ((_, found),) = imported(tmp_path, content)
    assert found == reason
    assert RegionReader(tmp_path / "back").image_ids == ["12", "ü"]


def test_lines_cut_off_repeated_and_blank(tmp_path: Path) -> None:
    first, empty, last = lines_of(tmp_path)
    content = b"\r\n".join([first, b"", empty, first, last[:-30]])
    assert imported(tmp_path, content) == [("coco/a b", "duplicate"), ("12", "bad_record")]


def test_a_line_of_many_fields_is_not_split(tmp_path: Path) -> None:
    assert len(tsv.split_fields(b"a\t" * 1000)) == tsv.MAX_FIELDS + 1
    content = b"a\t" * 1000 + b"\n"
    assert imported(tmp_path, content, format="tsv6") == [("a", "bad_record")]
    (row,) = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert "1001 fields, must be 6" in row["detail"]


def test_a_header_and_quotes_of_python_are_understood(tmp_path: Path) -> None:
    header = b"\t".join(name.encode() for name in tsv.FIELDS["tsv"]).replace(b"image_id", b"img_id")
    quoted = [with_field(line, 9, lambda text: b"b'%s'" % text) for line in lines_of(tmp_path)]
    assert imported(tmp_path, b"\n".join([header, *quoted])) == []
    assert_rows(tmp_path / "back", ROWS, KEPT["tsv"])


def test_a_line_without_end_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, last = lines_of(tmp_path)
    monkeypatch.setattr(tsv, "MAX_LINE", 2 * max(len(first), len(last)))
    content = b"\n".join([first, b"x" * (5 * len(first)), last])
    assert imported(tmp_path, content, format="tsv") == [("bad:2", "too_large")]
    assert RegionReader(tmp_path / "back").image_ids == ["coco/a b", "12"]


@settings(max_examples=100, deadline=None)
@given(line=st.binary(max_size=200), name=st.sampled_from(sorted(tsv.FIELDS)))
def test_any_line_is_a_row_or_bad(line: bytes, name: str) -> None:
    assert isinstance(tsv.parse_record(line, name, "file:1"), InvalidRecord | RegionRow)


def test_values_that_the_stored_type_cannot_hold(tmp_path: Path) -> None:
    rows = [make_row("a", 1, features=np.full((1, DIM), 1e6, np.float32)), make_row("b", 1)]
    export_file(write_regions(tmp_path / "source", rows), tmp_path / "bad", "tsv6")
    content = (tmp_path / "bad").read_bytes()
    assert imported(tmp_path, content, dtype="float16") == [("a", "not_finite")]
    (shard,) = (tmp_path / "back").glob("regions-*.parquet")
    assert is_marked_finite(read_parquet_footer(shard).metadata)


def test_a_file_without_a_good_row(tmp_path: Path) -> None:
    assert imported(tmp_path, b"a\tb\n", format="tsv6") == [("a", "bad_record")]
    assert imported(tmp_path, b"", format="tsv6") == []


def test_a_file_without_records_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "\t".join(tsv.FIELDS["tsv6"])
    (tmp_path / "header.tsv").write_text(f"{names}\n")
    lmdb.open(str(tmp_path / "db")).close()
    for name in ("header.tsv", "db"):
        arguments = ["import", str(tmp_path / name), "--output", str(tmp_path / f"{name}.out")]
        assert run_command(command, arguments) == 1
        assert f"error: FILE {tmp_path / name} has no images" in capsys.readouterr().err


def test_an_unknown_file_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {"text": b"hello\nworld\n", "empty": b"", "four": b"a\tb\tc\td\n"}.items():
        (tmp_path / name).write_bytes(content)
    for name in ("text", "empty", "four", "nowhere"):
        arguments = ["import", str(tmp_path / name), "--output", str(tmp_path / "o")]
        assert run_command(command, arguments) == 2
        assert f"FILE {tmp_path / name}" in capsys.readouterr().err


def test_an_import_that_was_killed_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "file", "tsv")
    whole = Import(files=[tmp_path / "file"], output=tmp_path / "whole", images_per_shard=1)
    killed = Import(files=[tmp_path / "file"], output=tmp_path / "killed", images_per_shard=1)
    import_file(whole)
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        if str(target).endswith("regions-0-00001.parquet"):
            raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", replace)
        with pytest.raises(KeyboardInterrupt):
            import_file(killed)
    assert import_file(killed) == import_file(killed) == (3, 0)
    names = sorted(p.name for p in whole.output.iterdir())
    assert names == sorted(p.name for p in killed.output.iterdir())
    assert all((whole.output / n).read_bytes() == (killed.output / n).read_bytes() for n in names)


# --- The published features of ten COCO photographs -----------------------------------------------


@pytest.fixture
def published() -> Iterator[Path]:
    folder = os.environ.get("VLMILL_DATA")
    if not folder:
        pytest.skip("VLMILL_DATA is not set: it names the folder of third-party data")
    yield Path(folder) / "coco" / "train2014_obj36.tsv"


def test_published_features_there_and_back(tmp_path: Path, published: Path) -> None:
    arguments = ["import", str(published), "--output", str(tmp_path / "regions")]
    assert command([*arguments, "--id-prefix", ""]) == 0
    assert verify(tmp_path / "regions") == []
    row = RegionReader(tmp_path / "regions")["COCO_train2014_000000132417"]
    assert (row.height, row.width, len(row.boxes)) == (333, 500, 36)
    assert row.class_ids is not None and row.class_ids[0] == 0x48
    assert row.class_probs is None and row.global_feature is None
    output = tmp_path / "back.tsv"
    assert (
        command(["export", str(tmp_path / "regions"), "--format", "tsv", "--output", str(output)])
        == 0
    )
    assert output.read_bytes() == published.read_bytes()


# --- LMDB, npz, HDF5 ------------------------------------------------------------------------------


def test_hdf5_files_that_point_elsewhere_are_refused(tmp_path: Path) -> None:
    source = write_regions(tmp_path / "source", ROWS)
    export_file(source, tmp_path / "file", "hdf5")
    export_file(source, tmp_path / "other", "hdf5")
    with h5py.File(tmp_path / "file", "r+") as file:
        del file["image_features"]
        file["image_features"] = h5py.ExternalLink(str(tmp_path / "other"), "image_features")
    with pytest.raises(InputError, match="image_features is in another file"):
        import_file(Import(files=[tmp_path / "file"], output=tmp_path / "a"))
    with h5py.File(tmp_path / "file", "r+") as file:
        del file["image_features"]
        secret = tmp_path / "secret"
        secret.write_bytes(bytes(4 * 8 * DIM))
        file.create_dataset(
            "image_features", shape=(8, DIM), dtype="<f4", external=[(str(secret), 0, 4 * 8 * DIM)]
        )
    with pytest.raises(InputError, match="image_features is in another file"):
        import_file(Import(files=[tmp_path / "file"], output=tmp_path / "b"))
    with h5py.File(tmp_path / "other", "r+") as file:
        del file["image_ids"]
    (tmp_path / "other_imgid2idx.pkl").unlink()
    (tmp_path / "file_imgid2idx.pkl").unlink()
    with pytest.raises(InputError, match=r"no ids.*other_imgid2idx.pkl"):
        import_file(Import(files=[tmp_path / "other"], output=tmp_path / "c"))


def test_hdf5_places_outside_the_file_are_rejects(tmp_path: Path) -> None:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "bad", "hdf5")
    with h5py.File(tmp_path / "bad", "r+") as file:
        file["pos_boxes"][2] = [3, 2**40]
    assert imported(tmp_path, (tmp_path / "bad").read_bytes()) == [("12", "bad_record")]


def test_lmdb_keys_without_values_are_rejects(tmp_path: Path) -> None:
    export_file(write_regions(tmp_path / "source", ROWS), tmp_path / "lmdb", "lmdb")
    with lmdb.open(str(tmp_path / "lmdb")) as environment, environment.begin(write=True) as opened:
        opened.delete(b"12")
    assert import_file(Import(files=[tmp_path / "lmdb"], output=tmp_path / "back")) == (2, 1)
    (row,) = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert (row["key"], row["reason"]) == ("12", "bad_record")


@pytest.mark.parametrize("name", FORMATS)
def test_all_files_of_an_export_may_be_given(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    rows = [make_row("a", 3), make_row("b", 3)]
    file = tmp_path / "out" / "file"
    export(write_regions(tmp_path / "source", rows), file, name)
    for number, pattern in enumerate((file.parent / "file*", file / "*")):
        if number == 0 or file.is_dir():
            output = tmp_path / f"back-{number}"
            import_file(Import(files=[str(pattern)], output=output))
            assert sorted(RegionReader(output).image_ids) == ["a", "b"]
            assert not read_table(output, REJECTS).num_rows
