"""One reader of checkpoint files: every kind gives its tensors, and none runs what it holds."""

import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.factories import Call
from torch import Tensor

from vlmill.models.convert.files import read_state, unwrap_network, unwrap_state
from vlmill.models.convert.names import KNOWN, canonical

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.count": torch.tensor(7)}


def files(folder: Path) -> dict[str, Path]:
    """The same tensors as a file of each kind."""
    paths = {kind: folder / kind for kind in ("safetensors", "zip", "legacy", "arrays", "old")}
    arrays = {name: tensor.numpy() for name, tensor in STATE.items()}
    save_file(STATE, paths["safetensors"])
    torch.save({"state_dict": STATE}, paths["zip"])
    torch.save({"model": STATE, "epoch": 3}, paths["legacy"], _use_new_zipfile_serialization=False)
    paths["arrays"].write_bytes(pickle.dumps({"model": OrderedDict(arrays), "author": "x"}))
    paths["old"].write_bytes(pickle.dumps(arrays, 0))
    return paths


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "arrays", "old"])
def test_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    state = read_state(files(tmp_path)[kind])
    assert state.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "arrays", "old"])
def test_a_cut_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = files(tmp_path)[kind]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{kind} is not a readable checkpoint"):
        read_state(path)


@pytest.mark.parametrize("kind", ["zip", "legacy", "arrays", "old"])
def test_nothing_is_executed(tmp_path: Path, kind: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "weights"
    content = {**STATE, "x": Call(Path.touch, mark)}
    if kind in ("zip", "legacy"):
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    else:
        path.write_bytes(pickle.dumps({"x": content["x"]}, 4 if kind == "arrays" else 0))
    with pytest.raises(ValueError, match=r"would run code|the pickle asks for"):
        read_state(path)
    assert not mark.exists()


def test_a_file_of_nothing_known(tmp_path: Path) -> None:
    for content in (b"", b"weights", b"\x00" * 40):
        (tmp_path / "w").write_bytes(content)
        with pytest.raises(ValueError, match="not a safetensors file, a PyTorch file or"):
            read_state(tmp_path / "w")
    with pytest.raises(FileNotFoundError, match="no such checkpoint file"):
        read_state(tmp_path / "gone")


def test_text_and_objects_are_no_tensors(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(2), "text": np.array(["a"]), "o": np.array({}, dtype=object), "n": 5}
    (tmp_path / "w").write_bytes(pickle.dumps(arrays))
    assert read_state(tmp_path / "w").keys() == {"a"}
    del arrays["a"]
    (tmp_path / "w").write_bytes(pickle.dumps(arrays))
    with pytest.raises(
        ValueError, match=r"no state dict: expected parameter names with te.*has text, o, n"
    ):
        read_state(tmp_path / "w")


def test_a_file_that_holds_itself_has_no_state_dict(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["model"] = ring
    with pytest.raises(ValueError, match=r"no state dict"):
        unwrap_state(ring)
    torch.save(ring, tmp_path / "zip")
    (tmp_path / "arrays").write_bytes(pickle.dumps(ring))
    for kind in ("zip", "arrays"):
        with pytest.raises(ValueError, match=r"no state dict"):
            read_state(tmp_path / kind)


def test_attributes_of_a_stored_dict_are_not_called(tmp_path: Path) -> None:
    """PyTorch's reader sets what a file says on ordered dicts."""
    state: OrderedDict[str, Tensor] = OrderedDict(STATE)
    state.__dict__.update(get=1, keys=1, values=1)
    torch.save({"model": state}, tmp_path / "w")
    assert read_state(tmp_path / "w").keys() == STATE.keys()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "model._orig_mod.module."])
@pytest.mark.parametrize("container", [None, "state_dict", "model_state_dict"])
def test_wrappers_of_training_are_taken_off(prefix: str, container: str | None) -> None:
    state = {f"{prefix}{name}": tensor for name, tensor in STATE.items()}
    content = state if container is None else {container: state, "epoch": 3}
    assert unwrap_state(content).keys() == STATE.keys()
    some = state | {"loss.weight": torch.zeros(1)}  # a name without it: no prefix of all
    assert unwrap_state(some).keys() == some.keys()


def test_a_checkpoint_in_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    names = sorted(STATE)
    index = tmp_path / "model.safetensors.index.json"
    for number, name in enumerate(names):
        save_file({name: STATE[name].contiguous()}, tmp_path / f"model-{number}.safetensors")
    files = {name: f"model-{number}.safetensors" for number, name in enumerate(names)}
    index.write_text(json.dumps({"weight_map": files}))
    state = read_state(index)
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[name], STATE[name]) for name in names)
    index.write_text(json.dumps({"weight_map": files | {"b": "../other.safetensors"}}))
    with pytest.raises(ValueError, match=r"names '../other.safetensors', expected files in its fo"):
        read_state(index)
    index.write_text(json.dumps({"weight_map": {"b": "gone.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"gone.safetensors: no such file, which model"):
        read_state(index)
    index.write_text("[]")
    with pytest.raises(ValueError, match="no weight_map of tensors and files"):
        read_state(index)


def test_a_container_of_any_name_is_read_if_it_is_the_only_one() -> None:
    assert unwrap_state({"net": STATE, "epoch": 3, "step": np.int64(5)}).keys() == STATE.keys()
    with pytest.raises(ValueError, match="'student' and 'teacher' all hold tensors; save the one"):
        unwrap_state({"student": STATE, "teacher": STATE})
    with pytest.raises(ValueError, match="the file has state, param_groups"):
        unwrap_state({"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []})


LAYER = "encoder.layer.0.attention.self.query.weight"
BERT = {
    "bert.embeddings.word_embeddings.weight": torch.ones(5, 2),
    f"bert.{LAYER}": torch.ones(2, 2),
    "cls.predictions.bias": torch.ones(5),
}


def prefixed(prefix: str, *more: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": t for name, t in BERT.items()} | dict.fromkeys(more, torch.ones(1))


@pytest.mark.parametrize("prefix", ["model.", "net.", "ema_model.module.", "a.b.c.d."])
@pytest.mark.parametrize("more", [(), ("criterion.weight", "optimizer.step")])
def test_the_prefix_of_most_names_is_removed(prefix: str, more: tuple[str, ...]) -> None:
    state = unwrap_network(prefixed(prefix, *more), canonical, KNOWN)
    assert state.keys() == {*BERT, *more}
    assert state["bert.embeddings.word_embeddings.weight"].shape == (5, 2)


def test_heads_stay_where_the_body_has_a_prefix_of_its_own() -> None:
    state = {f"net.{n}": t for n, t in BERT.items() if n.startswith("bert.")}
    state |= {"net.classifier.weight": torch.ones(2, 2)}
    names = unwrap_network(state, canonical, KNOWN).keys()
    assert names == {"bert.embeddings.word_embeddings.weight", f"bert.{LAYER}", "classifier.weight"}


def test_names_that_are_known_are_left_as_they_are() -> None:
    for state in (BERT, BERT | prefixed("teacher."), {LAYER: torch.ones(2, 2)}):
        assert unwrap_network(state, canonical, KNOWN) == state
    other = {f"visual.{n}": torch.ones(1) for n in range(5)}
    assert unwrap_network(other, canonical, KNOWN) == other and not unwrap_network(
        {}, canonical, KNOWN
    )


def test_a_network_and_its_average_are_not_chosen_between() -> None:
    state = prefixed("student.") | prefixed("teacher.")
    with pytest.raises(ValueError, match=r"2 times, under student. and teacher.; keep the tensors"):
        unwrap_network(state, canonical, KNOWN)
