"""What tables promise beyond types is checked: one broken promise each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from vlmill.extract.verify import verify
from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.contents import MOST_TOLD, content_problems
from vlmill.runtime.files.listed import CHECKS, own_checks
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import TABLES

Rows = dict[str, list[dict[str, Any]]]


def good() -> Rows:
    """Tables that belong together."""
    images = [b"one", b"two"]
    ids = [compute_image_id(image) for image in images]
    return {
        "images": [
            {"image_id": image_id, "bytes": image, "sha256": image_id}
            for image_id, image in zip(ids, images, strict=True)
        ],
        "pairs": [
            {"pair_id": "p0", "image_id": ids[0], "text": "a cat"},
            {"pair_id": "p1", "image_id": ids[1], "text": "a dog"},
            {"pair_id": "p2", "image_id": None, "text": "a text alone"},
        ],
        "negatives": [
            {"pair_id": "p0", "negative_pair_ids": ["p1"], "similarities": [0.25]},
            {"pair_id": "p1", "negative_pair_ids": [], "similarities": []},
        ],
        "neighbours": [
            {"image_id": "a", "neighbour_ids": ["b", "d", "c"], "distances": [0.5, 0.5, 1.0]},
            {"image_id": "b", "neighbour_ids": ["c"], "distances": None},
        ],
        "rejects": [{"stage": "s", "key": "k", "reason": "duplicate"}],
    }


def written(rows: Rows, folder: Path) -> Path:
    shards = [write_shard(folder, TABLES[name], table) for name, table in rows.items()]
    write_manifest(folder, shards, job="test", settings={})
    return folder


def test_good_tables_have_no_problem_together_and_alone(tmp_path: Path) -> None:
    assert verify(written(good(), tmp_path / "all")) == []
    for name, table in good().items():
        assert verify(written({name: table}, tmp_path / name)) == []


def repeat(name: str) -> Callable[[Rows], None]:
    return lambda rows: rows[name].append(rows[name][0])


def change(name: str, column: str, value: object) -> Callable[[Rows], None]:
    return lambda rows: rows[name][0].update({column: value})


@pytest.mark.parametrize(
    ("break_rows", "problem"),
    [
        (repeat("pairs"), "pairs: pair_id p0 comes twice"),
        (repeat("negatives"), "negatives: pair_id p0 comes twice"),
        (repeat("images"), "comes twice"),
        (change("pairs", "image_id", "gone"), "pairs: p0: its image_id gone is not an image"),
        (change("images", "bytes", b"other"), "its bytes do not match its sha256"),
        (change("negatives", "similarities", []), "p0: 1 negatives and 0 similarities"),
        (
            change("negatives", "negative_pair_ids", ["p0"]),
            "its list of negatives has the pair itself",
        ),
        (repeat("neighbours"), "neighbours: image_id a comes twice"),
        (
            change("neighbours", "neighbour_ids", ["b", "a", "c"]),
            "its list of neighbours has the image itself",
        ),
        (change("neighbours", "neighbour_ids", ["b", "c", "b"]), "or one image twice"),
        (change("neighbours", "neighbour_ids", ["d", "b", "c"]), "not in order of distance and id"),
        (change("neighbours", "distances", [0.5, 1.0, 0.5]), "not in order of distance and id"),
        (change("neighbours", "distances", [0.5]), "a: 3 neighbours and 1 distances"),
        (change("rejects", "reason", "mood"), "rejects: k: no such reason: mood"),
    ],
)
def test_a_broken_promise_is_told(
    break_rows: Callable[[Rows], None], problem: str, tmp_path: Path
) -> None:
    rows = good()
    break_rows(rows)
    (told,) = verify(written(rows, tmp_path / "out"))
    assert problem in told and "\n" not in told


def test_pairs_without_images_beside_them_are_not_looked_for(tmp_path: Path) -> None:
    rows = good()
    del rows["images"]
    assert content_problems(written(rows, tmp_path / "out")) == []


def test_a_table_tells_a_bounded_number(tmp_path: Path) -> None:
    pair = good()["pairs"][0]
    problems = content_problems(written({"pairs": [pair] * 100}, tmp_path / "out"))
    assert len(problems) == MOST_TOLD + 1 and f"{99 - MOST_TOLD} more" in problems[-1]


def test_a_damaged_shard_is_told_of_pairs_too(tmp_path: Path) -> None:
    folder = written(good(), tmp_path / "out")
    shard = next(folder.glob("pairs-*.parquet"))
    content = bytearray(shard.read_bytes())
    content[4] ^= 1
    shard.write_bytes(content)
    assert any("sha256" in problem for problem in verify(folder))


def test_every_command_compares_sizes_and_verify_also_hashes(tmp_path: Path) -> None:
    folder = written(good(), tmp_path)
    (shard,) = folder.glob("pairs-*")
    content = shard.read_bytes()
    changed = bytearray(content)
    changed[content.index(b"a cat")] ^= 1
    rows = [*good()["pairs"], {"pair_id": "p3", "image_id": None, "text": "a longer text"}]
    for argument in (folder, shard, folder / "pairs-*.parquet"):
        shard.write_bytes(changed)
        assert find_shards(argument, TABLES["pairs"]) == [shard]
        with own_checks(), pytest.raises(InputError, match=f"{shard} has changed since"):
            CHECKS.verify = True
            find_shards(argument, TABLES["pairs"], "--pairs")
        size = write_shard(folder, TABLES["pairs"], rows).bytes
        with pytest.raises(InputError, match=f"{shard} has {size} bytes and was"):
            find_shards(argument, TABLES["pairs"], "--pairs")
    shard.write_bytes(content)
    with own_checks():
        CHECKS.verify = True
        assert find_shards(folder, TABLES["pairs"]) == [shard]


def test_the_flags_of_a_command_end_with_it() -> None:
    def command(argv: Sequence[str]) -> int:
        top = Parser(prog="job")
        top.add_subparsers().add_parser("run")
        assert vars(top.parse_args(argv)) == {}
        assert CHECKS.trust and CHECKS.verify
        return 0

    assert run_command(command, ["--trust", "run", "--verify"]) == 0
    assert not CHECKS.trust and not CHECKS.verify
