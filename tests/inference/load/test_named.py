"""Checkpoints go to the hub and come back: a stand-in of it on 127.0.0.1, dirt and no network."""

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.hub_server import Hub
from tests.object_stores import upload_folder
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import TOKENIZER, VOCABULARY

import vlmill
from vlmill.extract.config import ExtractConfig, InputLimits
from vlmill.extract.detect.detector import open_detector
from vlmill.inference.load.detector import open_recorded_detector
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.runtime.weights.names import parse_hub_location
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.checkpoints.named import FILES
from vlmill.train.cli import main

PLACE = "hf://me/kites"
TEXTS = ["a dog", "two cats on a beach"]


@pytest.fixture(scope="module")
def vlmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a dual encoder, which a run on tables of this machine has left."""
    folder = tmp_path_factory.mktemp("vlmo") / "run"
    save_checkpoint(
        folder,
        tiny_model("vlmo", VOCABULARY),
        CheckpointRecord(
            variant="vlmo",
            tokenizer=TOKENIZER,
            training=TrainingRecord(
                recipe="vlmo-small", stage="pairs", step=7, num_pairs=12, validation_loss=0.25
            ),
            feeding=RANKED["vlmo"].feeding,
        ),
    )
    settings = json.loads((folder / "checkpoint.json").read_text())
    path = "/home/me/secret/kites"
    entry: dict[str, object] = {"flag": "--pairs", "path": path, "rule": "manifest"}
    entry |= {"digest": "a" * 64, "files": 1, "bytes": 1234, "table": "pairs", "rows": 12}
    settings["inputs"] = [entry]
    (folder / "checkpoint.json").write_text(json.dumps(settings))
    (folder / "recipe.yaml").write_text(
        "name: vlmo-small\nseed: 3\npicture_tokenizer: /home/me/secret/dvae.pt\n"
    )
    return folder


def push(folder: Path, *more: str) -> int:
    return main(["push", "--checkpoint", str(folder), "--to", PLACE, *more])


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_checkpoint_goes_there_and_comes_back(
    hub: Hub, vlmo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "found" / "metrics.json"
    metrics.parent.mkdir()
    metrics.write_text('{"text_retrieval/r1": 0.5, "split": "test"}')
    hub.token = "token"
    assert push(vlmo, "--license", "apache-2.0", "--metrics", str(metrics)) == 0
    commit = hub.heads["me/kites"]
    assert capsys.readouterr().out.startswith(f"{PLACE}@{commit}: 5 files, ")
    assert hub.private["me/kites"] and len(hub.commits) == 2  # the empty one, and all at once
    files = hub.head("me/kites")
    assert set(files) == {
        *("README.md", "checkpoint.json", "model.safetensors", "recipe.yaml", "vocab.txt")
    }
    assert files["model.safetensors"] == (vlmo / "model.safetensors").read_bytes()
    assert not [name for name, content in files.items() if b"secret" in content]
    model = vlmill.load(PLACE)
    np.testing.assert_array_equal(model.encode_texts(TEXTS), vlmill.load(vlmo).encode_texts(TEXTS))
    card = files["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "apache-2.0" and header["library_name"] == "vlmill"
    for said in (
        *("pretrained by the recipe `vlmo-small`", "| --pairs | kites | 12 pairs, 1.2 kB"),
        *("| validation_loss | 0.25 |", "| found/metrics.json | text_retrieval/r1 | 0.5 |"),
        *("seed: 3", "picture_tokenizer: dvae.pt", f"written by vlmill {vlmill.__version__}."),
        *("| the weights | apache-2.0 |", "| the data of training | not stated"),
    ):
        assert said in card
    loading = card.split("```python\n")[1].split("```")[0]
    assert len([line for line in loading.splitlines() if line]) <= 5
    folder = tmp_path / "there"
    folder.mkdir()
    Image.new("RGB", (64, 64), "red").save(folder / "picture.jpg")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(loading, {})
    assert capsys.readouterr().out.count("[") >= 1


def test_a_checkpoint_in_a_store_is_sent(hub: Hub, vlmo: Path, bucket: str, tmp_path: Path) -> None:
    upload_folder(vlmo, f"{bucket}/run")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.json").write_text('{"rsum": 1.5}')
    upload_folder(tmp_path / "results", f"{bucket}/results")
    words = ["--checkpoint", f"{bucket}/run", "--metrics", f"{bucket}/results/metrics.json"]
    assert main(["push", *words, "--to", PLACE]) == 0
    sent, stored = (vlmill.load(place).encode_texts(TEXTS) for place in (PLACE, f"{bucket}/run"))
    np.testing.assert_array_equal(sent, stored)


def test_a_commit_is_pinned_and_what_is_gone_is_deleted(hub: Hub, vlmo: Path) -> None:
    hub.commit("me/kites", {"detector.safetensors": b"old", "notes.txt": b"mine"})
    assert push(vlmo) == 0
    first = hub.heads["me/kites"]
    assert "detector.safetensors" not in hub.head("me/kites") and "notes.txt" in hub.head(
        "me/kites"
    )
    other = dict(hub.head("me/kites"))
    other["vocab.txt"] = b"nothing"
    hub.commit("me/kites", other)
    assert vlmill.load(f"{PLACE}@{first}").encode_texts(TEXTS).shape == (2, 16)
    with pytest.raises(InputError, match="vocab"):
        vlmill.load(PLACE)


def test_without_a_network_the_cache_serves(
    hub: Hub, vlmo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("me/kites", files_of(vlmo))
    expected = vlmill.load(PLACE).encode_texts(TEXTS)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match=r"cannot be reached; taken from the cache"):
        np.testing.assert_array_equal(vlmill.load(PLACE).encode_texts(TEXTS), expected)
    with pytest.raises(InputError, match="cannot be reached") as said:
        vlmill.load("hf://me/others")
    assert str(tmp_path / "hub-cache") in str(said.value) and "HF_HUB_CACHE" in str(said.value)


def test_a_push_without_a_network_fails(
    hub: Hub, vlmo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert push(vlmo) == 1
    assert "the hub cannot be reached" in capsys.readouterr().err


def test_a_dry_run_prints_the_card(
    hub: Hub, vlmo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(vlmo, "--dry-run") == 0
    said = capsys.readouterr()
    assert said.out.startswith("---\nlibrary_name: vlmill\n") and "nothing was sent" in said.err
    assert push(vlmo, "--dry-run", "--with-detector") == 2
    assert "remove it" in capsys.readouterr().err
    assert push(vlmo, "--dry-run", "--license", "all mine") == 2
    assert "--license all mine" in capsys.readouterr().err
    assert not hub.asked


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "more/extra.PKL"])
def test_a_folder_with_a_pickle_is_refused(
    name: str, hub: Hub, vlmo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.commit("me/kites", files_of(vlmo) | {name: pickle.dumps(Bomb(tmp_path / "boom"))})
    with pytest.raises(InputError, match=rf"holds {name}, a pickle"):
        vlmill.load(PLACE)
    assert not [line for line in hub.asked if "resolve" in line]
    assert push(vlmo) == 2
    assert "a pickle" in capsys.readouterr().err and not (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "trained_pairs.npy", "checkpoint.json"])
def test_a_pickle_under_another_name_is_not_run(
    name: str, hub: Hub, vlmo: Path, tmp_path: Path
) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "boom"))
    files = files_of(vlmo) | {"trained_images.npy": bomb, name: bomb}
    if name == "trained_pairs.npy":
        settings = json.loads(files["checkpoint.json"])
        files["checkpoint.json"] = json.dumps(
            settings | {"trained_on": {"complete": True}}
        ).encode()
    hub.commit("me/kites", files)
    with pytest.raises(InputError, match="is damaged"):
        vlmill.load(PLACE)
    assert not (tmp_path / "boom").exists()


def test_what_is_no_checkpoint_is_refused(
    hub: Hub, vlmo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no such repository or revision"):
        vlmill.load(PLACE)
    hub.commit("me/kites", {"README.md": b"mine"})
    with pytest.raises(InputError, match=r"has no checkpoint\.json"):
        vlmill.load(PLACE)
    hub.commit("me/kites", files_of(vlmo))
    monkeypatch.setitem(FILES, "vocab.txt", 3)
    with pytest.raises(InputError, match=r"vocab\.txt is of \d+ bytes, more than 3"):
        vlmill.load(PLACE)
    hub.token = "another"
    with pytest.raises(InputError, match="log in with `hf auth login`"):
        vlmill.load(PLACE)


@pytest.mark.parametrize(
    "text", ["hf://me", "hf://me/../x", "hf://a/b/../c", "hf://me/x@", "hf:///x"]
)
def test_names_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected hf://OWNER/NAME"):
        parse_hub_location(text)


def test_a_run_is_sent_by_its_last_checkpoint(hub: Hub, vlmo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(vlmo, run / "checkpoints" / "step-00000007")
    (run / "recipe.yaml").write_text("name: vlmo-small\nseed: 9\n")
    assert push(run) == 0
    files = hub.head("me/kites")
    assert b"seed: 9" in files["recipe.yaml"] and b"seed: 9" in files["README.md"]
    assert load_checkpoint(vlmo).training.step == 7


def reads_regions(folder: Path, weights: str, seed: int) -> Path:
    """A checkpoint of regions that a tiny detector has made."""
    config = ExtractConfig(limits=InputLimits(short_side=48, long_side=80))
    detector = open_detector(ARCHITECTURES["tiny"], None, seed=seed)
    record = {"detector": dataclasses.asdict(ARCHITECTURES["tiny"]), "weights": weights}
    save_checkpoint(
        folder,
        tiny_model("imagebert", VOCABULARY, region_width=ARCHITECTURES["tiny"].res2_channels * 8),
        CheckpointRecord(
            variant="imagebert",
            tokenizer=TOKENIZER,
            training=TrainingRecord(recipe="imagebert", stage="pairs", step=1, num_pairs=0),
            feeding=RANKED["imagebert"].feeding,
            detector_fingerprint=detector.fingerprint,
            detector=record | config.settings(),
        ),
    )
    return folder


def test_a_detector_goes_along(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reads_regions(tmp_path / "run", "random weights, seed 3", 3)
    assert push(folder) == 0
    assert 'detector="FILE"' in hub.head("me/kites")["README.md"].decode()
    assert push(folder, "--with-detector") == 0
    files = hub.head("me/kites")
    assert (
        "detector.safetensors" in files and b"the detector in this repository" in files["README.md"]
    )
    model = vlmill.load(PLACE)
    engine = model._engine
    assert engine.detector is not None and engine.detector.name == "detector.safetensors"
    with pytest.warns(UserWarning, match="random weights"):
        regions = open_recorded_detector(engine.loaded, engine.detector, "cpu")
    assert regions.detector.fingerprint == engine.loaded.detector_fingerprint
    assert regions.detector.weights == "detector.safetensors"

    # A detector that lies elsewhere is given by its name.
    third = reads_regions(tmp_path / "third", "detector.pth", 3)
    hub.commit("me/detector", {"detector.safetensors": files["detector.safetensors"]})
    opened = vlmill.load(third, detector="hf://me/detector")._engine
    assert opened.detector is not None and hub.heads["me/detector"] in str(opened.detector)

    named = reads_regions(tmp_path / "named", "detector.pth", 4)
    (tmp_path / "other.safetensors").write_bytes(files["detector.safetensors"])
    capsys.readouterr()
    assert push(named, "--with-detector") == 2
    assert "give --with-detector FILE" in capsys.readouterr().err
    assert push(named, "--with-detector", str(tmp_path / "other.safetensors")) == 2
    assert "was trained on" in capsys.readouterr().err
    assert hub.head("me/kites") == files
