"""JSON that anyone may have written: bounded in depth and size, else a ValueError."""

import ast
from pathlib import Path

import pytest

from vlmill.schemas.plain_json import MAX_DEPTH, parse_json, read_json

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "runtime", "models", "extract", "pipelines", "train", "inference")
# Their own parsers, with bounds of their own, of responses and of what this process has written.
OWN = {
    "schemas/plain_json.py",
    "runtime/files/outputs.py",
    "runtime/service/bodies.py",
    "pipelines/web/pages/metadata.py",
    "pipelines/web_pairs/rescoring.py",
    "runtime/units/launch/options.py",
    "pipelines/manifest/sets/webdataset.py",
}


@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_depth_is_bounded(kind: str) -> None:
    opening = "[" if kind == "[]" else '{"a":'
    closing = kind[1]
    assert str(parse_json(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)).count("1") == 1
    for depth in (MAX_DEPTH + 1, 900, 200_000):
        text = opening * depth + "1" + closing * depth
        for content in (text, text.encode()):
            with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
                parse_json(content)


def test_many_containers_are_not_deep() -> None:
    assert len(parse_json("[" + ",".join(["[]"] * 1000) + "]")) == 1000


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2]", encoding="utf-8")
    assert read_json(path) == [1, 2]
    with pytest.raises(ValueError, match="6 bytes, expected at most 5"):
        read_json(path, max_bytes=5)


def test_no_other_parser_reads_files() -> None:
    """Every other module parses JSON here: one that calls json.loads has no bound."""
    callers = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    }
    assert callers == OWN
