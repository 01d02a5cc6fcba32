"""BERT's classifier against `transformers`', its vectors of texts; classifiers of texts alone."""

import pytest
import torch
from tests.models.bert.test_model import texts
from tests.models.bert_files import tiny, transformers
from tests.models.interbert.test_model import tiny_config as interbert_config
from tests.models.vlmo.test_model import tiny_config as vlmo_config
from torch import nn

from vlmill.models.bert.config import BertConfig, BertTextConfig
from vlmill.models.bert.tasks import BertText
from vlmill.models.from_bert import initialise_from_bert
from vlmill.models.interbert.config import InterBertTextConfig
from vlmill.models.interbert.tasks import InterBertText
from vlmill.models.vlmo.config import VlmoTextConfig
from vlmill.models.vlmo.tasks import VlmoForText

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
