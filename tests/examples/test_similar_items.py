"""examples/similar_items.py: neighbours over all categories, candidates by look-up, and figures."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from vlmill.inference.search.table import ABOUT, Vectors
from vlmill.schemas.tables import VECTORS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "similar_items.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("similar_items", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def vectors_of(rows: list[list[float]]) -> Vectors:
    """Items a, b, c, ... with these vectors."""
    matrix = np.array(rows, dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    schema = pa.schema([VECTORS.schema.field(name) for name in ABOUT])
    about = [
        dict.fromkeys(ABOUT) | {"kind": "pair", "image_id": name}
        for name in "abcdefgh"[: len(rows)]
    ]
    return Vectors(matrix=matrix, about=pa.Table.from_pylist(about, schema=schema), origin={})


def test_an_item_is_no_neighbour_of_its_own(example: ModuleType) -> None:
    found = example.nearest(vectors_of([[1, 0], [1, 0.1], [1, 0.8], [0, 1]]), 2)
    assert found == {"a": ["b", "c"], "b": ["a", "c"], "c": ["b", "a"], "d": ["c", "b"]}


def test_candidates_of_a_history(example: ModuleType) -> None:
    table = {"a": ["b", "c", "d"], "b": ["a", "e"], "x": ["c", "f"]}
    assert example.candidates(["a"], table) == ["b", "c", "d"]
    # The last item's nearest first, then the others'; what was seen or named before is left out.
    assert example.candidates(["a", "b", "x"], table) == ["c", "f", "e", "d"]
    assert example.candidates(["a", "b", "x"], table, 2) == ["c", "f"]
    assert example.candidates(["unknown"], table) == example.candidates([], table) == []


def test_recall_and_width_by_hand(example: ModuleType) -> None:
    table = {"a": ["b", "c"], "d": ["b"]}
    visits = [
        example.Visit(history=("a",), next_item="c"),
        example.Visit(history=("d",), next_item="c"),
    ]
    figures = example.measured(visits, table, {"b": "bag", "c": "cup"})
    assert figures["recall"] == 0.5 and figures["category_width"] == 1.5


def test_the_table_is_read_as_it_was_written(example: ModuleType, tmp_path: Path) -> None:
    table = {"a": ["b", "c"], "b": []}
    example.write_neighbours(tmp_path, table)
    assert example.read_neighbours(tmp_path) == table


@pytest.mark.nightly
def test_it_goes_all_the_way(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--items", "48", "--visits", "20", "--steps", "2", "--output", str(tmp_path)]
    assert example.main(flags) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed[printed.index("{\n") :])
    for name in ("interbert", "bert"):
        assert 0 <= figures[name]["recall"] <= 1
        assert 1 <= figures[name]["category_width"] <= len(example.CATEGORIES)
        table = example.read_neighbours(tmp_path / f"{name}-neighbours")
        assert len(table) == 48 and {len(others) for others in table.values()} == {5}
