"""SCAN's files of Flickr30k: captions in order, and the images that they are of."""

from pathlib import Path

import pytest
from tests.pipelines.manifest.layouts import write, write_json
from tests.pipelines.manifest.running import made, reasons, rows

from vlmill.schemas.tables import ALIASES, PAIRS


def captions(*images: str) -> str:
    return "".join(f"{words} , {k} .\n" for words in images for k in range(5))


def write_scan(root: Path, ids: str, *, mapping: bool = True) -> None:
    write(root / "test_caps.txt", captions("a red bus", "two dogs"))
    write(root / "test_ids.txt", ids)
    write(root / "dev_caps.txt", captions("a kite"))
    write(root / "dev_ids.txt", "1000092795.jpg\n")
    if mapping:
        names = {"12": "1000268201.jpg", "31": "flickr30k-images/10002456.jpg"}
        write_json(root / "id_mapping.json", names)


@pytest.mark.parametrize("ids", ["12\n31\n", "12\n" * 5 + "31\n" * 5, "1000268201\n10002456"])
def test_five_lines_are_of_the_image_of_the_list(tmp_path: Path, ids: str) -> None:
    write_scan(tmp_path / "in", ids)
    pairs = rows(made("flickr30k", tmp_path / "in"), PAIRS)
    assert {(row["split"], row["image_id"]) for row in pairs} == {
        ("dev", "flickr30k/1000092795"),
        ("test", "flickr30k/1000268201"),
        ("test", "flickr30k/10002456"),
    }
    two_dogs = [row for row in pairs if row["text"].startswith("two dogs")]
    assert [row["pair_id"] for row in two_dogs] == [f"flickr30k/10002456#{k}" for k in range(5)]
    assert two_dogs[4]["text"] == "two dogs , 4 ."
    assert {row["alias"] for row in rows(tmp_path / "in-out", ALIASES)} >= {"flickr/10002456"}


def test_a_image_that_the_names_lack_costs_its_captions_alone(tmp_path: Path) -> None:
    write_scan(tmp_path / "in", "12\n99\n")
    out = made("flickr30k", tmp_path / "in")
    assert len(rows(out, PAIRS)) == 10
    assert reasons(out) == [(f"test_caps.txt:{n}", "bad_reference") for n in range(5, 10)]


def test_an_empty_caption_does_not_shift_the_others(tmp_path: Path) -> None:
    write_scan(tmp_path / "in", "12\n31\n")
    text = captions("a red bus", "two dogs").replace("a red bus , 1 .\n", "\n")
    write(tmp_path / "in/test_caps.txt", text)
    out = made("flickr30k", tmp_path / "in")
    assert reasons(out) == [("test_caps.txt:1", "empty_text")]
    assert rows(out, PAIRS)[-1]["pair_id"] == "flickr30k/10002456#4"


@pytest.mark.parametrize(
    ("ids", "mapping", "said"),
    [
        (None, True, "add test_ids.txt to the same folder"),
        ("12\n", True, "has 10 lines and"),
        ("12\n31\n", False, "add id_mapping.json"),
        ("12\n31\n" * 5, True, "must be 5 in a row"),
    ],
)
def test_without_a_list_that_fits_nothing_is_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ids: str | None, mapping: bool, said: str
) -> None:
    write_scan(tmp_path / "in", ids or "", mapping=mapping)
    if ids is None:
        (tmp_path / "in/test_ids.txt").unlink()
    made("flickr30k", tmp_path / "in", status=2)
    assert said in capsys.readouterr().err
