"""VLMo starts from a ViT of any layout, and is then one: `transformers`' ViT gives its states."""

import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.models.bert_files import transformers
from torch import Tensor

from vlmill.models import preset
from vlmill.models.from_beit import (
    initialise_from_beit,
    initialise_from_vit,
    vit_names,
    with_class_position,
)
from vlmill.models.layers.blocks import FeedForward
from vlmill.models.layers.experts import PreNormBlock
from vlmill.models.vlmo.encoder import VlmoEncoder
from vlmill.models.vlmo.model import Vlmo

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
}
TO_TIMM = (
    (r"^vit\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layers\.", "blocks."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)


def vit() -> Any:
    """`transformers`' classifier, every parameter of which acts."""
    library = transformers()
    model = library.ViTForImageClassification(library.ViTConfig(**SIZES, layer_norm_eps=1e-6))
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def as_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as timm and DeiT name them, queries, keys and values in one."""
    named: dict[str, Tensor] = {}
    fused: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if match := re.fullmatch(r"vit\.layers\.(\d+)\.attention\.([qkv])_proj\.(\w+)", name):
            fused.setdefault(f"blocks.{match[1]}.attn.qkv.{match[3]}", {})[match[2]] = tensor
            continue
        for pattern, new in TO_TIMM:
            name = re.sub(pattern, new, name)
        named[name] = tensor
    return named | {k: torch.cat([parts[p] for p in "qkv"]) for k, parts in fused.items()}


def as_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the files on the hub."""
    changes = (
        (
            r"^vit\.layers\.(\d+)\.attention\.q_proj\.",
            r"vit.encoder.layer.\1.attention.attention.query.",
        ),
        (
            r"^vit\.layers\.(\d+)\.attention\.k_proj\.",
            r"vit.encoder.layer.\1.attention.attention.key.",
        ),
        (
            r"^vit\.layers\.(\d+)\.attention\.v_proj\.",
            r"vit.encoder.layer.\1.attention.attention.value.",
        ),
        (
            r"^vit\.layers\.(\d+)\.attention\.o_proj\.",
            r"vit.encoder.layer.\1.attention.output.dense.",
        ),
        (r"^vit\.layers\.(\d+)\.mlp\.fc1\.", r"vit.encoder.layer.\1.intermediate.dense."),
        (r"^vit\.layers\.(\d+)\.mlp\.fc2\.", r"vit.encoder.layer.\1.output.dense."),
        (r"^vit\.layers\.", "vit.encoder.layer."),
    )
    renamed = {}
    for name, tensor in state.items():
        for pattern, new in changes:
            name = re.sub(pattern, new, name)
        renamed[name] = tensor
    return renamed


def distilled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """DeiT's with a distillation token behind the class token."""
    tensors = as_timm(state)
    positions = tensors["pos_embed"]
    more = torch.cat([positions[:, :1], torch.randn(1, 1, 24), positions[:, 1:]], dim=1)
    return {"model": tensors | {"pos_embed": more, "dist_token": torch.randn(1, 1, 24)}}  # type: ignore[dict-item]


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "in memory": dict,
    "published": as_published,
    "without prefix": lambda s: {k.removeprefix("vit."): v for k, v in as_published(s).items()},
    "timm": as_timm,
    "distilled": distilled,
}


def tiny(**changes: Any) -> Vlmo:
    torch.manual_seed(1)
    sizes = {"vocab_size": 30, "width": 24, "num_layers": 3, "num_heads": 4, "image_size": 32}
    fields = sizes | {"intermediate_width": 48, "first_vl_layer": 2, "max_text_tokens": 8} | changes
    return Vlmo(preset("vlmo-base-paper", **fields)).eval()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_have_the_states_of_transformers(layout: str) -> None:
    theirs, ours = vit(), tiny()
    origins = initialise_from_vit(ours, LAYOUTS[layout](theirs.state_dict()), "all")
    taken = {name for name, origin in origins.items() if origin.names}
    assert all("norm" in n or "layers." in n or "patch_embedding" in n for n in taken)
    assert {n for n in origins if "layers." in n} <= taken
    with torch.no_grad():
        ours.encoder.type_table.weight.zero_()  # an image's own, which a ViT has not
        pixels = torch.randn(2, 3, 32, 32)
        expected = theirs.vit(pixels).last_hidden_state
        torch.testing.assert_close(ours.encode_image(pixels), expected, atol=2e-5, rtol=1e-5)


