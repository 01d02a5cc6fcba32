"""Detectors by name and as folders of the hub, from the command to the rows of regions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from tests.extract.detect.test_checkpoint import SMALL, STATE
from tests.hub_server import Hub
from tests.models.detector.test_configurations import HUGGING_FACE
from tests.web import LOCAL, FileServer, file_server

from vlmill.extract.cli import command
from vlmill.extract.detect.checkpoint import save_detector
from vlmill.extract.detect.config_file import read_config_file
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.show import Vocabulary
from vlmill.models.detector.config import detectron2, hf_frcnn
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.readers.class_names import stored_names
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.plain_json import read_json

SIDES = ("--short-side", "64", "--long-side", "100", "--max-boxes", "8")


@pytest.fixture
def photos(jpeg: Callable[[int], bytes], tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(jpeg(0))
    return folder


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("VLMILL_CACHE", str(tmp_path / "cache"))
    with file_server() as server:
        yield server


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "pytorch_model.bin"
    torch.save({"model": STATE}, path)
    return path


def extract(photos: Path, output: Path, weights: object, *more: str) -> int:
    words = ["run", str(photos), "--output", str(output), "--weights", str(weights), *SIDES, *more]
    return run_command(command, words)


def read_features(output: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    (row,) = list(RegionReader(output))
    return np.asarray(row.features, dtype=np.float32)


def test_a_name_of_the_hub_is_fetched_and_run(
    hub: Hub,
    photos: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"pytorch_model.bin": weights.read_bytes(), "README.md": b"mine", "other.pkl": b"no"}
    hub.commit("me/detector", files)
    hub.check_digests = True
    assert extract(photos, tmp_path / "local", weights) == 0
    assert extract(photos, tmp_path / "hub", "hf://me/detector") == 0
    expected = read_features(tmp_path / "local")
    np.testing.assert_array_equal(read_features(tmp_path / "hub"), expected)
    assert not [line for line in hub.asked if "other.pkl" in line or "README" in line]
    manifest = read_json(tmp_path / "hub" / "_manifest.json")
    (item,) = [item for item in manifest["inputs"] if item["flag"] == "--weights"]
    assert item["digest"] == hash_file(weights) and hub.heads["me/detector"] in item["path"]
    # Without a network the cache serves; without either, one line names both.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert extract(photos, tmp_path / "cached", "hf://me/detector") == 0
    assert "taken from the cache" in capsys.readouterr().err
    assert extract(photos, tmp_path / "none", "hf://you/detector@v1") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hf://you/detector@v1" in line and str(tmp_path / "hub-cache") in line
    assert not (tmp_path / "none").exists()


def test_a_file_and_a_folder_of_a_repository(
    hub: Hub, photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = weights.read_bytes()
    hub.commit("me/two", {"a.pth": content, "b.pth": b"x", "deep/model.pth": content})
    for name in ("hf://me/two/a.pth", "hf://me/two/deep", "hf://me/two/deep/model.pth@main"):
        assert extract(photos, tmp_path / "out", name, "--fresh") == 0
    capsys.readouterr()
    assert extract(photos, tmp_path / "no", "hf://me/two") == 2
    assert "holds a.pth, b.pth; give one of these files" in capsys.readouterr().err
    assert extract(photos, tmp_path / "no", "hf://me/two/c.pth") == 2
    assert "the repository has no c.pth" in capsys.readouterr().err
    wrong = f"hf://me/two/a.pth#sha256={'0' * 64}"
    assert extract(photos, tmp_path / "no", wrong) == 2
    assert f"expected {'0' * 64}" in capsys.readouterr().err


def test_a_file_that_is_not_as_the_hub_says_is_refused(
    hub: Hub, photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.commit("me/detector", {"pytorch_model.bin": weights.read_bytes()})
    hub.check_digests = True
    hub.false_digests = {"pytorch_model.bin": "1" * 64}
    assert extract(photos, tmp_path / "out", "hf://me/detector") == 2
    assert "has the SHA-256" in capsys.readouterr().err


def hf_folder(folder: Path) -> dict[str, torch.Tensor]:
    """A snapshot as the hub has it, of a narrow network: config.yaml, and the tensors that fit."""
    sizes = {"depth": 50, "stem_out_channels": 4, "res2_out_channels": 8, "width_per_group": 2}
    config = HUGGING_FACE | {
        "resnets": HUGGING_FACE["resnets"] | sizes,
        "proposal_generator": {"hidden_channels": 8, "min_size": 0},
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    network = read_config_file(folder / "config.yaml").configuration().config
    model = FasterRCNN(network)
    randomise(model, 3)
    return {
        published_name(name, "hf-frcnn"): tensor.contiguous()
        for name, tensor in model.state_dict().items()
    }


def test_a_folder_of_the_hub_is_taken_as_it_is(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "snapshot"
    state = hf_folder(folder)
    torch.save(state, folder / "pytorch_model.bin")
    assert extract(photos, tmp_path / "one", folder) == 0
    metadata = RegionReader(tmp_path / "one").producer
    assert metadata["config"] == "config.yaml" and metadata["weights"] == "pytorch_model.bin"
    names = stored_names(metadata)
    assert names["classes"][:2] == ["yolk", "goal"] and len(names["classes"]) == 1600
    assert names["attributes"][3] == "unmade" and len(names["attributes"]) == 400
    assert "Visual Genome" in metadata["names"]["source"]

    (folder / "pytorch_model.bin").unlink()
    tensors = sorted(state)
    shards = {
        "model-00001-of-00002.safetensors": tensors[::2],
        "model-00002-of-00002.safetensors": tensors[1::2],
    }
    for shard, members in shards.items():
        save_file({name: state[name] for name in members}, folder / shard)
    index = {name: shard for shard, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert extract(photos, tmp_path / "two", folder) == 0
    np.testing.assert_array_equal(read_features(tmp_path / "two"), read_features(tmp_path / "one"))
    manifest = read_json(tmp_path / "two" / "_manifest.json")
    assert len([item for item in manifest["inputs"] if item["flag"] == "--weights"]) == 2

    (folder / "model-00002-of-00002.safetensors").unlink()
    capsys.readouterr()
    assert extract(photos, tmp_path / "three", folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "model-00002-of-00002.safetensors" in line and "give a complete folder" in line


def test_a_mask_head_of_c4_is_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"depth": 50, "stem_channels": 4, "res2_channels": 8, "res2_width": 2}
    model = FasterRCNN(detectron2(**sizes, num_classes=6, rpn_channels=32))
    randomise(model, 4)
    state = {published_name(k, "detectron2"): v for k, v in model.state_dict().items()}
    torch.save({"model": state}, tmp_path / "box.pth")
    head = {
        "roi_heads.mask_head.deconv.weight": torch.ones(64, 4, 2, 2),
        "roi_heads.mask_head.deconv.bias": torch.ones(4),
        "roi_heads.mask_head.predictor.weight": torch.ones(6, 4, 1, 1),
        "roi_heads.mask_head.predictor.bias": torch.ones(6),
    }
    torch.save({"model": state | head}, tmp_path / "mask.pth")
    (tmp_path / "mask.yaml").write_text(
        "MODEL:\n  MASK_ON: True\n  RESNETS: {DEPTH: 50, STEM_OUT_CHANNELS: 4, RES2_OUT_CHANNELS: "
        "8, WIDTH_PER_GROUP: 2}\n  ROI_HEADS: {NUM_CLASSES: 6}\n"
    )
    assert extract(photos, tmp_path / "box", tmp_path / "box.pth") == 0
    assert "mask head" not in capsys.readouterr().err
    assert extract(photos, tmp_path / "mask", tmp_path / "mask.pth") == 0
    assert "the mask head is not used" in capsys.readouterr().err
    words = ["--config", str(tmp_path / "mask.yaml")]
    assert extract(photos, tmp_path / "config", tmp_path / "mask.pth", *words) == 0
    expected = read_features(tmp_path / "box")
    for name in ("mask", "config"):
        np.testing.assert_array_equal(read_features(tmp_path / name), expected)


def test_an_address_is_downloaded_once(
    web: FileServer, photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.files["/zoo/detector.pth"] = weights.read_bytes()
    digest = hash_file(weights)
    address = f"{web.url}/zoo/detector.pth#sha256={digest}"
    allowed = ("--allow-address", LOCAL)
    assert extract(photos, tmp_path / "no", address) == 2
    assert "127.0.0.1 is not an address of the web" in capsys.readouterr().err
    assert extract(photos, tmp_path / "one", address, *allowed) == 0
    asked = len(web.asked)
    assert extract(photos, tmp_path / "two", address, *allowed) == 0
    assert len(web.asked) == asked
    assert RegionReader(tmp_path / "two").producer["weights"] == "detector.pth"
    assert extract(photos, tmp_path / "no", f"{web.url}/zoo/detector.pth", *allowed) == 2
    assert "http:// does not protect a download" in capsys.readouterr().err


def test_a_trained_detector_by_its_address(web: FileServer, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    model = FasterRCNN(hf_frcnn(depth=50, stem_channels=4, res2_channels=8, res2_width=2))
    randomise(model, 5)
    save_detector(
        folder,
        model.config,
        model.state_dict(),
        classes=(),
        attributes=(),
        training={"recipe": "small"},
    )
    for path in folder.iterdir():
        web.files[f"/trained/{path.name}"] = path.read_bytes()
    digest = hash_file(folder / "detector.json")
    address = f"{web.url}/trained/#sha256={digest}"
    assert extract(photos, tmp_path / "out", address, "--allow-address", LOCAL) == 0
    expected = open_detector(None, folder).fingerprint
    assert RegionReader(tmp_path / "out").detector_fingerprint == expected


def test_tables_carry_the_names_of_their_detector(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes, attributes = tmp_path / "classes.txt", tmp_path / "attributes.json"
    classes.write_text("cat,kitty\ndog\nhat\nbus\nsky\nred kite\n")
    attributes.write_text(json.dumps(["wet", "red", "old", "big", "far"]))
    assert extract(photos, tmp_path / "none", weights) == 0
    assert "names" not in RegionReader(tmp_path / "none").producer
    flags = ("--classes", str(classes), "--attributes", str(attributes))
    assert extract(photos, tmp_path / "named", weights, *flags) == 0
    assert stored_names(RegionReader(tmp_path / "named").producer) == {
        "classes": ["cat", "dog", "hat", "bus", "sky", "red kite"],
        "attributes": ["wet", "red", "old", "big", "far"],
    }
    np.testing.assert_array_equal(
        read_features(tmp_path / "named"), read_features(tmp_path / "none")
    )
    page = tmp_path / "page.html"
    words = ["show", str(tmp_path / "named"), "--images", str(photos), "--output", str(page)]
    assert run_command(command, words) == 0
    names = Vocabulary().or_stored(RegionReader(tmp_path / "named").producer)
    (row,) = list(RegionReader(tmp_path / "named"))
    assert row.class_ids is not None and row.attribute_ids is not None
    assert names.label(row, 0).startswith(
        f"{names.attributes[row.attribute_ids[0]]} {names.classes[row.class_ids[0]]} "
    )
    tags = tmp_path / "tags"  # object tags as text, for Oscar
    words = ["export", str(tmp_path / "named"), "--format", "oscar", "--output", str(tags)]
    assert run_command(command, words) == 0
    line = json.loads((tags / "predictions.tsv").read_text().split("\t")[1])
    found = [(entry["class"], entry["attributes"][0]) for entry in line["objects"]]
    assert found == [
        (names.classes[number], names.attributes[attribute])
        for number, attribute in zip(row.class_ids, row.attribute_ids, strict=True)
    ]
    words = ["export", str(tmp_path / "none"), "--format", "oscar", "--output", f"{tags}2"]
    capsys.readouterr()
    assert run_command(command, words) == 2
    assert "the regions carry none; give --classes" in capsys.readouterr().err
    assert extract(photos, tmp_path / "no", weights, "--classes", str(attributes)) == 2
    assert "--classes has 5 names, the detector 6 classes" in capsys.readouterr().err


def test_a_trained_detectors_own_names_are_carried(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    model = FasterRCNN(SMALL)
    randomise(model, 6)
    names = ("a", "b", "c", "d", "e", "f")
    save_detector(
        folder,
        model.config,
        model.state_dict(),
        classes=names,
        attributes=(),
        training={"recipe": "small"},
    )
    assert extract(photos, tmp_path / "out", folder) == 0
    producer = RegionReader(tmp_path / "out").producer
    assert stored_names(producer) == {"classes": list(names), "attributes": []}
    assert producer["names"]["source"] == "the detector's own file"
