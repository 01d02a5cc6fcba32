"""BEiT: equal to `transformers`' own, its layouts, its start, and VLMo's start from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vlmill.models.beit.config import BeitConfig, beit_base, beit_large, image_classifier
from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer, Dvae, DvaeConfig, map_pixels
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


DALLE = DalleConfig(num_tokens=12, width=8)
DVAE = DvaeConfig(num_tokens=12, width=8, codebook_width=6)


@pytest.mark.parametrize("model", [DalleTokenizer(DALLE), Dvae(DVAE)], ids=["dall-e", "own"])
def test_a_token_for_eight_by_eight_pixels(model: Any) -> None:
    pixels = torch.rand(2, 3, 32, 24)
    with torch.no_grad():
        logits = model(pixels)
    assert logits.shape == (2, 12, 4, 3)
    tokens = model.tokens(pixels)
    assert torch.equal(tokens, logits.argmax(dim=1))
    with pytest.raises(ValueError, match=r"\(2, 3, 32, 20\), expected .* in multiples of 8"):
        model(torch.rand(2, 3, 32, 20))


def test_the_published_encoder_has_its_size() -> None:
    # 53.8 million weights: the file that DALL-E's repository names holds 215 MB.
    with torch.device("meta"):
        model = DalleTokenizer(DalleConfig())
    assert round(4 * sum(p.numel() for p in model.parameters()) / 1e6) == 215


def test_tokens_become_a_image_again() -> None:
    model = Dvae(DVAE)
    assert model.decode(torch.zeros(2, 4, 4, dtype=torch.int64)).shape == (2, 3, 32, 32)


def test_pixels_stay_off_the_ends() -> None:
    mapped = map_pixels(torch.tensor([0.0, 0.5, 1.0]).expand(1, 3, 3, 3))
    torch.testing.assert_close(mapped[0, 0, 0], torch.tensor([0.1, 0.5, 0.9]))


@pytest.mark.parametrize("model", [DalleTokenizer(DALLE), Dvae(DVAE)], ids=["dall-e", "own"])
def test_a_tokenizer_survives_the_way_there_and_back(model: Any, tmp_path: Path) -> None:
    state = export_reference("dvae", model)
    torch.save({"weights": state}, tmp_path / "pytorch_model.bin")
    again, table = read_reference("dvae", tmp_path / "pytorch_model.bin", model.config)
    assert not table.missing and not table.unexpected
    exported = export_reference("dvae", again)
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[name], state[name]) for name in state)


def test_a_pickled_module_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "encoder.pkl"
    torch.save(DalleTokenizer(DALLE), path)  # as DALL-E's file is: the object, not its weights
    with pytest.raises(ValueError, match=r"would run code from the file; save its state_dict\(\)"):
        load_reference("dvae", path, DALLE)
    with pytest.raises(ValueError, match="expected n_hid"):
        load_reference("dvae", {"a": torch.zeros(1)}, {"width": 8})
