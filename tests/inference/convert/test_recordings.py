"""``train-vl convert`` on the official repositories' own weights: back again, name for name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import GOLDEN
from torch import Tensor

from vlmill.models import MODELS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.images.tokenizer import read_image_tokenizer
from vlmill.train.loading.vocabulary import SPECIAL

RECORDED = {
    "interbert/vltasks": ("interbert", "interbert-tasks"),
    "vilbert/vilbert_pretrain_paperdepth": ("vilbert", "vilbert"),
    "vlmo/beit_finetuned": ("beit", "beit"),
    "vlmo/nlvr2_rel": ("vlmo", "vlmo-nlvr2"),
}
TOKENIZER = "vlmo/dvae_customized"


def convert(family: str, checkpoint: Path, *words: str) -> None:
    assert main(["convert", "--family", family, "--checkpoint", str(checkpoint), *words]) == 0


def assert_same(written: dict[str, Tensor], published: dict[str, Tensor]) -> None:
    assert written.keys() == published.keys()
    assert [name for name in published if not torch.equal(written[name], published[name])] == []


def words_of(config: Any) -> int:
    """How many words a configuration has, at any depth; a model of images has none."""
    found = [getattr(config, "vocab_size", 0)]
    found += [words_of(v) for v in vars(config).values() if hasattr(v, "__dataclass_fields__")]
    return max(found)


@pytest.mark.parametrize("name", RECORDED)
def test_a_published_file_becomes_a_folder_and_comes_back(name: str, tmp_path: Path) -> None:
    family, variant = RECORDED[name]
    weights, settings = GOLDEN / name / "weights.safetensors", GOLDEN / name / "config.json"
    published = load_file(weights)
    direct = tmp_path / "direct.safetensors"
    words = ("--config", str(settings))
    convert(family, weights, *words, "--to", "reference", "--output", str(direct))
    assert_same(load_file(direct), published)

    size = json.loads(settings.read_text()).get("vocab_size") or 10
    vocabulary = [*SPECIAL, *(f"word{i}" for i in range(size - len(SPECIAL)))]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary))
    flags = (*words, "--vocab", str(tmp_path / "vocab.txt"))
    convert(family, weights, *flags, "--output", str(tmp_path / "ours"))
    loaded = load_checkpoint(tmp_path / "ours")
    assert loaded.variant == variant and isinstance(loaded.model, MODELS[variant].model)
    assert words_of(loaded.config) in (0, size)
    back = tmp_path / "back.safetensors"
    convert(family, tmp_path / "ours", "--to", "reference", "--output", str(back))
    assert_same(load_file(back), published)


def test_a_tokenizer_of_images_needs_no_configuration(tmp_path: Path, capsys: Any) -> None:
    weights = GOLDEN / TOKENIZER / "weights.safetensors"
    published = load_file(weights)
    (tmp_path / "alone.safetensors").write_bytes(weights.read_bytes())
    for target in ("vlmill", "reference"):
        written = tmp_path / f"{target}.safetensors"
        words = ("--to", target, "--output", str(written))
        convert("dvae", tmp_path / "alone.safetensors", *words)
        assert_same(load_file(written), published)
        assert read_image_tokenizer(written).num_tokens == len(published["codebook.weight"])
    folder = ["--output", str(tmp_path / "folder")]
    command = ["convert", "--family", "dvae", "--checkpoint", str(weights), *folder]
    assert main(command) == 2
    assert "a Dvae has no folder format; give FILE.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*RECORDED, TOKENIZER])
def test_explain_lists_every_parameter(name: str, capsys: Any) -> None:
    family = RECORDED.get(name, ("dvae",))[0]
    weights, settings = GOLDEN / name / "weights.safetensors", GOLDEN / name / "config.json"
    convert(family, weights, "--config", str(settings), "--explain")
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("unused:") or " new: " in line]
    assert lines[-1] == f"{len(lines) - 1} parameters loaded, 0 new, 0 tensors unused"
