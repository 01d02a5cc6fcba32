import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vlmill
from vlmill.extract.verify import verify
from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.vlmo.config import VlmoConfig
from vlmill.models.vlmo.model import Vlmo
from vlmill.runtime.files.checkpoints import CHECKPOINTS, keep_last, step_folder
from vlmill.runtime.files.listed import CHECKS, own_checks
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    LoadedCheckpoint,
    TrainedOn,
    TrainingRecord,
    load_checkpoint,
    load_training_state,
    publish,
    save_checkpoint,
)
from vlmill.train.checkpoints.folders import find_checkpoint, saved_steps
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import Feeding

RECORD = TrainingRecord(recipe="tiny", stage="pairs", step=3, num_pairs=5, pairs_digest="abc")
FEEDING = Feeding(max_regions=7, whole_image="mean", crop=(0.1, 0.9))
CONFIG = ImageBertConfig(
    vocab_size=20, width=8, num_layers=1, num_heads=2, intermediate_width=8, region_width=4
)
PAIRS = np.array([2**64 - 1, 3], np.uint64)


def save(folder: Path) -> ImageBert:
    torch.manual_seed(0)
    model = ImageBert(CONFIG)
    save_checkpoint(
        folder,
        model,
        CheckpointRecord(
            variant="imagebert",
            tokenizer=train_vocabulary(["a dog"], 20),
            training=RECORD,
            detector_fingerprint="detector-a",
            feeding=FEEDING,
            trained_on=TrainedOn(complete=False).and_also(PAIRS, PAIRS[:1]),
        ),
        state={"rng.cpu": torch.get_rng_state()},
    )
    return model


def assert_whole(loaded: LoadedCheckpoint, model: ImageBert) -> None:
    assert loaded.config == CONFIG and loaded.training == RECORD and loaded.feeding == FEEDING
    assert (loaded.variant, loaded.detector_fingerprint) == ("imagebert", "detector-a")
    assert loaded.tokenizer.encode("a dog").tokens[0] == "[CLS]"
    assert not loaded.model.training
    assert loaded.trained_on is not None and not loaded.trained_on.complete
    assert loaded.trained_on.pairs.tolist() == [3, 2**64 - 1]
    assert loaded.trained_on.images.tolist() == [2**64 - 1]
    weights = loaded.model.state_dict()
    assert weights.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    model = save(tmp_path / "one")
    assert_whole(load_checkpoint(tmp_path / "one"), model)
    state = load_training_state(tmp_path / "one")
    assert torch.equal(state["rng.cpu"], torch.get_rng_state())
    save(tmp_path / "one")  # writing it again replaces it
    assert_whole(load_checkpoint(tmp_path / "one"), model)
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    settings = json.loads((tmp_path / "one/checkpoint.json").read_text())
    assert settings["software"] == f"vlmill {vlmill.__version__}"


def test_what_a_model_computes_for_itself_comes_back_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = train_vocabulary(["a dog"], 20)
    sizes: dict[str, Any] = {"width": 8, "num_layers": 1, "num_heads": 2, "intermediate_width": 8}
    config = VlmoConfig(vocab_size=20, first_vl_layer=0, image_size=16, patch_size=8, **sizes)
    model = Vlmo(config).eval()
    save_checkpoint(
        tmp_path / "one",
        model,
        CheckpointRecord(
            variant="vlmo",
            tokenizer=tokenizer,
            training=RECORD,
        ),
    )
    loaded = load_checkpoint(tmp_path / "one").model
    assert len(list(model.buffers())) == 3  # two of positions, one of drop path
    for name, buffer in model.named_buffers():
        assert torch.equal(loaded.get_buffer(name), buffer)
    pixels = torch.rand(1, 3, 16, 16)
    assert torch.equal(loaded.image_vectors(pixels), model.image_vectors(pixels))


def test_a_run_means_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        save(step_folder(tmp_path, step))
    (tmp_path / CHECKPOINTS / ".tmp-1-step-00000011").mkdir()
    assert find_checkpoint(tmp_path) == step_folder(tmp_path, 10)
    keep_last(saved_steps(tmp_path), 2)
    assert sorted(saved_steps(tmp_path)) == [9, 10]


def test_a_published_checkpoint_needs_nothing_else(tmp_path: Path) -> None:
    model = save(step_folder(tmp_path, 1))
    for _ in range(2):  # as after a kill in the middle
        publish(tmp_path, step_folder(tmp_path, 1))
    assert not list(tmp_path.glob(".tmp-*"))
    shutil.rmtree(tmp_path / CHECKPOINTS)
    assert_whole(load_checkpoint(tmp_path), model)


