"""Models that start from BERT: what they take, where it goes, and what stays new."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.bert_files import LAYOUTS, large, published, tiny, transformers, write
from tests.models.pair_cases import SIZES
from tests.nightly import stand_for
from torch import Tensor, nn

from vlmill.models.from_bert import BERT_SOURCES, Origin, initialise_from_bert
from vlmill.models.imagebert.config import ImageBertConfig, imagebert_base
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.interbert.config import InterBertConfig, interbert_released
from vlmill.models.interbert.model import InterBert
from vlmill.models.layers.packing import make_layout
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    VilbertConfig,
    VilbertTasksConfig,
    vilbert_base,
    vilbert_large,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import VilbertTasks
from vlmill.models.vlbert.config import (
    VlBertConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
    vlbert_base,
    vlbert_for_task,
    vlbert_large,
)
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa
from vlmill.models.vlmo.config import vlmo_small
from vlmill.models.vlmo.model import Vlmo

REGIONS: dict[str, Any] = {"region_width": 16, "num_region_classes": 7, "max_text_tokens": 8}
TextSide = Callable[[Any, Tensor, Tensor], Tensor]


def tiny_imagebert(**changes: Any) -> ImageBert:
    torch.manual_seed(1)
    sizes = SIZES | REGIONS | {"visual_position_id": 8} | changes
    return ImageBert(ImageBertConfig(**sizes)).eval()


def imagebert_text(model: ImageBert, tokens: Tensor, mask: Tensor) -> Tensor:
    """The last hidden states of texts without an image."""
    regions = torch.zeros(len(tokens), 0, model.config.width)
    return model.encode(tokens, mask, regions, torch.zeros(len(tokens), 0, dtype=torch.bool)).text


VLBERT = VlBertConfig(**SIZES, region_width=16, num_region_classes=7, pooler=True, matching=True)
VLBERT_TASK = vlbert_for_task(VLBERT, pooler=True)


def text_layers(*lists: str) -> TextSide:
    """The text by itself through these layers of the model or of its body.

    In VL-BERT texts see [END] too, in ViLBERT co-attention comes between.
    """

    def run(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        part = getattr(model, "body", getattr(model, "trunk", model))
        layout = make_layout(mask, pack=False)
        hidden: Tensor = part.text_embedding(tokens)
        for layer in (layer for name in lists for layer in getattr(part, name)):
            hidden = layer(hidden, layout)
        return hidden

    return run


def text_alone(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """What a model that takes texts without an image says of them."""
    regions = torch.zeros(len(tokens), 0, model.config.width)
    none = torch.zeros(len(tokens), 0, dtype=torch.bool)
    text: Tensor = model.encode(tokens, mask, regions, none, segments=tokens * 0).text
    return text


VILBERT = VilbertConfig(
    **SIZES,
    **REGIONS,
    visual_width=16,
    visual_num_layers=2,
    visual_num_heads=2,
    visual_intermediate_width=16,
    co_width=16,
    co_num_heads=2,
    text_co_layers=(1,),
    visual_co_layers=(0,),
)


def interbert(*layers: int) -> InterBert:
    """Of these numbers of interaction and of text layers."""
    sizes = {name: size for name, size in SIZES.items() if name != "num_layers"}
    own: dict[str, Any] = {"visual_num_heads": 4, "num_visual_layers": 1}
    own["num_interaction_layers"], own["num_text_layers"] = layers
    return InterBert(InterBertConfig(**sizes, **REGIONS, **own))


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same new weights each time."""

    def made() -> nn.Module:
        torch.manual_seed(1)
        return build().eval()

    return made


TINY: dict[str, tuple[Callable[[], nn.Module], TextSide]] = {
    "imagebert": (tiny_imagebert, imagebert_text),
    "interbert-released": (seeded(lambda: interbert(1, 1)), text_alone),
    "interbert-paper": (seeded(lambda: interbert(2, 1)), text_layers("interaction_layers")),
    "vilbert": (seeded(lambda: Vilbert(VILBERT)), text_layers("text_layers")),
    "vilbert-tasks": (
        seeded(lambda: VilbertTasks(VilbertTasksConfig(trunk=VILBERT))),
        text_layers("text_layers"),
    ),
    "vilbert-single-stream": (
        seeded(lambda: SingleStream(SingleStreamConfig(**SIZES, **REGIONS))),
        text_alone,
    ),
    "vl-bert": (seeded(lambda: VlBert(VLBERT)), text_layers("layers")),
    "vl-bert-body": (seeded(lambda: VlBertBody(VLBERT)), text_layers("layers")),
    "vl-bert-vqa": (
        seeded(lambda: VlBertVqa(VlBertVqaConfig(body=VLBERT_TASK, num_answers=3))),
        text_layers("layers"),
    ),
    "vl-bert-refcoco": (
        seeded(lambda: VlBertRefcoco(VlBertRefcocoConfig(body=VLBERT_TASK))),
        text_layers("layers"),
    ),
    "vl-bert-vcr": (
        seeded(lambda: VlBertVcr(VlBertVcrConfig(body=VLBERT_TASK))),
        text_layers("layers"),
    ),
}
# At the published size, each in another layout, so that every one comes up.
BASE: dict[str, tuple[Callable[[], nn.Module], TextSide, str, str]] = {
    "imagebert": (
        lambda: ImageBert(imagebert_base()).eval(),
        imagebert_text,
        "hugging-face",
        ".safetensors",
    ),
    "interbert": (
        lambda: InterBert(interbert_released()).eval(),
        text_alone,
        "original-without-prefix",
        ".safetensors",
    ),
    "vilbert": (
        lambda: Vilbert(vilbert_base()).eval(),
        text_layers("text_layers"),
        "without-prefix",
        ".bin",
    ),
    "vl-bert": (lambda: VlBert(vlbert_base()).eval(), text_layers("layers"), "original", ".bin"),
}


