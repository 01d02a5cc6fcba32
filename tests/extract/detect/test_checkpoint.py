"""Checkpoint files: what is read of them, and that nothing in them is executed."""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file
from tests.factories import Call

from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.schemas.errors import InputError

STATE = {
    "b.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.norm.num_batches_tracked": torch.tensor(7),
}


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {key: value.numpy() for key, value in STATE.items()}


def check_state(path: Path) -> None:
    state = read_checkpoint(path)
    assert set(state) == set(STATE)
    for key, value in STATE.items():
        assert torch.equal(state[key], value)
        assert state[key].dtype == value.dtype


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.bin", "old.pth", "bare.pth"])
def test_tensors(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("safetensors"):
        save_file(STATE, path)
    elif name == "bare.pth":
        torch.save(OrderedDict(STATE), path)
    else:
        content = {"model": STATE, "iteration": 5, "optimizer": {"lr": [0.1]}}
        torch.save(content, path, _use_new_zipfile_serialization=name != "old.pth")
    check_state(path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_numpy_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "w.pkl"
    content = {"model": OrderedDict(arrays()), "__author__": "someone", "flag": True}
    path.write_bytes(pickle.dumps(content, protocol))
    check_state(path)


def test_names_of_older_numpy(tmp_path: Path) -> None:
    """Files of numpy 1 say numpy.core where numpy 2 says numpy._core."""
    path = tmp_path / "w.pkl"
    path.write_bytes(pickle.dumps(arrays(), 2).replace(b"numpy._core", b"numpy.core"))
    check_state(path)


@pytest.mark.parametrize("kind", [">f4", "<f2", ">f8", "<i8", "|u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_types_shapes_and_orders(tmp_path: Path, kind: str, shape: Any, order: Any) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    path = tmp_path / "w.pkl"
    path.write_bytes(
        pickle.dumps({"a": np.asarray(values, order=order), "s": values.dtype.type(3)})
    )
    state = read_checkpoint(path)
    assert np.array_equal(state["a"].numpy(), values.astype(values.dtype.newbyteorder("=")))
    assert state["s"].item() == values.dtype.type(3)


def hostile(tmp_path: Path) -> dict[str, bytes]:
    """Pickles that do something, by what they use for it."""
    import builtins
    import os

    target = tmp_path / "was-run"
    good = arrays()
    object_array = np.array([Call(os.mkdir, str(target)), None], dtype=object)
    return {
        "os": pickle.dumps({**good, "x": Call(os.mkdir, str(target))}),
        "builtins": pickle.dumps({**good, "x": Call(builtins.open, str(target), "w")}),
        "old protocol": pickle.dumps({**good, "x": Call(os.mkdir, str(target))}, 0),
        "object array": pickle.dumps({**good, "x": object_array}),
        "dotted name": b"\x80\x04\x8c\x0bcollections\x8c\x17OrderedDict.__init__.__f\x93.",
        "numpy file": pickle.dumps({**good, "x": Call(np.load, str(target), None, True)}),
        "numpy text": pickle.dumps({**good, "x": Call(np.savetxt, str(target), [1.0])}),
        "codec": pickle.dumps({**good, "x": Call(__import__("_codecs").encode, "a", "zlib")}),
        "replaced method": b"cnumpy\nndarray\n(d}(X\x09\x00\x00\x00__class__K\x01utb.",
        "persistent id": b"Pnothing\n.",
        "extension": b"\x82\x01.",
    }


@pytest.mark.parametrize(
    "kind",
    [
        "os",
        "builtins",
        "old protocol",
        "object array",
        "dotted name",
        "numpy file",
        "numpy text",
        "codec",
        "replaced method",
        "persistent id",
        "extension",
    ],
)
@pytest.mark.parametrize("suffix", [".pkl", ".pth"])
def test_nothing_is_executed(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(hostile(tmp_path)[kind])
    with pytest.raises(InputError, match=r"--weights .* cannot be read .* give another file"):
        read_checkpoint(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_torch_file_that_calls_is_refused(tmp_path: Path) -> None:
    for number, modern in enumerate((True, False)):
        path = tmp_path / f"{number}.pth"
        content = {"model": Call(Path.mkdir, tmp_path / "was-run")}
        torch.save(content, path, _use_new_zipfile_serialization=modern)
        with pytest.raises(InputError, match="cannot be read"):
            read_checkpoint(path)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"PK", b"no weights", b"\x00" * 40, b"\xff" * 8 + b"{}"]
)
def test_what_is_no_checkpoint_is_a_mistake(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"--weights .*w.pth"):
        read_checkpoint(path)


@pytest.mark.parametrize("value", [{}, [1], 5, {"model": {}}, {"a": "text"}, {1: np.ones(2)}])
def test_a_pickle_without_a_state_dict_is_a_mistake(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "w.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(InputError, match="holds no state dict"):
        read_checkpoint(path)


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; give a"):
        read_checkpoint(tmp_path / "w.pth")


@settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_mutated_pickles_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(pickle.dumps({"model": arrays()}, int(rng.integers(0, 6))))
    for _ in range(int(rng.integers(1, 6))):
        data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
    path = tmp_path / "w.pkl"
    path.write_bytes(data[: int(rng.integers(0, 2 * len(data)))])
    try:
        state = read_checkpoint(path)
    except InputError:
        return
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_variances_of_old_frozen_norms_lose_the_eps_that_they_carry(tmp_path: Path) -> None:
    state = OrderedDict(
        {
            "old.running_var": torch.tensor([1.0]),
            "new.running_var": torch.tensor([1.0]),
            "plain.running_var": torch.tensor([1.0]),
            "plain.num_batches_tracked": torch.tensor(3),
        }
    )
    state._metadata = {  # type: ignore[attr-defined]
        "old": {"version": 2},
        "new": {"version": 3},
        "plain": {"version": 2},
    }
    path = tmp_path / "w.pth"
    torch.save({"model": state}, path)
    read = read_checkpoint(path)
    assert read["old.running_var"].item() == pytest.approx(1 - 1e-5, abs=1e-7)
    assert read["new.running_var"].item() == read["plain.running_var"].item() == 1
