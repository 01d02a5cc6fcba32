"""VLMo from another VLMo's weights: stages, resolutions, tasks, and the released layout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.vlmo.test_model import larger, random_batch, tiny_config, tiny_model

from vlmill.models.published import CheckpointMismatch, export_reference, read_reference
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoNlvr2Config,
    VlmoVqaConfig,
    retrieval,
    text_stage,
)
from vlmill.models.vlmo.model import Vlmo
from vlmill.models.vlmo.stages import start_from
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa

MODELS: dict[str, Any] = {
    "pretraining": lambda: Vlmo(tiny_config()),
    "paper": lambda: Vlmo(tiny_config(paper=True)),
    "text": lambda: Vlmo(text_stage(tiny_config())),
    "retrieval": lambda: Vlmo(retrieval(tiny_config(absolute_positions=True))),
    "vqa": lambda: VlmoForVqa(VlmoVqaConfig(encoder=tiny_config(), num_answers=5)),
    "nlvr2": lambda: VlmoForNlvr2(VlmoNlvr2Config(encoder=tiny_config(num_images=2))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_survives_the_way_there_and_back(name: str, tmp_path: Path) -> None:
    model = larger(MODELS[name]())
    state = export_reference("vlmo", model)
    torch.save(
        {"module": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "vlmo.pt"
    )
    again, table = read_reference("vlmo", tmp_path / "vlmo.pt", model.config)
    assert not table.missing and not table.unexpected
    exported = export_reference("vlmo", again)
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[key], state[key]) for key in state)


def test_index_matrices_in_a_file_are_no_surprise() -> None:
    model = tiny_model()
    state = export_reference("vlmo", model)
    state["relative_position_index"] = torch.zeros(3, 3, dtype=torch.int64)
    assert not read_reference("vlmo", state, model.config)[1].unexpected


def test_pairs_start_from_the_text_stage() -> None:
    source = larger(Vlmo(text_stage(tiny_config())))
    model = Vlmo(tiny_config())
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    missing = start_from(model, source.state_dict(), model.config)
    new = {name.split(".")[0] for name in missing if not name.startswith("encoder.")}
    assert new == {"contrast_heads", "log_scale", "fused_log_scale", "match_head"}
    experts = {name.rsplit(".", 1)[0] for name in missing if name.startswith("encoder.")}
    layer = "encoder.layers.2"
    assert experts == {
        f"{layer}.expert_norms.vl",
        f"{layer}.experts.vl.up",
        f"{layer}.experts.vl.down",
    }
    for name, tensor in model.state_dict().items():
        theirs = fresh[name] if name in missing else source.state_dict()[name]
        assert torch.equal(tensor, theirs[: len(tensor)] if tensor.ndim else theirs)


@pytest.mark.parametrize("paper", [False, True], ids=["relative", "absolute"])
def test_a_task_starts_from_pairs_at_another_resolution(paper: bool) -> None:
    source = tiny_model(paper=paper, relative_positions=not paper, image_size=32)
    encoder = tiny_config(paper=paper, relative_positions=not paper, image_size=40, num_images=2)
    model = VlmoForNlvr2(VlmoNlvr2Config(encoder=encoder)).eval()
    missing = start_from(model, source.state_dict(), encoder)
    assert {name.split(".")[0] for name in missing} == {"classifier"}
    types = model.encoder.type_table.weight
    assert torch.equal(types[2], types[1])
    assert torch.equal(types[:2], source.encoder.type_table.weight)
    if not paper:
        relative = model.encoder.relative
        assert relative is not None and source.encoder.relative is not None
        assert torch.equal(relative.table[-23:], source.encoder.relative.table[-23:])
    batch = random_batch()
    logits = model(batch.tokens, batch.token_mask, torch.zeros(4, 2, 3, 40, 40))
    assert logits.isfinite().all()


def test_a_classifier_is_never_taken_over() -> None:
    config = VlmoVqaConfig(encoder=tiny_config(), num_answers=5)
    source, model = larger(VlmoForVqa(config)), VlmoForVqa(config)
    missing = start_from(model, source.state_dict(), config.encoder)
    assert {name.split(".")[0] for name in missing} == {"classifier"}


def test_what_does_not_fit_is_refused() -> None:
    model = Vlmo(tiny_config())
    state = model.state_dict()
    other: VlmoConfig = tiny_config(vocab_size=60)
    with pytest.raises(ValueError, match=r"is \[60, 24\] here and \[50, 24\] in the checkpoint"):
        start_from(Vlmo(other), state, other)
    with pytest.raises(CheckpointMismatch, match=r"is \[60, 24\] here, \[50, 24\]"):
        read_reference("vlmo", export_reference("vlmo", model), other)
    longer = tiny_config(max_text_tokens=9)
    with pytest.raises(ValueError, match="has 7 text positions, max_text_tokens=9"):
        start_from(Vlmo(longer), state, longer)
    span = tiny_config(relative_text_span=30)
    with pytest.raises(ValueError, match="48 rows and relative_text_span=30 needs 65"):
        start_from(Vlmo(span), state, span)
    with pytest.raises(ValueError, match="no embed_dim"):
        read_reference("vlmo", state, {"depth": 3})
