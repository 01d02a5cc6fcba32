"""``train-vl export --onnx``: what onnxruntime computes is what PyTorch does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from jaxtyping import config
from tests.inference.convert.test_command import VOCABULARY

from vlmill.inference.export import job
from vlmill.models import VARIANTS, preset
from vlmill.models.inputs import VLInputs
from vlmill.models.registry import PRESETS, get_variant
from vlmill.models.rows import get_part
from vlmill.runtime.settings.plain_fields import override
from vlmill.train.checkpoints.files import CheckpointRecord, TrainingRecord, save_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import bert_tokenizer

SIZES = {
    "vlmo": [
        *("width=16", "num_layers=2", "num_heads=2", "intermediate_width=32", "image_size=32"),
        "first_vl_layer=1",
    ],
    "imagebert": ["width=16", "num_layers=2", "num_heads=2", "intermediate_width=32"],
    "vilbert-single-stream": [
        *("width=16", "num_layers=2", "num_heads=2", "intermediate_width=32")
    ],
    "vl-bert": ["width=16", "num_layers=2", "num_heads=2", "intermediate_width=32"],
    "vilbert": [
        *("width=16", "num_layers=4", "num_heads=2", "intermediate_width=32", "co_width=16"),
        *("visual_width=16", "visual_num_heads=2", "visual_intermediate_width=32"),
        "co_num_heads=2",
    ],
    "interbert": [
        *("width=16", "num_heads=2", "intermediate_width=32", "pooled_width=16"),
        *("visual_num_heads=2", "visual_intermediate_width=32", "num_interaction_layers=2"),
    ],
    "bert": ["width=16", "num_layers=1", "num_heads=2", "intermediate_width=32"],
}
REGION_MODELS = ["imagebert", "vilbert", "vl-bert", "interbert", "vilbert-single-stream"]


@pytest.fixture(autouse=True)
def without_checks() -> Iterator[None]:
    """Sizes that are symbols are not integers, which the suite's checks of types refuse."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def write(folder: Path, variant: str) -> tuple[Path, Any]:
    """A checkpoint with random weights, and its model."""
    torch.manual_seed(0)
    words = [*SIZES[variant], f"vocab_size={len(VOCABULARY)}"]
    sizes = override(preset(variant if variant in PRESETS else f"{variant}-small"), words)
    if variant in REGION_MODELS:
        sizes = dataclasses.replace(sizes, region_width=8)
    model = VARIANTS[variant].model(sizes).eval()
    for parameter in model.parameters():  # as large as trained ones, so that differences show
        torch.nn.init.normal_(parameter, std=0.2)
    record = CheckpointRecord(
        variant=variant,
        tokenizer=bert_tokenizer({word: number for number, word in enumerate(VOCABULARY)}),
        training=TrainingRecord(recipe="test", stage="", step=0, num_pairs=0),
    )
    return save_checkpoint(folder / variant, model, record), model


def export(checkpoint: Path, output: Path, *words: str) -> int:
    return main(["export", "--checkpoint", str(checkpoint), "--output", str(output), *words])


def run(path: Path, **inputs: torch.Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return np.asarray(result)


def make_texts(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    mask[0, 3:] = False
    return torch.randint(5, len(VOCABULARY), (rows, tokens)) * mask, mask


@pytest.mark.slow
def test_a_dual_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, model = write(tmp_path, "vlmo")
    out = tmp_path / "onnx"
    assert export(checkpoint, out, "--onnx") == 0
    assert "text.onnx, image.onnx; onnxruntime differs" in capsys.readouterr().out
    record = json.loads((out / "export.json").read_text())
    assert record["files"]["image.onnx"]["inputs"]["pixels"].startswith("uint8 [B, 3, 32, 32]")
    assert all(file["max_difference"] <= 1e-4 for file in record["files"].values())
    assert {"vocab.txt", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    torch.manual_seed(1)
    for rows, tokens in ((1, 2), (7, 9)):  # of other sizes than it was made and compared with
        texts, mask = make_texts(rows, tokens)
        pixels = torch.randint(256, (rows, 3, 32, 32), dtype=torch.uint8)
        with torch.inference_mode():
            text_vectors = model.text_vectors(texts, mask).numpy()
            image_vectors = model.image_vectors(pixels.float() / 127.5 - 1).numpy()
        found = run(out / "text.onnx", tokens=texts, token_mask=mask)
        np.testing.assert_allclose(found, text_vectors, atol=1e-4)
        np.testing.assert_allclose(run(out / "image.onnx", pixels=pixels), image_vectors, atol=1e-4)
    assert export(checkpoint, out, "--onnx") == 0  # again, in place of the first


@pytest.mark.nightly
@pytest.mark.parametrize("variant", REGION_MODELS)
def test_the_scores_of_a_model_of_regions(variant: str, tmp_path: Path) -> None:
    checkpoint, model = write(tmp_path, variant)
    assert export(checkpoint, tmp_path / "onnx", "--onnx") == 0
    row = get_variant(variant)
    torch.manual_seed(1)
    for rows, regions in ((2, 3), (6, 40)):
        texts, mask = make_texts(rows, 6)
        region_mask = torch.ones(rows, regions, dtype=torch.bool)
        region_mask[1, 2:] = False
        inputs = {
            "tokens": texts,
            "token_mask": mask,
            "region_features": torch.rand(rows, regions, 8),
            "region_locations": torch.rand(rows, regions, 5),
            "region_mask": region_mask,
        }
        with torch.inference_mode():
            pooled = row.get_body(model)(VLInputs(**inputs)).pooled
            expected = get_part(model, row.match_logit)(pooled).numpy()
        found = run(tmp_path / "onnx" / "scores.onnx", **inputs)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = write(tmp_path, "bert")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for output, words, message in (
        ("onnx", [], "--onnx is missing"),
        ("onnx", ["--onnx"], "without a matching or contrastive head"),
        ("full", ["--onnx"], "has other files; give a new folder"),
    ):
        assert export(checkpoint, tmp_path / output, *words) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(job, "export_graph", lambda graph, folder: None)
    monkeypatch.setattr(job, "compare_graph", _differ)
    checkpoint, _ = write(tmp_path, "imagebert")
    assert export(checkpoint, tmp_path / "onnx", "--onnx") == 1
    assert "scores.onnx: onnxruntime gives" in capsys.readouterr().err
    assert not (tmp_path / "onnx").exists()


def _differ(graph: Any, path: Path) -> float:
    raise job.Differs(f"{path.name}: onnxruntime gives [3] and differs by 1")
