"""Names of classes as texts have them, and as they are written beside a table of boxes."""

import json
from pathlib import Path

import pytest

from vlmill.runtime.readers.class_names import read_names
from vlmill.schemas.errors import InputError


def test_a_text_and_a_json_list_give_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("kitten, cat\nred ring\n\n")
    (tmp_path / "classes.json").write_text('["kitten, cat", "red ring"]')
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfkitten, cat\r\nred ring\r\n")
    for name in ("names.txt", "classes.json", "windows.txt"):
        assert read_names(tmp_path / name, "--classes") == [["kitten", "cat"], ["red ring"]]


def test_scene_graph_benchmarks_dictionaries_give_the_names_of_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "VG-SGG-dicts.json"
    content = {"label_to_idx": {"dog": 2, "cat": 1}, "attribute_to_idx": {"red": 1}, "idx": {}}
    path.write_text(json.dumps(content))
    assert read_names(path, "--classes") == [["cat"], ["dog"]]
    assert read_names(path, "--attributes") == [["red"]]
    path.write_text('{"label_to_idx": {"cat": 1, "dog": 3}}')
    with pytest.raises(InputError, match=r"--classes .*no list of names"):
        read_names(path, "--classes")


@pytest.mark.parametrize("content", ["[1, 2]", '{"0": "cat"}', "[", None])
def test_a_file_that_is_no_list_of_names_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "classes.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"--classes .*classes\.json: .*a JSON list"):
        read_names(path, "--classes")