def without_class_position(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As timm's ``no_embed_class`` has it: the class token, in front of the patches, has none."""
    tensors = as_timm(state)
    return tensors | {"pos_embed": tensors["pos_embed"][:, 1:]}


def with_registers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With positions of a class token, of three registers and of patches."""
    tensors = as_timm(state)
    positions = tensors["pos_embed"]
    more = torch.cat([positions[:, :1], torch.randn(1, 3, 24), positions[:, 1:]], dim=1)
    return tensors | {"pos_embed": more, "reg_token": torch.randn(1, 3, 24)}


def test_positions_of_patches_alone_leave_the_class_token_without_one() -> None:
    state = vit().state_dict()
    for registers in ({}, {"reg_token": torch.randn(1, 4, 24)}):
        ours = tiny()
        initialise_from_vit(ours, without_class_position(state) | registers)
        position = ours.encoder.patch_embedding.position
        assert position is not None
        assert not position[:, 0].any()
        expected = state["vit.embeddings.position_embeddings"][:, 1:]
        assert torch.equal(position[:, 1:], expected)


def test_positions_of_registers_are_taken_out() -> None:
    state = vit().state_dict()
    ours = tiny()
    initialise_from_vit(ours, with_registers(state))
    position = ours.encoder.patch_embedding.position
    assert position is not None
    assert torch.equal(position, state["vit.embeddings.position_embeddings"])


@pytest.mark.parametrize(
    ("shape", "registers", "side", "message"),
    [
        ((1, 7, 8), 0, 2, "has 7 positions, expected the number for a class token and a square"),
        ((1, 7, 8), 4, 2, "or a class token, 4 registers and the square"),
        ((1, 9, 8), 4, 4, "several of these fit"),
        ((5, 8), 0, 2, r"pos_embed is \[5, 8\], expected \[1, positions, width\]"),
        ((1, 2, 2, 8), 0, 2, r"pos_embed is \[1, 2, 2, 8\]"),
    ],
)
def test_other_tables_of_positions_are_refused(
    shape: tuple[int, ...], registers: int, side: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        with_class_position(torch.zeros(shape), registers, side)


def test_where_several_layouts_fit_the_model_decides() -> None:
    table = torch.arange(9.0).view(1, 9, 1)
    alone, after = (with_class_position(table, 4, side).flatten().tolist() for side in (3, 2))
    assert alone == [0, *range(9)] and after == [0, 5, 6, 7, 8]


SCALES = {
    "timm": ("ls1.gamma", "ls2.gamma"),
    "transformers": ("layer_scale1.lambda1", "layer_scale2.lambda1"),
}


def scaled(layout: str) -> dict[str, Tensor]:
    """With layer scales, as DINOv2 and DeiT III have them."""
    names = SCALES[layout]
    more = {
        f"blocks.{layer}.{name}": torch.full((24,), 0.1 * layer + 0.01 * number)
        for layer in range(3)
        for number, name in enumerate(names)
    }
    return as_timm(vit().state_dict()) | more


@pytest.mark.parametrize("layout", SCALES)
def test_layer_scales_are_taken_or_named(layout: str) -> None:
    ours = tiny(layer_scale=0.1)
    origins = initialise_from_vit(ours, scaled(layout))
    assert origins["encoder.layers.2.attention_scale"].names == ("blocks.2.gamma_1",)
    layer = cast(Any, ours.encoder.layers[2])
    assert torch.equal(layer.attention_scale, torch.full((24,), 0.2))
    assert torch.equal(layer.expert_scale, torch.full((24,), 0.21))
    first = SCALES[layout][0]
    with pytest.raises(ValueError, match=rf"blocks\.0\.{first}: .* add layer_scale=0\.1"):
        initialise_from_vit(tiny(), scaled(layout))


@pytest.mark.parametrize(
    "name",
    [
        *("norm_pre.weight", "blocks.1.attn.q_norm.weight", "patch_embed.norm.bias"),
        *("blocks.0.mlp.w12.weight", "blocks.2.norm3.weight"),
    ],
)
def test_tensors_of_another_network_are_refused_by_name(name: str) -> None:
    state = as_timm(vit().state_dict()) | {name: torch.ones(24)}
    ours = tiny()
    before = {k: v.clone() for k, v in ours.state_dict().items()}
    with pytest.raises(ValueError, match=rf"^{name} does not exist in VLMo"):
        initialise_from_vit(ours, state)
    assert all(torch.equal(v, before[k]) for k, v in ours.state_dict().items())


def parts(encoder: VlmoEncoder, layer: int) -> dict[str, Tensor]:
    experts = cast(PreNormBlock, encoder.layers[layer]).experts
    return {name: cast(FeedForward, part).up.weight for name, part in experts.items()}


def test_one_part_or_all_start_from_it() -> None:
    state = vit().state_dict()
    up = vit_names(state)["blocks.2.mlp.fc1.weight"]
    alone, every, shared = tiny(), tiny(), tiny(modality_experts=False, first_vl_layer=3)
    initialise_from_vit(alone, state)
    initialise_from_vit(every, state, "all")
    initialise_from_vit(shared, state)
    of_alone = parts(alone.encoder, 2)
    assert {name for name, weight in of_alone.items() if torch.equal(weight, up)} == {"image"}
    assert set(parts(every.encoder, 2)) == {"text", "image", "vl"}
    assert all(torch.equal(weight, up) for weight in parts(every.encoder, 2).values())
    assert list(parts(shared.encoder, 2)) == ["shared"]
    assert torch.equal(parts(shared.encoder, 2)["shared"], up)


def test_without_experts_a_text_and_its_image_go_through_the_same_layers() -> None:
    """Equal to experts that hold the same weights."""
    state = vit().state_dict()
    shared, every = tiny(modality_experts=False, first_vl_layer=3), tiny(first_vl_layer=3)
    initialise_from_vit(shared, state)
    initialise_from_vit(every, state, "all")
    same = every.load_state_dict(shared.state_dict(), strict=False)
    assert all("shared" in name for name in same.unexpected_keys)
    tokens, mask = torch.randint(1, 30, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            shared.text_vectors(tokens, mask), every.text_vectors(tokens, mask)
        )
        for pack in (True, False):
            both = [
                model.encoder.fuse(
                    model.encoder.embed_text(tokens),
                    mask,
                    model.encoder.embed_image(pixels),
                    pack=pack,
                )
                for model in (shared, every)
            ]
            torch.testing.assert_close(both[0].pooled, both[1].pooled)


def test_other_networks_are_told() -> None:
    state = vit().state_dict()
    with pytest.raises(ValueError, match=r"a ViT's weights, .*; give --family vit"):
        initialise_from_beit(tiny(), as_timm(state))
    beit = {"rel_pos_bias.relative_position_bias_table": torch.zeros(52, 4)}
    with pytest.raises(ValueError, match=r"BEiT's weights, .*; give --family beit"):
        initialise_from_vit(tiny(), as_timm(state) | beit)
    with pytest.raises(ValueError, match="build it with the sizes of that ViT"):
        initialise_from_vit(tiny(intermediate_width=32), state)
    with pytest.raises(ValueError, match="expected first_vl_layer=3, not 2"):
        tiny(modality_experts=False)