def vilbert_large_model() -> tuple[nn.Module, TextSide]:
    return Vilbert(vilbert_large()).eval(), text_layers("text_layers")


def vlbert_large_model() -> tuple[nn.Module, TextSide]:
    return VlBert(vlbert_large()).eval(), text_layers("layers")


def texts(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Tokens of two texts, the second shorter."""
    tokens = torch.randint(0, vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(7) < torch.tensor([[7], [4]])


def hidden_states(theirs: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """`transformers`' own."""
    states: Tensor = theirs.bert(tokens, mask.long()).last_hidden_state
    return states


def same_texts(
    model: nn.Module, text_side: TextSide, theirs: Any, vocab_size: int, atol: float = 1e-5
) -> None:
    """The text side's hidden states are those of `transformers`."""
    tokens, mask = texts(vocab_size)
    with torch.no_grad():
        ours, expected = text_side(model, tokens, mask), hidden_states(theirs, tokens, mask)
    torch.testing.assert_close(ours[mask], expected[mask], atol=atol, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", TINY)
def test_the_text_side_is_berts_in_every_layout(
    variant: str, layout: str, suffix: str, tmp_path: Path
) -> None:
    build, text_side = TINY[variant]
    theirs, model = tiny(), build()
    initialise_from_bert(model, write(theirs, tmp_path / f"bert{suffix}", layout))
    same_texts(model, text_side, theirs, 50)


@pytest.mark.parametrize("variant", stand_for(BASE, "vl-bert"))
def test_the_text_side_is_berts_at_the_published_size(variant: str, tmp_path: Path) -> None:
    build, text_side, layout, suffix = BASE[variant]
    theirs = published()
    path = write(theirs, tmp_path / f"bert{suffix}", layout)
    with torch.device("meta"):  # what BERT has no part in need not be drawn
        model = build()
    initialise_from_bert(model.to_empty(device="cpu"), path)
    same_texts(model, text_side, theirs, 30522)


@pytest.mark.long
@pytest.mark.parametrize("build", [vilbert_large_model, vlbert_large_model])
def test_the_text_side_is_berts_at_the_large_size(
    build: Callable[[], tuple[nn.Module, TextSide]], tmp_path: Path
) -> None:
    theirs = large()
    path = write(theirs, tmp_path / "bert.safetensors", "original")
    with torch.device("meta"):
        model, text_side = build()
    initialise_from_bert(model.to_empty(device="cpu"), path)
    path.unlink()  # 1.3 GB that pytest would keep
    same_texts(model, text_side, theirs, 30522, atol=2e-5)


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
        if origin.names:
            rows = len(parameter) if origin.rows is None else origin.rows
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


def test_imageberts_region_norm_is_berts_where_asked() -> None:
    state = tiny().state_dict()
    model = tiny_imagebert(image_norm_from_bert=True)
    origins = initialise_from_bert(model, state)
    assert origins["region_embedding.norm.bias"].names == ("bert.embeddings.LayerNorm.bias",)
    assert torch.equal(model.region_embedding.norm.weight, model.text_embedding.norm.weight)


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
    with pytest.raises(ValueError, match="the checkpoint has no tensor of BERT"):
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
    assert {kind.__name__ for kind in BERT_SOURCES} - {"Bert"} <= {k.__name__ for k in tested}


def new_parts(origins: dict[str, Origin]) -> set[str]:
    """The first words of the names of what nothing was taken for."""
    return {name.split(".")[0] for name, origin in origins.items() if not origin.names}


def test_vilbert_takes_its_texts_stream_and_word_head() -> None:
    origins = initialise_from_bert(Vilbert(VILBERT), tiny().state_dict())
    assert new_parts(origins) == {
        *("region_embedding", "visual_layers", "co_layers"),
        *("text_pooler", "visual_pooler", "region_head", "match_head"),
    }
    assert all(origins[name].names for name in origins if name.startswith("text_layers."))


def test_the_single_stream_takes_pooler_and_next_sentence_head_by_name() -> None:
    model = SingleStream(SingleStreamConfig(**SIZES, **REGIONS))
    origins = initialise_from_bert(model, tiny().state_dict())
    assert new_parts(origins) == {"region_embedding", "region_type", "region_head"}
    assert origins["match_head.weight"].names == ("cls.seq_relationship.weight",)


def test_interbert_runs_berts_layers_on_into_the_texts_module() -> None:
    state = tiny().state_dict()
    released = initialise_from_bert(interbert(1, 1), state)
    name = "norm.bias"
    theirs = "bert.encoder.layer.{}.attention.output.LayerNorm.bias"
    assert released[f"interaction_layers.0.{name}"].names == (theirs.format(0),)
    assert released[f"text_layers.0.{name}"].names == (theirs.format(1),)
    paper = initialise_from_bert(interbert(2, 1), state)
    assert paper[f"interaction_layers.1.{name}"].names == (theirs.format(1),)
    always_new = {"region_embedding", "visual_layers", "region_head", "match_head"}
    assert new_parts(released) == always_new | {"text_pooler", "visual_pooler"}
    assert new_parts(paper) == new_parts(released) | {"text_layers"}


def test_vlbert_takes_two_segments_and_says_how_the_rest_starts() -> None:
    origins = initialise_from_bert(VlBert(VLBERT), tiny().state_dict())
    told = {name: str(origin) for name, origin in origins.items()}
    assert told["text_embedding.segment.weight"] == (
        "bert.embeddings.token_type_embeddings.weight in rows 0 to 1, N(0, 0.02^2)"
    )
    assert told["region_vectors.projection.weight"] == "new: PyTorch's default"
    assert told["text_visual.norm.weight"] == "new: 0"
    assert told["masked_feature.weight"] == "new: 0"
    assert told["match_head.bias"] == "cls.seq_relationship.bias"
    vcr = initialise_from_bert(VlBertVcr(VlBertVcrConfig(body=VLBERT_TASK)), tiny().state_dict())
    assert str(vcr["answer_head.weight"]) == "new: Xavier's uniform distribution"
    assert str(vcr["body.region_vectors.projection.bias"]) == "new: PyTorch's default"
    assert vcr["body.pooler.dense.bias"].names == ("bert.pooler.dense.bias",)


def roberta() -> Any:
    """`transformers`' RoBERTa at the sizes of `tiny`, of which it has one segment."""
    library = transformers()
    sizes = tiny().config.to_dict() | {"type_vocab_size": 1, "pad_token_id": 1}
    sizes.pop("model_type")
    torch.manual_seed(0)
    return library.RobertaForMaskedLM(library.RobertaConfig(**sizes)).eval()


def test_vlbert_starts_from_roberta_whose_segment_serves_for_both() -> None:
    theirs = roberta()
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    config = dataclasses.replace(VLBERT, position_offset=2, matching=False, pooler=False)
    model, body = VlBert(config).eval(), VlBertBody(config)
    new_row = model.text_embedding.segment.weight[2].clone()
    origins = initialise_from_bert(model, state)
    initialise_from_bert(body, state)
    segment = state["roberta.embeddings.token_type_embeddings.weight"][0]
    rows = model.text_embedding.segment.weight
    assert torch.equal(rows[0], segment) and torch.equal(rows[1], segment)
    assert torch.equal(rows[2], new_row)
    assert all(torch.equal(row, segment) for row in body.text_embedding.segment.weight)
    assert model.mlm_head is not None
    assert torch.equal(model.mlm_head.transform.dense.bias, state["lm_head.dense.bias"])
    assert origins["layers.0.attention.out.bias"].names
    tokens = torch.randint(2, 50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    positions = model.text_embedding.position.weight[2:9]
    summed = model.text_embedding.word(tokens) + positions + rows[0]
    # RoBERTa's own epsilon is 1e-5; VL-BERT's code keeps BERT's 1e-12.
    for layer in (theirs.roberta.embeddings, *theirs.roberta.encoder.layer):
        for part in layer.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = 1e-12
    hidden = model.text_embedding.norm(summed)
    for block in model.layers:
        hidden = block(hidden, make_layout(mask, pack=False))
    expected = theirs.roberta(tokens, mask.long()).last_hidden_state
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)


def test_vlberts_own_copy_of_the_first_words_is_berts() -> None:
    config = dataclasses.replace(VLBERT, vocab_size=1100, frozen_words=True)
    model = VlBert(config)
    state = tiny(vocab_size=1100).state_dict()
    origins = initialise_from_bert(model, state)
    assert model.special_words is not None
    words = state["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(model.special_words.weight, words[:1000])
    assert str(origins["special_words.weight"]) == ("bert.embeddings.word_embeddings.weight[:1000]")


def test_vlmo_starts_from_beit_and_not_from_bert() -> None:
    with pytest.raises(ValueError, match="Vlmo does not start from BERT"):
        initialise_from_bert(Vlmo(vlmo_small()), tiny().state_dict())
