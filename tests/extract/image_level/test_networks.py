"""Vectors of full images are torchvision's own, from torchvision's own files."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models
from torchvision.transforms import functional

from vlmill.extract.config import NETWORKS, parse_network_names
from vlmill.extract.image_level.crop import Crop, middle
from vlmill.extract.image_level.networks import (
    find_preset,
    list_presets,
    open_global_networks,
    open_network,
)
from vlmill.schemas.errors import InputError

CPU = torch.device("cpu")
CROP = Crop(resize=256, side=224)


def photo(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    blobs = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(blobs).resize((width, height), Image.Resampling.BICUBIC)


def blue_first(image: Image.Image) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(image)[..., ::-1])


def own_network(name: str) -> Any:
    """torchvision's network as its builder makes it with published weights, here drawn anew."""
    torch.manual_seed(0)
    if name == "googlenet":
        model = models.googlenet(aux_logits=True, init_weights=False, transform_input=True)
    else:
        model = models.get_model(name, weights=None)
    for tensor in model.state_dict().values():
        if tensor.dim() == 1 and tensor.is_floating_point():  # of norms, so that all of them act
            tensor.copy_(torch.rand_like(tensor) * 0.4 + 0.8)
    return model.eval()


def before_classifier(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What torchvision's forward pass gives to its last layer."""
    seen: list[torch.Tensor] = []
    last = model.classifier if hasattr(model, "classifier") else model.fc
    last.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.inference_mode():
        model(pixels)
    return seen[0]


@pytest.mark.parametrize("size", [(300, 300), (640, 427), (213, 400), (97, 31), (1000, 257)])
def test_the_crop_is_torchvisions(size: tuple[int, int]) -> None:
    image = photo(*size)
    for resize in (256, 232):
        small = functional.resize(image, [resize])
        expected = np.asarray(functional.center_crop(small, [224]))
        found = middle(blue_first(image), Crop(resize=resize, side=224))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_vectors_are_those_of_torchvisions_forward_pass(name: str, tmp_path: Path) -> None:
    model = own_network(name)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    whole = open_global_networks([name], [str(tmp_path / "weights.pth")], seed=0, device=CPU)
    weights = next(iter(models.get_model_weights(name)))
    image = photo(320, 260)
    expected = before_classifier(model, weights.transforms()(image)[None])
    with torch.inference_mode():
        found = whole.vectors([{CROP: middle(blue_first(image), CROP)}])
    assert found.shape == (1, NETWORKS[name]) and whole.crops == (CROP,)
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, atol=1e-5, rtol=1e-5)
    (record,) = whole.record()
    assert record["network"] == name and record["weights"] == "weights.pth"
    assert record["transforms"] == "IMAGENET1K_V1" and len(record["digest"]) == 32


def test_random_weights_follow_from_the_seed_and_keep_their_scale() -> None:
    crop = {CROP: middle(blue_first(photo(320, 260)), CROP)}
    names = list(NETWORKS)
    with torch.inference_mode():
        first = open_global_networks(names, None, seed=1, device=CPU)
        vector = first.vectors([crop])[0]
    digests = [record["digest"] for record in first.record()]
    again = open_network("googlenet", None, seed=1, device=CPU)
    other = open_network("googlenet", None, seed=2, device=CPU)
    assert again.digest == digests[2] != other.digest
    assert again.weights == "random weights, seed 1"
    for part in torch.split(vector, [NETWORKS[name] for name in names]):  # float16 has room for all
        assert 1e-3 < part.abs().max() < 1e4


def test_published_densenets_have_dots_in_their_names(tmp_path: Path) -> None:
    state = own_network("densenet121").state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", n): t for n, t in state.items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(state, tmp_path / "new.pth")
    torch.save(old, tmp_path / "old.pth")
    found = [
        open_network("densenet121", tmp_path / name, seed=0, device=CPU).digest
        for name in ("new.pth", "old.pth")
    ]
    assert found[0] == found[1]


def test_the_transforms_are_those_of_the_file(tmp_path: Path) -> None:
    presets = list_presets("resnet152")
    assert [p.crop.resize for p in presets] == [256, 232]
    (tmp_path / "a").write_bytes(b"weights")
    assert find_preset(tmp_path / "a", presets) is presets[0]
    own = presets[1]._replace(digits="1b4f0e98")  # begins the SHA-256 of what stands below
    (tmp_path / "b").write_bytes(b"test1")
    assert find_preset(tmp_path / "b", [presets[0], own]) is own


@pytest.mark.parametrize(
    ("text", "files", "message"),
    [
        ("vgg16", None, "--global-cnn vgg16: no such network; give densenet121, resnet152, goog"),
        ("googlenet,googlenet", None, "a network is named twice"),
        ("googlenet,resnet152", ["a"], "1 files for 2 networks; give one for each of googlenet,"),
    ],
)
def test_names_that_do_not_fit(text: str, files: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_network_names(text, files)


def saved(state: Any) -> bytes:
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"nothing", "is not a readable checkpoint"),
        (lambda: saved({"a": torch.ones(1)}), "is not torchvision's googlenet: missing conv1"),
        (lambda: saved(models.resnet18().state_dict()), "missing conv1.conv.weight, "),
        (
            lambda: saved(
                own_network("googlenet").state_dict() | {"conv1.conv.weight": torch.ones(1)}
            ),
            "conv1.conv.weight is (1,), expected (64, 3, 7, 7)",
        ),
    ],
)
def test_another_networks_file_is_refused(
    make: Callable[[], bytes], message: str, tmp_path: Path
) -> None:
    (tmp_path / "w.pth").write_bytes(make())
    with pytest.raises(InputError, match=re.escape(message)) as told:
        open_network("googlenet", tmp_path / "w.pth", seed=0, device=CPU)
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; give torchvision's googlenet"):
        parse_network_names("googlenet", [str(tmp_path / "w.pth")])
