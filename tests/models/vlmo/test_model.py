"""VLMo: its sizes, what its outputs depend on, and what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import config
from tests.forked import run_script

from vlmill.models import PixelInputs, preset
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoNlvr2Config,
    VlmoVqaConfig,
    retrieval,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_small,
)
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "width": 24,
    "num_layers": 3,
    "num_heads": 3,
    "intermediate_width": 48,
    "first_vl_layer": 2,
    "image_size": 24,
    "patch_size": 8,
    "max_text_tokens": 7,
    "relative_text_span": 9,
}
BOTH = pytest.mark.parametrize("paper", [False, True], ids=["released", "paper"])


def tiny_config(*, paper: bool = False, **changes: Any) -> VlmoConfig:
    return (vlmo_base_paper if paper else vlmo_base)(**(TINY | changes))


def tiny_model(*, paper: bool = False, **changes: Any) -> Vlmo:
    torch.manual_seed(0)
    model: Vlmo = larger(Vlmo(tiny_config(paper=paper, **changes)).eval())
    return model


def larger(model: Any) -> Any:
    """Weights larger than at the start, so that everything acts."""
    for parameter in model.parameters():
        if parameter.ndim:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def random_batch(pairs: int = 4, tokens: int = 6, *, padded: bool = False) -> PixelInputs:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([tokens, 2, 4, 3])[:pairs] if padded else torch.tensor([tokens] * pairs)
    return PixelInputs(
        tokens=torch.randint(1, 50, (pairs, tokens), generator=generator),
        token_mask=torch.arange(tokens) < lengths[:, None],
        pixels=torch.randn(pairs, 3, 24, 24, generator=generator),
    )


def count(config: VlmoConfig) -> tuple[int, int]:
    """Parameters, and those without heads."""
    with torch.device("meta"):
        model = Vlmo(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(sizes.values()), sum(n for k, n in sizes.items() if k.startswith("encoder."))


def test_the_published_numbers_of_parameters() -> None:
    # Stated: 175M, 167M and 562M, without the heads.
    assert count(vlmo_base()) == (202_445_470, 176_021_088)
    assert count(vlmo_base_plus()) == (184_980_734, 166_863_840)
    assert count(vlmo_large()) == (599_127_102, 562_594_048)
    assert 2_000_000 < count(vlmo_small())[0] < 8_000_000


@BOTH
def test_padding_changes_no_real_output(paper: bool) -> None:
    model, batch = tiny_model(paper=paper), random_batch(tokens=5)
    longer = PixelInputs(
        tokens=torch.cat([batch.tokens, torch.full((4, 2), 49)], dim=1),
        token_mask=torch.tensor([[True] * 5 + [False] * 2] * 4),
        pixels=batch.pixels,
    )
    output, wider = model(batch), model(longer)
    torch.testing.assert_close(wider.text[:, :5], output.text, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(wider.regions, output.regions, atol=1e-5, rtol=1e-4)
    assert not wider.text[:, 5:].any()
    other = torch.cat([batch.tokens, torch.full((4, 2), 7)], dim=1)
    again = model(PixelInputs(**(vars(longer) | {"tokens": other})))
    assert torch.equal(again.regions, wider.regions)


@BOTH
def test_words_and_patches_have_an_order(paper: bool) -> None:
    model, batch = tiny_model(paper=paper), random_batch()
    first = model(batch)
    order = [0, 2, 1, 3, 4, 5]
    other = model(PixelInputs(**(vars(batch) | {"tokens": batch.tokens[:, order]})))
    assert not torch.allclose(other.text[:, order], first.text, atol=1e-3)
    # Patches of one colour each: mirrored they are the same ones at other places.
    patches = batch.pixels[..., ::8, ::8].repeat_interleave(8, 2).repeat_interleave(8, 3)
    plain, mirrored = (
        model(PixelInputs(**(vars(batch) | {"pixels": p}))) for p in (patches, patches.flip(3))
    )
    order = [0, 3, 2, 1, 6, 5, 4, 9, 8, 7]
    assert not torch.allclose(mirrored.regions[:, order], plain.regions, atol=1e-3)


def test_which_experts_a_pass_goes_through() -> None:
    model, batch = tiny_model(), random_batch()

    def used(run: Any) -> set[str]:
        model.zero_grad()
        run().square().sum().backward()
        names = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        found = {n for n in names if ".experts." in n and n.endswith("up.weight")}
        return {n.split(".")[2] + n.split(".")[4] for n in found}

    assert used(lambda: model.image_vectors(batch.pixels)) == {"0image", "1image", "2image"}
    texts = used(lambda: model.text_vectors(batch.tokens, batch.token_mask))
    assert texts == {"0text", "1text", "2text"}
    below = {"0text", "0image", "1text", "1image"}
    assert used(lambda: model(batch).pooled) == below | {"2vl"}
    embedded = model.encoder.embed_image(batch.pixels)
    both = used(lambda: contrast_sum(model.contrast_image(embedded.detach())))
    assert both == {"0image", "1image", "2image", "2vl"}


def contrast_sum(contrast: Contrast) -> torch.Tensor:
    assert contrast.fused is not None
    return contrast.unimodal[:, 0] + contrast.fused[:, 0]


def test_the_padding_words_row_is_read_and_never_learns() -> None:
    model, batch = tiny_model(), random_batch()
    tokens = batch.tokens.clone()
    tokens[:, 3] = 0
    states = model.encode_text(tokens, batch.token_mask)
    states.square().sum().backward()  # type: ignore[no-untyped-call]
    grad = model.encoder.text_embedding.word.weight.grad
    assert grad is not None and not grad[0].any() and grad[tokens[0, 0]].any()


def test_retrieval_keeps_one_pair() -> None:
    model = Vlmo(retrieval(tiny_config()))
    heads = [n for n, _ in model.named_parameters() if not n.startswith("encoder.")]
    assert heads == ["log_scale", "contrast_heads.text.weight", "contrast_heads.image.weight"]


@pytest.fixture
def outside_of_tests() -> Iterator[None]:
    """Shapes unchecked, as users run it: the tests' own checks would come before ours."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("outside_of_tests")
