import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.pipelines.filters.test_trees import stump

from vlmill.extract.cli import command
from vlmill.pipelines.filters.model_file import (
    KEY,
    Model,
    read_model,
    require_features,
    write_model,
)
from vlmill.schemas.errors import InputError

MODEL = Model(
    kind="safety",
    features=("one", "two"),
    threshold=0.5,
    trees=stump(),
    arrays={"frequencies": np.arange(4, dtype=np.float32)},
    about={"labels": 3},
)


def read(path: Path, *kinds: str) -> Model:
    kinds = kinds or ("safety",)
    return read_model(path, kinds=kinds, flag="--safety-model", fitted_by="fit_image_filter")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_model(tmp_path / "a", MODEL)
    model = read(tmp_path / "a")
    for name, array in MODEL.trees.arrays().items():
        np.testing.assert_array_equal(model.trees.arrays()[name], array)
    np.testing.assert_array_equal(model.arrays["frequencies"], MODEL.arrays["frequencies"])
    assert replace(model, trees=MODEL.trees, arrays=MODEL.arrays) == MODEL
    write_model(tmp_path / "b", MODEL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_kind_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m", MODEL)
    with pytest.raises(InputError, match="a model of 'safety', expected realism") as caught:
        read(tmp_path / "m", "realism")
    assert "\n" not in str(caught.value) and "fit_image_filter" in str(caught.value)


def changed_description(path: Path, **fields: Any) -> None:
    write_model(path, MODEL)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"][KEY] = json.dumps(json.loads(header["__metadata__"][KEY]) | fields)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 2}, "is of version 2"),
        ({"threshold": 0.1}, "was changed after it was written"),
        ({"features": ["one"]}, "was changed"),
        ({"digest": None}, "was changed"),
    ],
)
def test_a_changed_description_is_refused(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    changed_description(tmp_path / "m", **fields)
    with pytest.raises(InputError, match=said):
        read(tmp_path / "m")


def test_a_changed_array_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m", MODEL)
    content = bytearray((tmp_path / "m").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(InputError, match="was changed"):
        read(tmp_path / "m")


def test_trees_that_lead_nowhere_are_refused_though_the_digest_holds(tmp_path: Path) -> None:
    endless = replace(MODEL.trees, left=np.array([0, 1, 2], dtype=np.int32))
    write_model(tmp_path / "m", replace(MODEL, trees=endless))
    with pytest.raises(InputError, match="is damaged"):
        read(tmp_path / "m")


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps({"model": 1}))
    (tmp_path / "empty").write_bytes(b"")
    save_file({"weight": np.zeros(2)}, tmp_path / "weights")
    for name, said in (
        ("pickle", "is not a readable"),
        ("empty", "is not a readable"),
        ("weights", "no model"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_models_of_other_features_are_refused() -> None:
    require_features(MODEL, ("one", "two"), "--scorer m")
    with pytest.raises(InputError, match="other features than this vlmill computes"):
        require_features(MODEL, ("one", "two", "three"), "--scorer m")
    with pytest.raises(InputError, match="another order"):
        require_features(MODEL, ("two", "one"), "--scorer m")


def test_a_model_of_any_kind_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m"
    write_model(path, MODEL)
    assert command(["verify", str(path)]) == 0
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert command(["verify", str(path)]) == 1
    assert f"{path} was changed after it was written" in capsys.readouterr().err
