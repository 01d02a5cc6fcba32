"""BERT on our core against `transformers`' BERT: every layout of its files, outputs, gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config
from tests.models.bert_files import LAYOUTS, published, tiny, transformers, write
from tests.models.interbert.test_model import tiny_config as interbert_config
from tests.models.vlmo.test_model import tiny_config as vlmo_config
from torch import Tensor, nn

from vlmill.models import preset
from vlmill.models.bert.config import BertConfig, BertTextConfig, bert_base, bert_large, bert_small
from vlmill.models.bert.model import Bert, BertText
from vlmill.models.bert.published import links
from vlmill.models.convert.keymap import export_state
from vlmill.models.from_bert import initialise_from_bert
from vlmill.models.interbert.config import InterBertTextConfig
from vlmill.models.interbert.model import InterBertText
from vlmill.models.published import export_reference, load_reference, read_reference
from vlmill.models.vlmo.config import VlmoTextConfig
from vlmill.models.vlmo.tasks import VlmoForText


def texts(vocab_size: int = 50, batch: int = 3, length: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, a mask with padding in two of three, and segments."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab_size, (batch, length), generator=generator)
    lengths = torch.tensor([length, max(1, length // 2), 1])[:batch]
    mask = torch.arange(length) < lengths[:, None]
    return tokens, mask, torch.randint(0, 2, (batch, length), generator=generator)


def count(sizes: BertConfig, *heads: str) -> int:
    """Parameters without those of the named parts."""
    with torch.device("meta"):
        model = Bert(sizes)
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith(heads))


def test_published_sizes() -> None:
    heads = ("mlm_head.", "next_sentence_head.")
    assert count(bert_base(), *heads) == 109_482_240
    assert count(bert_large(), *heads) == 335_141_888
    # With its heads, whose decoder is the word table: 110,106,428 (transformers' number).
    assert count(bert_base(), "none") == 110_106_428
    assert 2_000_000 < count(bert_small(), "none") < 6_000_000


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_transformers_hidden_states(
    layout: str, suffix: str, tmp_path: Path
) -> None:
    theirs = tiny()
    path = write(theirs, tmp_path / f"bert{suffix}", layout)
    (tmp_path / "config.json").write_text(json.dumps(theirs.config.to_dict()))
    ours, table = read_reference("bert", path, tmp_path / "config.json")
    tokens, mask, segments = texts()
    output = ours(tokens, mask, segments, pack=False)
    expected = theirs.bert(tokens, mask.long(), segments)
    torch.testing.assert_close(output.text, expected.last_hidden_state, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output.pooled, expected.pooler_output, atol=1e-6, rtol=1e-6)
    without_heads = "without-prefix" in layout
    assert bool(table.missing) == without_heads and not table.unexpected
    assert all(name.startswith(("mlm_head", "next_sentence")) for name in table.missing)


@pytest.mark.parametrize("kind", ["BertModel", "BertForPreTraining", "BertForMaskedLM"])
def test_folders_that_transformers_saves_are_read(kind: str, tmp_path: Path) -> None:
    library = transformers()
    sizes: dict[str, Any] = tiny().config.to_dict()
    theirs = getattr(library, kind)(library.BertConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_reference("bert", tmp_path / "model.safetensors", tmp_path / "config.json")
    tokens, mask, segments = texts()
    expected = theirs(tokens, mask.long(), segments, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(
        ours(tokens, mask, segments, pack=False).text, expected, atol=1e-6, rtol=1e-6
    )


def test_heads_and_gradients_are_transformers() -> None:
    theirs = tiny()
    ours: Any = load_reference("bert", theirs.state_dict(), theirs.config.to_dict())
    tokens, mask, segments = texts()
    labels = torch.where(mask, tokens, -100)
    follows = torch.tensor([0, 1, 1])
    expected = theirs(tokens, mask.long(), segments, labels=labels, next_sentence_label=follows)
    expected.loss.backward()
    output = ours(tokens, mask, segments)
    words = torch.nn.functional.cross_entropy(ours.mlm_logits(output.text[mask]), tokens[mask])
    pairs = ours.next_sentence_logits(output.pooled)
    torch.testing.assert_close(pairs, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    loss = words + torch.nn.functional.cross_entropy(pairs, follows)
    torch.testing.assert_close(loss, expected.loss, atol=1e-6, rtol=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    exported = export_state(gradients, links(ours))
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(exported[name], parameter.grad, atol=2e-6, rtol=1e-4)


def test_the_round_trip_keeps_every_key_and_bit() -> None:
    state = tiny().state_dict()
    ours = load_reference("bert", state, tiny().config.to_dict())
    exported = export_reference("bert", ours)
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in state.items())


def test_packing_changes_no_real_position() -> None:
    torch.manual_seed(0)
    model = Bert(bert_small(vocab_size=50, width=24, intermediate_width=48)).eval()
    tokens, mask, segments = texts()
    packed, padded = model(tokens, mask, segments), model(tokens, mask, segments, pack=False)
    torch.testing.assert_close(packed.text[mask], padded.text[mask], atol=1e-6, rtol=1e-6)
    assert not packed.text[~mask].any()


@pytest.mark.parametrize("layout", ["original"])
def test_the_published_size_gives_transformers_hidden_states(layout: str, tmp_path: Path) -> None:
    theirs = published()
    path = write(theirs, tmp_path / "pytorch_model.bin", layout)
    ours = load_reference("bert", path, theirs.config.to_dict())
    tokens, mask, segments = texts(30522, batch=2, length=12)
    with torch.no_grad():
        output = ours(tokens, mask, segments)
        expected = theirs.bert(tokens, mask.long(), segments)
    torch.testing.assert_close(
        output.text[mask], expected.last_hidden_state[mask], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(output.pooled, expected.pooler_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("published_config", "message"),
    [
        ({"model_type": "roberta", "hidden_size": 768}, "model_type='roberta'"),
        ({"hidden_size": 768, "layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05"),
        ({}, "no hidden_size"),
        ({"hidden_size": 70}, "width=70 is not a multiple of num_heads=12"),
        ({"hidden_size": 768, "hidden_act": "gelu_new"}, "no activation 'gelu_new'"),
    ],
)
def test_other_configurations_are_refused(published_config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_reference("bert", {"x": torch.zeros(1)}, published_config)


def test_what_does_not_fit_is_told() -> None:
    theirs = tiny()
    with pytest.raises(ValueError, match=r"word.weight is \[60, 24\] here, \[50, 24\]"):
        load_reference("bert", theirs.state_dict(), theirs.config.to_dict() | {"vocab_size": 60})


def test_masks_and_texts_that_do_not_fit_are_refused() -> None:
    model = Bert(bert_small())
    tokens, mask = torch.zeros(1, 65, dtype=torch.int64), torch.ones(1, 65, dtype=torch.bool)
    with pytest.raises(ValueError, match="tokens has 65 positions, the position table 64"):
        model(tokens, mask)
    config.update("jaxtyping_disable", True)  # the tests' own checks would come before ours
    try:
        with pytest.raises(ValueError, match=r"token_mask has shape \(1, 3\), tokens \(1, 2\)"):
            model(tokens[:, :2], mask[:, :3])
    finally:
        config.update("jaxtyping_disable", False)


def test_presets() -> None:
    assert preset("bert-large", num_layers=2) == bert_large(num_layers=2)


SIZES = BertConfig(
    vocab_size=50, width=24, num_layers=2, num_heads=4, intermediate_width=48, num_positions=12
)


@torch.inference_mode()
def test_logits_are_those_of_transformers() -> None:
    theirs = tiny()
    library = transformers()
    config = library.BertConfig(**theirs.config.to_dict() | {"num_labels": 3})
    whole = library.BertForSequenceClassification(config).eval()
    whole.bert.load_state_dict(theirs.bert.state_dict())
    ours = BertText(BertTextConfig(trunk=SIZES, num_labels=3)).eval()
    initialise_from_bert(ours, theirs.state_dict())
    ours.head.load_state_dict(whole.classifier.state_dict())
    tokens, mask, segments = texts()
    expected = whole(input_ids=tokens, attention_mask=mask, token_type_ids=segments).logits
    torch.testing.assert_close(ours(tokens, mask, segments), expected, atol=1e-5, rtol=1e-4)


MODELS: dict[str, nn.Module] = {
    "bert": BertText(BertTextConfig(trunk=SIZES, num_labels=2)),
    "interbert": InterBertText(InterBertTextConfig(trunk=interbert_config(), num_labels=2)),
    "vlmo": VlmoForText(VlmoTextConfig(encoder=vlmo_config(), num_labels=2)),
}


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_padding_of_texts_changes_nothing(name: str) -> None:
    model = MODELS[name].eval()
    tokens, mask, _ = texts(vocab_size=20, length=6)
    whole = model(tokens, mask)
    real = mask.flatten().nonzero()[:, 0]
    torch.testing.assert_close(model(tokens, mask, real=real), whole)
    torch.testing.assert_close(model(tokens, mask, pack=False), whole, atol=1e-5, rtol=1e-4)
    alone = model(tokens[1:2, :3], mask[1:2, :3])
    torch.testing.assert_close(alone, whole[1:2], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_vectors_of_texts_are_the_mean_of_their_words() -> None:
    trunk = BertText(BertTextConfig(trunk=SIZES, num_labels=2)).eval().trunk
    tokens, mask, _ = texts()
    vectors = trunk.text_vectors(tokens, mask)
    hidden = trunk(tokens[1:2, :4], mask[1:2, :4]).text[0].mean(0)
    torch.testing.assert_close(vectors[1], hidden / hidden.norm(), atol=1e-5, rtol=1e-4)
