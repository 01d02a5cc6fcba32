"""Files of every published layout, opened as they are and run on an image."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.models.detector.batches import given

from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.predict import extract_regions
from vlmill.models.detector.config import CONVENTIONS
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import ANCHORS, published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.schemas.errors import InputError

SIZES = {"depth": 50, "stem_channels": 4, "res2_channels": 8, "res2_width": 2, "num_classes": 6}
CONFIG = ExtractConfig(
    selection=Selection(threshold=0.0, min_boxes=5, max_boxes=5),
    limits=InputLimits(short_side=96, long_side=160),
    storage=Storage(class_probs="full", dtype="float32"),
)


def published_file(layout: str, path: Path) -> Path:
    """Random weights as the family publishes them."""
    attributes = 0 if layout == "detectron2" else 4
    hidden = 32 if layout == "detectron2" else 5
    config = CONVENTIONS[layout](**SIZES, num_attributes=attributes, rpn_channels=hidden)
    model = FasterRCNN(config)
    randomise(model, 1)
    state = {published_name(k, config.family): v for k, v in model.state_dict().items()}
    if layout == "detectron2":
        del state[ANCHORS]
    if layout == "hf-frcnn":
        norms = [key for key in state if key.endswith("running_var")]
        state |= {k.replace("running_var", "num_batches_tracked"): torch.tensor(1) for k in norms}
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".pkl":
        arrays = {key: value.numpy() for key, value in state.items()}
        path.write_bytes(pickle.dumps({"model": arrays, "__author__": "someone"}, 2))
    else:
        torch.save({"model": state} if path.suffix == ".pth" else state, path)
    return path


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        ("milvlg", ".pth"),
        ("milvlg-r152", ".pth"),
        ("airsplay", ".pkl"),
        ("hf-frcnn", ".bin"),
        ("detectron2", ".pkl"),
    ],
)
def test_a_published_file_needs_no_other_word(
    layout: str, suffix: str, tmp_path: Path, jpeg: Callable[[int], bytes]
) -> None:
    path = published_file(layout, tmp_path / f"w{suffix}")
    detector = open_detector(None, path)
    spec = detector.model.config
    assert spec.family == layout.removesuffix("-r152") and detector.weights == path.name
    row = extract_regions("a", jpeg(1), detector, CONFIG)
    assert len(row.boxes) == 5 and row.features is not None
    assert row.features.shape == (5, 64)
    assert (row.boxes >= -0.01).all() and (row.boxes <= [96.01, 72.01, 96.01, 72.01]).all()
    assert row.class_probs is not None and row.class_ids is not None
    np.testing.assert_allclose(row.class_probs.sum(axis=1), 1, rtol=1e-5)
    # Background is first in every family's rows.
    own = row.class_probs[np.arange(5), row.class_ids + 1]
    assert row.class_scores is not None
    np.testing.assert_allclose(own, row.class_scores, rtol=1e-6)
    assert (row.attribute_ids is None) == (layout == "detectron2")
    again = open_detector(None, published_file(layout, tmp_path / "w.safetensors"))
    assert again.fingerprint == detector.fingerprint


def test_a_file_that_says_too_little_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"backbone.stem.conv1.weight": torch.zeros(4, 3, 7, 7)}, path)
    with pytest.raises(InputError, match=r"--weights .*w.pth: no published layout.*give "):
        open_detector(None, path)


def test_the_published_arithmetic_is_there_for_comparisons(tmp_path: Path) -> None:
    path = published_file("milvlg", tmp_path / "w.pth")
    fast, plain = open_detector(None, path), open_detector(None, path, folded=False)
    assert fast.fingerprint == plain.fingerprint
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, 3, 96, 128, generator=generator) * 64
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0]])
    with torch.inference_mode():
        found, expected = (
            one.model.describe(one.model.feature_maps(pixels), *given(boxes))
            for one in (fast, plain)
        )
    torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)
