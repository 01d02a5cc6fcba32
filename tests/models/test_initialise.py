"""Models that start from BERT: what they take, where it goes, and what stays new."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.bert_files import LAYOUTS, published, tiny, write
from torch import Tensor, nn

from vlmill.models.imagebert import ImageBert, ImageBertConfig, imagebert_base
from vlmill.models.initialise import BERT_SOURCES, Origin, initialise_from_bert

# The sizes of `tiny`, and of the parts that are not BERT's.
TEXT: dict[str, Any] = {
    "vocab_size": 50,
    "width": 24,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_width": 48,
    "num_positions": 12,
}
TextSide = Callable[[Any, Tensor, Tensor], Tensor]


def tiny_imagebert(**changes: Any) -> ImageBert:
    sizes = {"max_text_tokens": 8, "visual_position_id": 8, "region_width": 16}
    torch.manual_seed(1)
    return ImageBert(ImageBertConfig(**(TEXT | sizes | {"num_region_classes": 7} | changes))).eval()


def imagebert_text(model: ImageBert, tokens: Tensor, mask: Tensor) -> Tensor:
    """The last hidden states of texts without a picture."""
    regions = torch.zeros(len(tokens), 0, model.config.width)
    return model.encode(tokens, mask, regions, torch.zeros(len(tokens), 0, dtype=torch.bool)).text


TINY: dict[str, tuple[Callable[[], nn.Module], TextSide]] = {
    "imagebert": (tiny_imagebert, imagebert_text),
}
# At the published size, each in another layout, so that every one comes up.
BASE: dict[str, tuple[Callable[[], nn.Module], TextSide, str, str]] = {
    "imagebert": (
        lambda: ImageBert(imagebert_base()).eval(),
        imagebert_text,
        "hugging-face",
        ".safetensors",
    ),
}


def texts(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Tokens of two texts, the second shorter."""
    tokens = torch.randint(0, vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(7) < torch.tensor([[7], [4]])


def hidden_states(theirs: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """`transformers`' own."""
    states: Tensor = theirs.bert(tokens, mask.long()).last_hidden_state
    return states


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", TINY)
def test_the_text_side_is_berts_in_every_layout(
    variant: str, layout: str, suffix: str, tmp_path: Path
) -> None:
    build, text_side = TINY[variant]
    theirs, model = tiny(), build()
    initialise_from_bert(model, write(theirs, tmp_path / f"bert{suffix}", layout))
    tokens, mask = texts(50)
    with torch.no_grad():
        ours, expected = text_side(model, tokens, mask), hidden_states(theirs, tokens, mask)
    torch.testing.assert_close(ours[mask], expected[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", BASE)
def test_the_text_side_is_berts_at_the_published_size(variant: str, tmp_path: Path) -> None:
    build, text_side, layout, suffix = BASE[variant]
    theirs = published()
    path = write(theirs, tmp_path / f"bert{suffix}", layout)
    model = build()
    initialise_from_bert(model, path)
    tokens, mask = texts(30522)
    with torch.no_grad():
        ours, expected = text_side(model, tokens, mask), hidden_states(theirs, tokens, mask)
    torch.testing.assert_close(ours[mask], expected[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", TINY)
def test_every_parameter_has_an_origin_and_holds_what_it_says(variant: str) -> None:
    build, _ = TINY[variant]
    model, untouched = build(), build()
    state = tiny().state_dict()
    origins = initialise_from_bert(model, state)
    before = dict(untouched.named_parameters())
    assert origins.keys() == before.keys()
    for name, parameter in model.named_parameters():
        origin = origins[name]
        rows = len(parameter) if origin.rows is None else origin.rows
        if origin.names:
            expected = torch.cat([state[theirs] for theirs in origin.names])
            assert torch.equal(parameter[:rows], expected), name
            rest = parameter[rows:], before[name][rows:]
        else:
            rest = parameter, before[name]
        assert torch.equal(*rest), name
        assert bool(origin.rule) == bool(rest[0].numel()), name


def test_imagebert_takes_text_layers_and_word_head() -> None:
    origins = initialise_from_bert(tiny_imagebert(), tiny().state_dict())
    new = {name for name, origin in origins.items() if not origin.names}
    assert new == {
        "region_embedding.feature.weight",
        "region_embedding.feature.bias",
        "region_embedding.location.weight",
        "region_embedding.location.bias",
        "region_embedding.norm.weight",
        "region_embedding.norm.bias",
        "class_head.weight",
        "class_head.bias",
        "feature_head.weight",
        "feature_head.bias",
        "match_head.weight",
        "match_head.bias",
    }
    assert str(origins["region_embedding.feature.weight"]) == "new: N(0, 0.02^2)"
    assert str(origins["region_embedding.norm.weight"]) == "new: 1"
    assert str(origins["match_head.bias"]) == "new: 0"
    assert origins["layers.1.attention.qkv.weight"].names == tuple(
        f"bert.encoder.layer.1.attention.self.{part}.weight" for part in ("query", "key", "value")
    )


def test_imageberts_pooler_is_berts_where_it_has_one() -> None:
    model, state = tiny_imagebert(itm_pooler=True), tiny().state_dict()
    origins = initialise_from_bert(model, state)
    assert origins["pooler.dense.weight"] == Origin(names=("bert.pooler.dense.weight",))


def test_layers_that_bert_lacks_stay_new_and_say_so() -> None:
    origins = initialise_from_bert(tiny_imagebert(num_layers=3), tiny().state_dict())
    origin = origins["layers.2.norm.weight"]
    assert str(origin) == (
        "new: 1 (the checkpoint has no bert.encoder.layer.2.attention.output.LayerNorm.weight)"
    )


def test_another_size_is_refused_with_both_shapes() -> None:
    model = tiny_imagebert(vocab_size=60)
    before = {name: p.clone() for name, p in model.named_parameters()}
    message = r"2 of BERT's tensors .*\n.*\n.*word.weight is \[60, 24\] here, \[50, 24\]"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        initialise_from_bert(model, tiny().state_dict())
    assert torch.equal(model.text_embedding.word.weight, before["text_embedding.word.weight"])


def test_what_is_no_bert_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing in the checkpoint is BERT's"):
        initialise_from_bert(tiny_imagebert(), {"fc.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="Linear does not start from BERT; these do: Bert, Image"):
        initialise_from_bert(nn.Linear(2, 2), tiny().state_dict())


def test_a_model_inside_another_is_found() -> None:
    class WithHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = tiny_imagebert()
            self.answer = nn.Linear(24, 3)

    origins = initialise_from_bert(WithHead(), tiny().state_dict())
    assert origins["trunk.layers.0.norm.bias"].names
    assert origins["answer.weight"].rule == "N(0, 0.02^2)"


def test_every_variant_that_starts_from_bert_is_tested() -> None:
    tested = {type(build()) for build, _ in TINY.values()}
    assert {kind.__name__ for kind in BERT_SOURCES} - {"Bert"} == {k.__name__ for k in tested}
