"""Published checkpoints by name: of the hub and of the web, converted as local files are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.hub_server import Hub
from tests.inference.convert.test_command import VOCABULARY
from tests.models.bert_files import tiny, write
from tests.web import LOCAL, FileServer, file_server

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer
from vlmill.models.published import export_reference
from vlmill.runtime.files.listed import hash_file
from vlmill.train.cli import main


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder as BERT is published: weights, configuration and vocabulary."""
    folder = tmp_path / "published"
    folder.mkdir()
    model = tiny()
    write(model, folder / "pytorch_model.bin", "original")
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    return folder


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("VLMILL_CACHE", str(tmp_path / "cache"))
    with file_server() as server:
        yield server


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def convert(family: str, checkpoint: object, output: Path, *more: str) -> int:
    words = ["--family", family, "--checkpoint", str(checkpoint), "--output", str(output)]
    return main(["convert", *words, *more])


def test_a_repository_is_converted_as_its_folder_is(
    hub: Hub, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.commit("me/bert", files_of(published) | {"flax_model.msgpack": b"x", "README.md": b"y"})
    assert convert("bert", published, tmp_path / "local") == 0
    assert convert("bert", "hf://me/bert", tmp_path / "hub") == 0
    assert convert("bert", "hf://me/bert/pytorch_model.bin", tmp_path / "file") == 0
    expected = hash_file(tmp_path / "local" / "model.safetensors")
    for name in ("hub", "file"):
        assert hash_file(tmp_path / name / "model.safetensors") == expected
        assert (tmp_path / name / "vocab.txt").read_text().split() == VOCABULARY
    assert not [line for line in hub.asked if "flax" in line or "README" in line]
    capsys.readouterr()
    # It is no checkpoint of ours, and the message says how it becomes one.
    words = ["--regions", "r", "--pairs", "p", "--output", str(tmp_path / "run")]
    assert main(["pretrain", "imagebert-small", "--init", "hf://me/bert", *words]) == 2
    assert "train-vl convert --family FAMILY --checkpoint hf://me/bert" in capsys.readouterr().err


def test_a_repository_of_ours_starts_a_run_and_is_exported(
    hub: Hub, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert("bert", published, tmp_path / "ours") == 0
    hub.commit("me/ours", files_of(tmp_path / "ours"))
    exported = tmp_path / "bert.safetensors"
    assert convert("bert", "hf://me/ours", exported, "--to", "reference") == 0
    assert exported.stat().st_size > 1_000
    capsys.readouterr()
    for name in ("hf://me/ours", "hf://me/ours/model.safetensors"):
        assert main(["show", name]) == 0
        assert "bert" in capsys.readouterr().out


def test_a_checkpoint_is_read_from_a_web_server(
    web: FileServer, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert("bert", published, tmp_path / "ours") == 0
    for name, content in files_of(tmp_path / "ours").items():
        web.files[f"/ours/{name}"] = content
    digest = hash_file(tmp_path / "ours" / "checkpoint.json")
    address = f"{web.url}/ours/#sha256={digest}"
    capsys.readouterr()
    assert main(["show", address, "--allow-address", LOCAL]) == 0
    assert "bert" in capsys.readouterr().out
    # A file that is not what the record lists.
    web.files["/other/checkpoint.json"] = web.files["/ours/checkpoint.json"]
    web.files["/other/model.safetensors"] = b"another"
    address = address.replace("/ours/", "/other/")
    assert main(["show", address, "--allow-address", LOCAL]) == 2
    assert "has the SHA-256" in capsys.readouterr().err


def test_a_tokenizer_of_images_by_its_address(
    web: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    state = export_reference("dvae", DalleTokenizer(DalleConfig(num_tokens=9, width=8)))
    torch.save(state, tmp_path / "encoder.pkl")
    web.files["/dall-e/encoder.pkl"] = (tmp_path / "encoder.pkl").read_bytes()
    address = f"{web.url}/dall-e/encoder.pkl#sha256={hash_file(tmp_path / 'encoder.pkl')}"
    output = tmp_path / "dalle.safetensors"
    assert convert("dvae", address, output, "--allow-address", LOCAL) == 0
    assert convert("dvae", tmp_path / "encoder.pkl", tmp_path / "local.safetensors") == 0
    assert hash_file(output) == hash_file(tmp_path / "local.safetensors")


@pytest.mark.parametrize(
    ("names", "family", "expected"),
    [
        (["bert.encoder.r_layers.0.x.weight"], "bert", "the file is LXMERT"),
        (["vlbert.word_embeddings.weight"], "vilbert", "--family vl-bert"),
        (["proposal_generator.rpn_head.conv.weight"], "bert", "extract-rois run --weights"),
        (["blocks.group_1.block_1.id_path.w"], "bert", "--family dvae"),
    ],
)
def test_another_networks_file_is_named(
    names: list[str],
    family: str,
    expected: str,
    published: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = published / "other.bin"
    torch.save({name: torch.ones(2, 2) for name in names}, path)
    config = {"bert": str(published / "config.json"), "vilbert": "vilbert-small"}[family]
    assert convert(family, path, tmp_path / "out", "--config", config) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line and str(path) in line
