"""The table of published weights: complete rows, two commands and one page that say the same."""

import re
from pathlib import Path

import pytest

from vlmill.extract.cli import command
from vlmill.runtime.console.command import run_command
from vlmill.runtime.weights.listing import render_page
from vlmill.runtime.weights.names import parse_name, parse_web_location
from vlmill.runtime.weights.published import Published, published
from vlmill.train.cli import main

ROOT = Path(__file__).parents[3]


def test_the_page_is_the_table() -> None:
    """To renew it: python -m vlmill.runtime.weights.listing > docs/weights.md"""
    assert (ROOT / "docs" / "weights.md").read_text(encoding="utf-8") == render_page()


@pytest.mark.parametrize("row", published(), ids=lambda row: row.name)
def test_a_row_is_complete(row: Published) -> None:
    assert row.source and row.licence and row.command
    assert row.kind == "model" or (row.classes and row.selection)
    assert bool(row.sha256) == bool(row.sha256_source)
    assert not row.sha256 or re.fullmatch(r"[0-9a-f]{64}", row.sha256)
    if row.url:
        parse_name(row.url)
        assert row.url in row.command
    else:
        assert row.mirrors or row.gone or not row.file
    assert all("://" in address for address in (*row.mirrors, *row.gone))


def test_names_are_unique_and_cover_the_papers() -> None:
    names = [row.name for row in published()]
    assert len(set(names)) == len(names)
    families = {row.family for row in published()}
    assert families >= {"vilbert", "vl-bert", "imagebert", "interbert", "vlmo", "bert", "beit"}
    assert families >= {"vit", "dvae", "caffe", "milvlg", "milvlg-d2", "airsplay", "hf-frcnn"}
    assert families >= {"vinvl", "vqa-maskrcnn", "detectron2", "detectron2-fpn", "grid-feats"}


def test_a_download_is_held_against_the_table() -> None:
    (row,) = [row for row in published() if row.name == "hf-frcnn"]
    assert parse_web_location(row.url).sha256 == row.sha256
    other = f"{row.url}#sha256={'0' * 64}"
    assert parse_web_location(other).sha256 == "0" * 64


def test_the_commands_list_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command, ["weights", "vinvl"]) == 0
    said = capsys.readouterr().out
    assert "hf://michelecafagna26/vinvl_vg_x152c4" in said and "593 MB" in said
    assert "gone" in said and "extract-rois run" in said and "vl-bert" not in said
    assert main(["weights"]) == 0
    said = capsys.readouterr().out
    assert "dall-e-tokenizer" in said and "Neither code nor weights were published" in said
    assert main(["weights", "vinvl"]) == 2
    assert "vinvl: no such row; give one of vilbert" in capsys.readouterr().err
