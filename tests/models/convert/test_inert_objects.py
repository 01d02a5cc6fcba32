"""Pickled modules and settings are read as data: equal tensors, nothing imported or called."""

import argparse
import io
import pickle
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import Call
from torch import Tensor, nn

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer
from vlmill.models.convert import inert_objects
from vlmill.models.convert.files import read_state
from vlmill.models.convert.inert_objects import read_inert
from vlmill.models.convert.plain_pickle import BadPickle
from vlmill.models.published import export_reference, load_reference

CONFIG = DalleConfig(num_tokens=16, width=8, num_groups=4, blocks_per_group=2)


def make_class(module: str, name: str) -> type[nn.Module]:
    made = type(name, (nn.Module,), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


@pytest.fixture
def dall_e() -> Iterator[None]:
    """Classes with the names of DALL-E's package, gone after the files were written."""
    names = ("dall_e", "dall_e.encoder", "dall_e.utils")
    sys.modules.update({name: types.ModuleType(name) for name in names})
    yield
    for name in names:
        sys.modules.pop(name, None)


def published_module(state: dict[str, Tensor]) -> nn.Module:
    """A module tree with these parameters, as the published pickle holds it."""
    encoder = make_class("dall_e.encoder", "Encoder")
    block = make_class("dall_e.encoder", "EncoderBlock")
    conv = make_class("dall_e.utils", "Conv2d")
    root = encoder()
    root.device, root.group_count = torch.device("cpu"), 4  # type: ignore[assignment]
    for name, tensor in state.items():
        *path, leaf = name.split(".")
        module: nn.Module = root
        for depth, part in enumerate(path):
            if part not in module._modules:
                is_last = depth == len(path) - 1
                made = conv() if is_last else block() if "block_" in part else nn.Sequential()
                module.add_module(part, made)
            child = module._modules[part]
            assert child is not None
            module = child
        module.register_parameter(leaf, nn.Parameter(tensor.clone(), requires_grad=False))
    return root


@pytest.mark.parametrize("zipped", [True, False])
def test_dall_es_tokenizer_is_read_without_its_package(
    zipped: bool, dall_e: None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = DalleTokenizer(CONFIG)
    state = export_reference("dvae", model)
    assert "blocks.group_1.block_1.res_path.conv_1.w" in state
    path = tmp_path / "encoder.pkl"
    torch.save(published_module(state), path, _use_new_zipfile_serialization=zipped)
    for name in ("dall_e", "dall_e.encoder", "dall_e.utils"):
        del sys.modules[name]
    loaded = load_reference("dvae", path)
    assert isinstance(loaded, DalleTokenizer) and loaded.config == CONFIG
    pixels = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded.tokens(pixels), model.tokens(pixels))
    assert "dall_e" not in sys.modules


@pytest.mark.parametrize("zipped", [True, False])
def test_settings_beside_weights_do_not_hide_them(zipped: bool, tmp_path: Path) -> None:
    weights = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])}
    content = {"model": weights, "args": argparse.Namespace(x=1, y=[torch.ones(2)]), "epoch": 3}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    state = read_state(tmp_path / "w.pth")
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("zipped", [True, False])
def test_any_other_name_is_refused_and_not_called(zipped: bool, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = {"model": {"a": torch.ones(2)}, "x": Call(Path.touch, mark)}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(BadPickle, match="asks for"):
        read_inert(tmp_path / "w.pth")
    with pytest.raises(ValueError, match="would run code from the file"):
        read_state(tmp_path / "w.pth")
    assert not mark.exists()


def archive(path: Path, data: bytes, numbers: bytes = b"", *, packed: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("w/data.pkl", data)
        file.writestr("w/data/0", numbers)
        file.writestr("w/version", "3")
    return path


class Persistent:
    """Pickles as a persistent id."""

    def __init__(self, identity: Any) -> None:
        self.identity = identity


class Pickler(pickle._Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.identity if isinstance(value, Persistent) else None


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue()


class Tensorish:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.arguments


@pytest.mark.parametrize(
    ("count", "offset", "shape", "stride", "numbers"),
    [
        (2, 0, (3,), (1,), 8),  # more numbers than there are
        (2, 1, (2,), (1,), 8),  # beyond the end
        (2, 0, (2,), (10**15,), 8),
        (2, -1, (2,), (1,), 8),
        (2, 0, (2, 10**9), (0, 0), 8),  # the same numbers a billion times
        (4, 0, (2,), (1,), 8),  # a storage that is shorter than it says
    ],
)
def test_tensors_stay_in_their_numbers(
    count: int,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    numbers: int,
    tmp_path: Path,
) -> None:
    storage = Persistent(("storage", torch.FloatStorage, "0", "cpu", count))
    data = pickled({"a": Tensorish(storage, offset, shape, stride, False, None)})
    with pytest.raises(BadPickle):
        read_inert(archive(tmp_path / "w.pth", data, bytes(numbers)))


def test_archives_that_unfold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inert_objects, "MAX_VALUES", 20_000)
    with pytest.raises(BadPickle, match=r"not an archive of PyTorch's"):
        read_inert(archive(tmp_path / "w.pth", pickled({}), bytes(8), packed=True))
    deep: Any = "x"
    for _ in range(60):
        deep = [deep, deep]
    with pytest.raises(BadPickle, match="values"):
        read_inert(archive(tmp_path / "deep.pth", pickled(deep)))


@pytest.fixture
def lightning() -> Iterator[dict[str, type]]:
    """Classes with the names of PyTorch Lightning's, gone after the file was written."""
    names = {"pytorch_lightning.callbacks.model_checkpoint": "ModelCheckpoint"}
    names |= {"pytorch_lightning.utilities.parsing": "AttributeDict"}
    parents = ("pytorch_lightning", "pytorch_lightning.callbacks", "pytorch_lightning.utilities")
    sys.modules.update({module: types.ModuleType(module) for module in (*parents, *names)})
    classes: dict[str, type] = {}
    for module, name in names.items():
        base = dict if name == "AttributeDict" else object
        classes[name] = type(name, (base,), {"__module__": module})
        setattr(sys.modules[module], name, classes[name])
    yield classes
    for module in (*parents, *names):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("zipped", [True, False])
def test_callbacks_that_are_keyed_by_their_class_do_not_hide_weights(
    zipped: bool, lightning: dict[str, type], tmp_path: Path
) -> None:
    """As PyTorch Lightning below 1.6 saves VLMo and ViLT."""
    weights = {"model.a": torch.arange(3.0), "model.b": torch.ones(2, 2)}
    content = {
        "state_dict": weights,
        "callbacks": {lightning["ModelCheckpoint"]: {"dirpath": Path("/x"), "best": torch.ones(1)}},
        "hyper_parameters": lightning["AttributeDict"](config={"itm": 1}),
        "optimizer_states": [{"state": {0: {"step": 1}}, "param_groups": [{"params": [0]}]}],
    }
    torch.save(content, tmp_path / "last.ckpt", _use_new_zipfile_serialization=zipped)
    for name in [name for name in sys.modules if name.startswith("pytorch_lightning")]:
        del sys.modules[name]
    state = read_state(tmp_path / "last.ckpt")
    assert {name: value.tolist() for name, value in state.items()} == {
        "a": [0.0, 1.0, 2.0],
        "b": [[1.0, 1.0], [1.0, 1.0]],
    }
    assert not [name for name in sys.modules if name.startswith("pytorch_lightning")]


def test_settings_never_hash_what_a_file_gives_them(tmp_path: Path) -> None:
    """A tuple of twice the same tuple of ... takes practically forever to hash."""
    deep: Any = ()
    for _ in range(60):
        deep = (deep, deep)

    class Settings:
        def __reduce__(self) -> tuple[Any, ...]:
            return argparse.Namespace, ([(deep, 1)],)

    torch.save({"args": Settings(), "model": {"a": torch.ones(1)}}, tmp_path / "w.pth")
    assert read_state(tmp_path / "w.pth").keys() == {"a"}