def test_task_heads() -> None:
    batch = random_batch(padded=True)
    vqa = larger(VlmoForVqa(VlmoVqaConfig(encoder=tiny_config(), num_answers=11)).eval())
    assert vqa(batch).shape == (4, 11)
    nlvr2 = larger(VlmoForNlvr2(VlmoNlvr2Config(encoder=tiny_config(num_images=2))).eval())
    pixels = torch.stack([batch.pixels, batch.pixels.flip(0)], dim=1)
    logits = nlvr2(batch.tokens, batch.token_mask, pixels)
    assert logits.shape == (4, 2)
    swapped = nlvr2(batch.tokens, batch.token_mask, pixels.flip(1))
    assert not torch.allclose(swapped, logits, atol=1e-3)  # left and right differ
    with pytest.raises(ValueError, match=r"encoder.num_images=1: NLVR2 needs 2"):
        VlmoNlvr2Config(encoder=tiny_config())
    with pytest.raises(ValueError, match=r"pixels has shape .* expected \[pairs, 2, 3, S, S\]"):
        nlvr2(batch.tokens, batch.token_mask, pixels[:, :1].expand(-1, 3, -1, -1, -1))
    with pytest.raises(ValueError, match="num_answers=0"):
        VlmoVqaConfig(encoder=tiny_config(), num_answers=0)


def test_drop_path_draws_for_each_pair_and_half() -> None:
    model: Any = tiny_model(drop_path=0.5).train()
    assert [layer.drop_path.rate for layer in model.encoder.layers] == [0.0, 0.25, 0.5]
    assert model.encoder.text_embedding.dropout.rate == 0.5
    torch.manual_seed(0)
    batch = random_batch()
    first, second = model(batch).pooled, model(batch).pooled
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 25}, "width=25 is not a multiple of num_heads=3"),
        ({"num_layers": 0}, "num_layers=0: expected a positive number"),
        ({"first_vl_layer": 4}, "first_vl_layer=4 is above num_layers=3"),
        ({"image_size": 25}, "image_size=25 is not a multiple of patch_size=8"),
        ({"max_text_tokens": 10}, "max_text_tokens=10 is above relative_text_span=9"),
        ({"num_contrast_pairs": 3}, "num_contrast_pairs=3: expected 1 or 2"),
        ({"drop_path": 1.0}, "drop_path=1.0: expected a share"),
        ({"layer_scale": 0.0}, "layer_scale=0.0: expected a number above 0"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


@pytest.mark.usefixtures("outside_of_tests")
def test_wrong_inputs_are_refused() -> None:
    model, batch = tiny_model(), random_batch()
    with pytest.raises(ValueError, match="tokens has 8 positions, expected 1 to max_text_tokens=7"):
        model(random_batch(tokens=8))
    with pytest.raises(ValueError, match="tokens has 0 positions"):
        model(random_batch(tokens=0))
    with pytest.raises(ValueError, match=r"expected .* image_size=24, 24"):
        model.image_vectors(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"pixels has shape \(4, 3, 24, 20\)"):
        PixelInputs(**(vars(batch) | {"pixels": batch.pixels[..., :20]}))
    with pytest.raises(ValueError, match=r"pixels is torch\.uint8, expected floating point"):
        PixelInputs(**(vars(batch) | {"pixels": batch.pixels.to(torch.uint8)}))
    with pytest.raises(ValueError, match=r"tokens is torch\.int32, expected torch\.int64"):
        PixelInputs(**(vars(batch) | {"tokens": batch.tokens.int()}))
    with pytest.raises(ValueError, match=r"token_mask is torch\.int64, expected torch\.bool"):
        PixelInputs(**(vars(batch) | {"token_mask": batch.token_mask.long()}))
    with pytest.raises(ValueError, match=r"tokens has shape \(3, 6\)"):
        PixelInputs(**(vars(batch) | {"tokens": batch.tokens[:3]}))
    with pytest.raises(ValueError, match="4 of 4 pairs have no token"):
        PixelInputs(**(vars(batch) | {"token_mask": batch.token_mask & False})).validate()
    nan = batch.pixels.clone()
    nan[2, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"1 of 4 images hold NaN .* \(first: row 2\)"):
        PixelInputs(**(vars(batch) | {"pixels": nan})).validate()
    assert batch.validate().to("cpu").tokens.equal(batch.tokens)


def test_presets_by_name() -> None:
    assert preset("vlmo-small", width=96) == vlmo_small(width=96)
    assert preset("vlmo-base-paper").absolute_positions
    assert not preset("vlmo-base-plus").relative_positions


COMPILED = """
import torch
from tests.forked import run_script
from tests.models.vlmo.test_model import larger, random_batch, tiny_config
from vlmill.models.vlmo.model import Vlmo

model = larger(Vlmo(tiny_config()).eval())
compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
with torch.no_grad():
    for tokens in (5, 6):
        batch = random_batch(tokens=tokens, padded=True)
        expected = model(batch, pack=False)
        torch.testing.assert_close(compiled(batch).text, expected.text, atol=1e-5, rtol=1e-4)
        torch.compiler.set_stance("fail_on_recompile")
"""


@pytest.mark.nightly
def test_torch_compile_traces_a_whole_forward_once_for_all_lengths() -> None:
    # In a process of its own, without the import hook that checks shapes.
    run = run_script(COMPILED)
    assert run.returncode == 0, run.stderr[-2000:]