def test_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--checkpoint .* holds no checkpoint"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("checkpoint", 99, "has format 99, this vlmill reads 1"),
        ("variant", "albert", "variant 'albert' is not one of beit, bert, "),
        ("model", {"widht": 3}, "did you mean width"),
        ("model", {"width": 24}, "is damaged"),
        ("training", None, "is damaged"),
        ("feeding", {"max_region": 3}, "did you mean max_regions"),
        ("trained_on", {}, "is damaged"),
    ],
)
def test_wrong_settings_are_told(field: str, value: object, message: str, tmp_path: Path) -> None:
    save(tmp_path / "one")
    path = tmp_path / "one" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path / "one")


def test_a_model_that_was_not_trained_has_no_feeding(tmp_path: Path) -> None:
    save(tmp_path / "one")
    path = tmp_path / "one" / "checkpoint.json"
    settings = json.loads(path.read_text())
    for changed in (
        {**settings, "feeding": None},
        {k: settings[k] for k in settings if k != "feeding"},
    ):
        path.write_text(json.dumps(changed))
        assert load_checkpoint(tmp_path / "one").feeding is None


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "checkpoint.json"])
def test_cut_files_are_told(name: str, tmp_path: Path) -> None:
    save(tmp_path / "one")
    content = (tmp_path / "one" / name).read_bytes()
    (tmp_path / "one" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"damaged|lacks"):
        load_checkpoint(tmp_path / "one")


LISTED = (
    *("model.safetensors", "vocab.txt", "trained_pairs.npy", "trained_images.npy"),
    "training_state.safetensors",
)


def load_all(folder: Path, *, trust: bool | None = None) -> None:
    load_checkpoint(folder, trust=trust)
    load_training_state(folder)


@pytest.mark.parametrize("name", LISTED)
def test_a_file_that_has_changed_is_named(name: str, tmp_path: Path) -> None:
    """One bit, which every reader of the file would take."""
    folder = tmp_path / "step-00000003"
    save(folder)
    files = json.loads((folder / "checkpoint.json").read_text())["files"]
    assert files.keys() == set(LISTED)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert verify(folder) == [
        f"{folder / name} has changed since it was written: its SHA-256 differs"
    ]
    with pytest.raises(InputError, match=rf"step-00000003 is damaged \({name} has changed") as told:
        load_all(folder)
    assert "--trust" in str(told.value) and "\n" not in str(told.value)
    with own_checks():
        CHECKS.trust = True
        load_all(folder)


@pytest.mark.parametrize("name", LISTED)
def test_a_file_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000003"
    save(folder)
    (folder / name).unlink()
    assert verify(folder) == [f"{folder / name} is missing"]
    for trust in (False, True):
        with pytest.raises(InputError, match=name) as told:
            load_all(folder, trust=trust)
        assert "\n" not in str(told.value)


def test_a_run_is_verified_with_its_checkpoints(tmp_path: Path) -> None:
    """The top has no training state, which belongs to the checkpoints alone."""
    step = step_folder(tmp_path, 3)
    save(step)
    publish(tmp_path, step)
    assert verify(tmp_path) == []
    (step / "training_state.safetensors").unlink()
    assert [step.name in problem for problem in verify(tmp_path)] == [True]
    (tmp_path / "checkpoint.json").write_text("[" * 100_000)
    assert [str(tmp_path / "checkpoint.json") in p for p in verify(tmp_path)] == [True, False]
    with pytest.raises(InputError, match=r"is damaged .*nested more than 100 levels"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_without_digests_loads(tmp_path: Path) -> None:
    """As an older version wrote it."""
    model = save(tmp_path / "one")
    path = tmp_path / "one" / "checkpoint.json"
    settings = json.loads(path.read_text())
    del settings["files"]
    path.write_text(json.dumps(settings))
    assert_whole(load_checkpoint(tmp_path / "one"), model)
    load_training_state(tmp_path / "one")
    assert verify(tmp_path / "one") == []
    path.write_text(json.dumps({**settings, "files": {"model.safetensors": 5}}))
    (tmp_path / "one" / "vocab.txt").touch()
    with pytest.raises(InputError, match="damaged"):
        load_checkpoint(tmp_path / "one")
