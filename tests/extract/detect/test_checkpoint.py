"""One detector in every container that users save it in: the same tensors, or a remedy; nothing
in a file is executed.
"""

import _codecs as codecs
import argparse
import builtins
import gzip
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.factories import Call
from torch import Tensor

from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.detector import open_detector
from vlmill.models.detector.config import milvlg
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.schemas.errors import InputError

SMALL = milvlg(
    depth=50,
    stem_channels=4,
    res2_channels=8,
    res2_width=2,
    rpn_channels=8,
    num_classes=6,
    num_attributes=5,
    class_embedding_size=3,
    attribute_hidden_size=4,
)


def make_state() -> dict[str, Tensor]:
    model = FasterRCNN(SMALL)
    randomise(model, 1)
    return {published_name(k, "milvlg"): v for k, v in model.state_dict().items()}


STATE = make_state()


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in STATE.items()}


def arrays() -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in STATE.items()}


def saved(content: Callable[[], Any], **options: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content(), path, **options)


def pickled(content: Callable[[], Any], protocol: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(pickle.dumps(content(), protocol))

    return write


CONTAINERS: dict[str, Callable[[Path], None]] = {
    "bare.safetensors": lambda path: save_file(STATE, path),
    "bare.pth": saved(lambda: STATE),
    "model.pth": saved(lambda: {"model": STATE}),
    "parallel.pth": saved(lambda: {"state_dict": prefixed("module.")}),
    "periodic.pth": saved(
        lambda: {
            "model": prefixed("module."),
            "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": [{}]},
            "scheduler": {"last_epoch": 3},
            "iteration": 3,
        }
    ),
    "legacy.pth": saved(lambda: STATE, _use_new_zipfile_serialization=False),
    "arguments.pth": saved(lambda: {"model": STATE, "args": argparse.Namespace(lr=0.1, x=[1])}),
    "arguments-legacy.pth": saved(
        lambda: {"model": STATE, "args": argparse.Namespace(lr=0.1)},
        _use_new_zipfile_serialization=False,
    ),
    "lightning.ckpt": saved(lambda: {"state_dict": prefixed("model."), "epoch": 1}),
    "compiled.pth": saved(lambda: {"model": prefixed("_orig_mod.")}),
    "compiled-parallel.pth": saved(lambda: {"model": prefixed("module._orig_mod.")}),
    "average.pth": saved(lambda: {"ema": {"decay": 0.9}, "model": STATE, "epoch": 2}),
    **{
        f"arrays-{protocol}.pkl": pickled(
            lambda: {"model": arrays(), "__author__": "x", "matching_heuristics": True}, protocol
        )
        for protocol in range(6)
    },
    "ordered.pkl": pickled(lambda: OrderedDict(arrays()), 2),
}


def check_state(path: Path) -> None:
    state = read_checkpoint(path)
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in STATE.items())
    assert all(state[key].dtype == tensor.dtype for key, tensor in STATE.items())


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_holds_the_same_detector(name: str, tmp_path: Path) -> None:
    CONTAINERS[name](tmp_path / name)
    check_state(tmp_path / name)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_up_to_rounding(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in STATE.items()}, path)
    expected = STATE["backbone.stem.conv1.weight"].to(dtype).float()
    detector = open_detector(None, path, folded=False)
    loaded = detector.model.state_dict()["backbone.stem.conv1.weight"]
    assert loaded.dtype == torch.float32 and torch.equal(loaded, expected)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w.pth.gz", gzip.compress(b"x", mtime=0), "compressed by gzip; unpack it first"),
        ("w.pth", gzip.compress(b"x", mtime=0), "compressed by gzip; unpack it first"),
        ("w.pth", b"version https://git-lfs.github.com/spec/v1\noid", "pointer of Git LFS"),
        ("w.pth", b"<!DOCTYPE html><html>", "it is a web page; download the file itself"),
    ],
)
def test_what_is_around_a_checkpoint_is_named(
    name: str, content: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=expected) as error:
        read_checkpoint(tmp_path / name)
    assert "\n" not in str(error.value) and str(tmp_path / name) in str(error.value)


def test_norms_of_a_parallel_model_are_corrected_by_their_own_notes(tmp_path: Path) -> None:
    """Detectron2's old norms store the variance plus eps, and say so under the wrapper's names."""
    state = OrderedDict({"module.norm.running_var": torch.ones(2), "module.w": torch.ones(1)})
    state._metadata = {"module.norm": {"version": 2}}  # type: ignore[attr-defined]
    torch.save({"model": state}, tmp_path / "w.pth")
    read = read_checkpoint(tmp_path / "w.pth")
    assert torch.equal(read["norm.running_var"], torch.ones(2) - 1e-5)


@pytest.mark.parametrize(
    ("names", "kind", "remedy"),
    [
        (("backbone.body.conv1.weight", "roi_heads.box_head.fc6.weight"), "torchvision", "weights"),
        (("bert.embeddings.word_embeddings.weight",), "a BERT", "train-vl convert --family bert"),
        (("model.0.conv.weight", "model.1.conv.weight", "model.9.cv1.conv.weight"), "YOLO", "list"),
        (("layer1.0.conv1.weight", "fc.weight"), "a ResNet that classifies", "--init"),
        (("backbone.layer1.0.conv1.weight", "bbox_head.fc_cls.weight"), "MMDetection", "list"),
    ],
)
def test_another_network_is_named_with_the_remedy(
    names: tuple[str, ...], kind: str, remedy: str, tmp_path: Path
) -> None:
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=kind) as error:
        open_detector(None, tmp_path / "w.safetensors")
    assert remedy in str(error.value)


def with_call(function: Callable[..., object], *arguments: object) -> bytes:
    return pickle.dumps({**arrays(), "x": Call(function, *arguments)})


# Pickles that do something, by what they use for it.
HOSTILE: dict[str, Callable[[str], bytes]] = {
    "os": lambda target: with_call(os.mkdir, target),
    "builtins": lambda target: with_call(builtins.open, target, "w"),
    "old protocol": lambda target: pickle.dumps({"x": Call(os.mkdir, target)}, 0),
    "object array": lambda target: pickle.dumps(
        {"x": np.array([Call(os.mkdir, target), None], dtype=object)}
    ),
    "dotted name": lambda _: b"\x80\x04\x8c\x0bcollections\x8c\x17OrderedDict.__init__.__f\x93.",
    "numpy file": lambda target: with_call(np.load, target, None, True),
    "numpy text": lambda target: with_call(np.savetxt, target, [1.0]),
    "codec": lambda _: with_call(codecs.encode, "a", "zlib"),
    "replaced method": lambda _: b"cnumpy\nndarray\n(d}(X\x09\x00\x00\x00__class__K\x01utb.",
    "persistent id": lambda _: b"Pnothing\n.",
    "extension": lambda _: b"\x82\x01.",
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("suffix", [".pkl", ".pth"])
def test_nothing_is_executed(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(HOSTILE[kind](str(tmp_path / "was-run")))
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
