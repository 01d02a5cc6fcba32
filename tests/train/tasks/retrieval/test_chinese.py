"""TaoMultimodal: titles are cut into words, read by a vocabulary of characters, and found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.factories import Tables
from tests.train.tasks.captions import TINY, USUAL

from vlmill.pipelines.manifest.__main__ import main as manifest
from vlmill.pipelines.nearest_images.__main__ import main as nearest_images
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer, is_cased, read_vocabulary
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from pathlib import Path

GOODS = ("连衣裙", "运动鞋", "保温杯", "双肩包")
STYLES = ("夏季新款", "女士", "儿童")
ITEMS = 12


def write_items(folder: Path) -> Path:
    """Titles as sellers write them, without a space between words."""
    rows = ["item_id\ttitle\timage\tcategory\tsplit"]
    for n in range(ITEMS):
        title = f"{STYLES[n % 3]}{GOODS[n % 4]}A{n}"
        split = "val" if n % 6 == 5 else "test" if n % 6 == 4 else "train"
        rows.append(f"{n}\t{title}\timg/{n}.jpg\t{GOODS[n % 4]}\t{split}")
    folder.mkdir()
    (folder / "items.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_vocabulary(path: Path) -> Path:
    """A file like that of bert-base-chinese: characters, and pieces behind others."""
    characters = sorted({c for text in (*GOODS, *STYLES) for c in text})
    pieces = [*SPECIAL, "[unused1]", *characters, "a", *(f"##{n}" for n in range(10))]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def test_a_vocabulary_of_characters_reads_titles_as_published(tmp_path: Path) -> None:
    words = read_vocabulary(write_vocabulary(tmp_path / "vocab.txt"))
    cut, whole = words.encode("夏季 新款 连衣裙 A7"), words.encode("夏季新款连衣裙A7")
    assert cut.tokens == ["[CLS]", *"夏季新款连衣裙", "a", "##7", "[SEP]"]
    # Characters stand by themselves with and without the words' spaces; not so what is no Chinese.
    assert whole.ids == cut.ids


def test_a_vocabulary_with_capitals_is_read_with_them() -> None:
    pieces = (*SPECIAL, "The", "the", "é")
    assert is_cased(pieces) and not is_cased((*SPECIAL, "[unused99]", "the"))
    words = bert_tokenizer({piece: number for number, piece in enumerate(pieces)})
    assert words.encode("The the é").tokens == ["[CLS]", "The", "the", "é", "[SEP]"]


@pytest.mark.nightly
def test_titles_find_their_images(tmp_path: Path) -> None:
    flags = ["--input", str(write_items(tmp_path / "in")), "--output", str(tmp_path / "tao")]
    assert manifest(["tao", *flags, "--tao-clean"]) == 0
    tables = Tables(tmp_path)
    tables.write_regions([f"tao/{n}" for n in range(ITEMS)])
    near = ["--regions", tables.regions, "--pairs", str(tmp_path / "tao"), "--top", "3"]
    assert nearest_images([*near, "--output", str(tmp_path / "near")]) == 0
    sizes = (*TINY["retrieval-interbert-small"], "model.trunk.num_text_layers=1")
    sizes += ("model.trunk.num_visual_layers=1", "model.trunk.num_positions=64")
    quickly = (
        "steps=2",
        "epochs=null",
        "workers=0",
        "optimizer.warmup_steps=0",
        "validate_every=2",
    )
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    command = ["finetune", "retrieval-interbert-chinese", "--vocab", str(vocabulary)]
    command += ["--examples", str(tmp_path / "tao"), "--regions", tables.regions]
    command += ["--negatives", str(tmp_path / "near"), "--output", str(tmp_path / "run")]
    assert main([*command, *USUAL, *sizes, *quickly]) == 0
    command = ["evaluate", "retrieval", "--checkpoint", str(tmp_path / "run"), "--split", "test"]
    command += ["--pairs", str(tmp_path / "tao"), "--regions", tables.regions]
    assert main([*command, "--output", str(tmp_path / "evaluated")]) == 0
    metrics = json.loads((tmp_path / "evaluated" / "metrics.json").read_text())
    assert metrics["pairs"] == 2 and 0 <= metrics["image_retrieval/r1"] <= 1


def test_the_recipe_is_the_papers() -> None:
    (stage,) = task_recipe_named("retrieval-interbert-chinese").stages
    assert (stage.feeding.max_tokens, stage.feeding.max_regions) == (38, 16)
    assert (stage.batch_size, stage.optimizer.lr, stage.epochs) == (32, 4e-5, 20)
