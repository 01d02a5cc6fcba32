"""BEiT: equal to `transformers`' own, its layouts, its start, and VLMo's start from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vlmill.models.beit.config import BeitConfig, beit_base, beit_large, image_classifier
from vlmill.models.beit.model import Beit
from vlmill.models.from_beit import initialise_from_beit
from vlmill.models.published import (
    CheckpointMismatch,
    export_reference,
    load_reference,
    read_reference,
)
from vlmill.models.vlmo.config import VlmoConfig
from vlmill.models.vlmo.model import Vlmo

TINY: dict[str, Any] = {
    "width": 24,
    "num_layers": 3,
    "num_heads": 3,
    "intermediate_width": 48,
    "image_size": 24,
    "patch_size": 8,
    "num_visual_tokens": 20,
}
HUGGING: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
    "vocab_size": 20,
    "layer_norm_eps": 1e-6,
    "layer_scale_init_value": 0.1,
}
REASON = "equality with transformers needs transformers (extra: test)"


def tiny_beit(**changes: Any) -> Beit:
    torch.manual_seed(0)
    model = Beit(BeitConfig(**(TINY | changes))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def classifier(**changes: Any) -> Beit:
    return tiny_beit(num_visual_tokens=0, num_classes=5, shared_relative=False, **changes)


def images() -> Tensor:
    return torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def masks() -> Tensor:
    return torch.tensor([[True, False, False] * 3, [False, True, True] * 3])


def hugging_face(masked: bool) -> tuple[Any, dict[str, Any]]:
    """`transformers`' model with weights that all act, and its configuration."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    torch.manual_seed(0)
    if masked:
        kind: Any = transformers.BeitForMaskedImageModeling
        changes: dict[str, Any] = {
            "use_shared_relative_position_bias": True,
            "use_mask_token": True,
        }
    else:
        kind = transformers.BeitForImageClassification
        changes = {"use_relative_position_bias": True, "num_labels": 5}
    model = kind(transformers.BeitConfig(**HUGGING, **changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model, model.config.to_dict() | {"architectures": [kind.__name__]}


def test_masked_image_modelling_is_that_of_transformers(tmp_path: Path) -> None:
    theirs, config = hugging_face(masked=True)
    theirs.save_pretrained(tmp_path)
    sources: tuple[Any, ...] = (theirs.state_dict(), tmp_path / "model.safetensors")
    for source in sources:  # names in memory differ from those in a file
        ours: Any = load_reference("beit", source, config)
        with torch.no_grad():
            expected = theirs(images(), bool_masked_pos=masks()).logits
            states = ours(images(), masks())
        logits = ours.visual_logits(states[:, 1:])
        torch.testing.assert_close(logits, expected[:, -9:], atol=1e-5, rtol=1e-4)


def test_the_classifier_is_that_of_transformers(tmp_path: Path) -> None:
    theirs, config = hugging_face(masked=False)
    theirs.save_pretrained(tmp_path)
    ours: Any = load_reference("beit", tmp_path / "model.safetensors", config)
    with torch.no_grad():
        expected = theirs(images(), output_hidden_states=True)
    torch.testing.assert_close(ours(images()), expected.hidden_states[-1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.class_logits(images()), expected.logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", [tiny_beit(), classifier()], ids=["masked", "classes"])
def test_a_checkpoint_survives_the_way_there_and_back(model: Beit, tmp_path: Path) -> None:
    state = export_reference("beit", model)
    assert any("relative_position_index" in name for name in state)
    path = tmp_path / "beit.pth"
    torch.save({"model": state, "epoch": 3}, path)
    again, table = read_reference("beit", path, model.config)
    assert not table.missing and not table.unexpected
    for name, tensor in export_reference("beit", again).items():
        assert torch.equal(tensor, state[name]), name


def test_a_classifier_starts_from_masked_image_modelling_at_another_size() -> None:
    source = tiny_beit(image_size=32)
    config = image_classifier(source.config, num_classes=5)
    larger = BeitConfig(**(vars(config) | {"image_size": 40}))
    model, table = read_reference("beit", export_reference("beit", source), larger)
    assert isinstance(model, Beit)
    assert {*table.missing} == {
        f"{m}.{p}" for m in ("pooled_norm", "class_head") for p in ("weight", "bias")
    }
    assert "norm.weight" in table.unexpected  # the mean has its own
    tables = [tensor for name, tensor in model.state_dict().items() if name.endswith(".table")]
    assert torch.equal(tables[0], tables[2]) and tables[0].shape == (84, 3)
    assert torch.equal(tables[0][-3:], source.state_dict()["relative.0.table"][-3:])
    assert model.class_logits(torch.randn(1, 3, 40, 40)).shape == (1, 5)


def test_masked_patches_are_not_read() -> None:
    model, batch = tiny_beit(), images()
    states = model(batch, masks())
    other = batch.clone()
    other[0, :, :8, :8] = 9.0  # the first patch of the first image is masked
    assert torch.equal(model(other, masks()), states)
    assert not torch.equal(model(other), model(batch))


def test_new_weights_are_cut_and_scaled_by_depth() -> None:
    torch.manual_seed(0)
    model: Any = Beit(BeitConfig(**TINY))
    for part in (model.patch_embedding.projection, model.layers[0].attention.qkv):
        assert part.weight.abs().max() <= 0.02
    first, last = model.layers[0], model.layers[2]
    assert first.attention.out.weight.abs().max() <= 0.02 / 2**0.5
    assert last.experts["image"].down.weight.abs().max() <= 0.02 / 6**0.5
    assert not model.layers[0].attention.query_bias.any()


def test_published_sizes() -> None:
    with torch.device("meta"):
        base, large = (
            sum(p.numel() for n, p in Beit(config).named_parameters() if "visual_head" not in n)
            for config in (beit_base(), beit_large())
        )
    assert (round(base / 1e6), round(large / 1e6)) == (86, 303)


@pytest.mark.parametrize("shared", [True, False])
def test_vlmo_starts_from_beit(shared: bool) -> None:
    source = tiny_beit() if shared else classifier()
    config = VlmoConfig(
        vocab_size=50, width=24, num_layers=3, num_heads=3, intermediate_width=48,
        first_vl_layer=2, image_size=24, patch_size=8, max_text_tokens=7, relative_text_span=9,
    )  # fmt: skip
    model = Vlmo(config).eval()
    origins = initialise_from_beit(model, export_reference("beit", source))
    # The image half computes what BEiT does, with the image's type on every position.
    with torch.no_grad():
        model.encoder.type_table.weight.zero_()
        if not shared:
            model.encoder.norm = torch.nn.Identity()  # type: ignore[assignment]
        torch.testing.assert_close(
            model.encode_image(images()), source(images()), atol=1e-5, rtol=1e-4
        )
    table = origins["encoder.relative.table"]
    assert table.rows == 28 and table.rule == "0"
    assert bool(origins["encoder.norm.weight"].names) == shared
    assert origins["encoder.layers.1.experts.image.up.weight"].names == ("blocks.1.mlp.fc1.weight",)
    new = {name for name, origin in origins.items() if not origin.names}
    assert {n.split(".")[0] for n in new} > {"match_head", "mlm_head", "contrast_heads"}
    assert {"encoder.layers.0.experts.text.up.weight", "encoder.type_table.weight"} <= new
    parts = ("attention", "experts.image", "expert_norms.image", "patch_embedding", "scale")
    assert not [n for n in new if n.startswith("encoder.") and any(part in n for part in parts)]


def test_what_is_no_beit_is_refused(tmp_path: Path) -> None:
    model = Vlmo(VlmoConfig(width=24, num_layers=1, num_heads=3, first_vl_layer=1, vocab_size=9))
    with pytest.raises(CheckpointMismatch, match="the checkpoint has no tensor of BEiT"):
        initialise_from_beit(model, {"a": torch.zeros(1)})
    with pytest.raises(CheckpointMismatch, match="have other shapes than the model's"):
        initialise_from_beit(model, {"norm.weight": torch.zeros(5), "norm.bias": torch.zeros(24)})
    with pytest.raises(ValueError, match="Linear does not start from BEiT"):
        initialise_from_beit(torch.nn.Linear(1, 1), {"a": torch.zeros(1)})
    path = tmp_path / "some.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="no embed_dim or hidden_size"):
        load_reference("beit", path, {"depth": 3})
    with pytest.raises(ValueError, match="expected only one of the two heads"):
        BeitConfig(num_classes=3)
    with pytest.raises(ValueError, match="masked patches need num_visual_tokens"):
        classifier()(images(), masks())
