"""The transformer core against PyTorch's own layer, and its invariants."""

import pytest
import torch
from torch import Tensor, nn

from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.blocks import PostNormBlock, init_bert
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import MlmHead, Pooler
from vlmill.models.layers.packing import Layout, make_layout


def reference_layer(block: PostNormBlock, width: int, num_heads: int) -> nn.TransformerEncoderLayer:
    """PyTorch's post-norm layer with ``block``'s weights."""
    layer = nn.TransformerEncoderLayer(
        width,
        num_heads,
        dim_feedforward=block.feed_forward.feed_forward.up.out_features,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-12,
        batch_first=True,
        norm_first=False,
    )
    with torch.no_grad():
        for target, source in (
            (layer.self_attn.in_proj_weight, block.attention.qkv.weight),
            (layer.self_attn.in_proj_bias, block.attention.qkv.bias),
            (layer.self_attn.out_proj.weight, block.attention.out.weight),
            (layer.self_attn.out_proj.bias, block.attention.out.bias),
            (layer.linear1.weight, block.feed_forward.feed_forward.up.weight),
            (layer.linear1.bias, block.feed_forward.feed_forward.up.bias),
            (layer.linear2.weight, block.feed_forward.feed_forward.down.weight),
            (layer.linear2.bias, block.feed_forward.feed_forward.down.bias),
            (layer.norm1.weight, block.norm.weight),
            (layer.norm1.bias, block.norm.bias),
            (layer.norm2.weight, block.feed_forward.norm.weight),
            (layer.norm2.bias, block.feed_forward.norm.bias),
        ):
            target.copy_(source)
    return layer


def blocks(count: int, *, dropout: float = 0.0) -> list[PostNormBlock]:
    torch.manual_seed(0)
    made = [PostNormBlock(24, 4, 48, dropout, dropout) for _ in range(count)]
    for block in made:
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.3)
    return made


def test_three_layers_equal_pytorchs_layers_in_outputs_and_gradients() -> None:
    ours = blocks(3)
    hidden = torch.randn(2, 7, 24)
    key_mask = torch.ones(2, 7, dtype=torch.bool)
    key_mask[0, 5:] = False
    key_mask[1, 2] = False
    theirs = [reference_layer(block, 24, 4).train() for block in ours]
    mine, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    x, y = mine, other
    for block, layer in zip(ours, theirs, strict=True):
        x = block(x, make_layout(key_mask, pack=False))
        y = layer(y, src_key_padding_mask=~key_mask)
    torch.testing.assert_close(x[key_mask], y[key_mask], atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(x) * key_mask[..., None]
    (x * direction).sum().backward()  # type: ignore[no-untyped-call]
    (y * direction).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mine.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_no_mask_is_a_mask_of_true() -> None:
    (block,) = blocks(1)
    hidden = torch.randn(3, 5, 24)
    everywhere = Layout((3, 5), torch.ones(3, 5, dtype=torch.bool))
    torch.testing.assert_close(block(hidden, Layout((3, 5))), block(hidden, everywhere))


def test_masked_positions_change_nothing_else() -> None:
    (block,) = blocks(1)
    hidden = torch.randn(2, 6, 24)
    key_mask = torch.tensor([[True, True, True, False, False, False]] * 2)
    other = hidden.clone()
    other[~key_mask] = 1e4
    layout = make_layout(key_mask, pack=False)
    assert torch.equal(block(hidden, layout)[key_mask], block(other, layout)[key_mask])


def test_dropout_acts_in_training_only() -> None:
    (block,) = blocks(1, dropout=0.5)
    hidden = torch.randn(1, 4, 24)
    layout = Layout((1, 4))
    assert not torch.equal(block(hidden, layout), block(hidden, layout))
    block.eval()
    assert torch.equal(block(hidden, layout), block(hidden, layout))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width 10 is not a multiple of num_heads 4"):
        SelfAttention(10, 4, 0.0)


def layer_norm(x: Tensor) -> Tensor:
    """By the formula, with weight 1 and bias 0."""
    return (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()


def test_text_embedding_by_hand() -> None:
    embed = TextEmbedding(10, 6, 2, 8, dropout=0.0)
    tokens = torch.tensor([[3, 3, 9]])
    expected = torch.stack(
        [
            embed.word.weight[token] + embed.position.weight[place] + embed.segment.weight[1]
            for place, token in enumerate([3, 3, 9])
        ]
    )
    torch.testing.assert_close(embed(tokens, 1)[0], layer_norm(expected))


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens has 7 positions, the position table 6"):
        TextEmbedding(10, 6, 2, 8, 0.0)(torch.zeros(1, 7, dtype=torch.int64))


def test_region_embedding_by_hand() -> None:
    embed = RegionEmbedding(6, 8, dropout=0.0)
    features, locations, offset = torch.randn(1, 2, 6), torch.rand(1, 2, 5), torch.randn(8)
    summed = features @ embed.feature.weight.T + embed.feature.bias
    summed = summed + locations @ embed.location.weight.T + embed.location.bias + offset
    torch.testing.assert_close(embed(features, locations, offset), layer_norm(summed))


def test_region_projections_are_normalised_first_where_asked() -> None:
    embed = RegionEmbedding(6, 8, dropout=0.0, pre_norm=True)
    features, locations, offset = torch.randn(1, 2, 6), torch.rand(1, 2, 5), torch.randn(8)
    summed = layer_norm(embed.feature(features)) + layer_norm(embed.location(locations)) + offset
    torch.testing.assert_close(embed(features, locations, offset), layer_norm(summed))


def test_features_of_another_width_are_refused() -> None:
    embed = RegionEmbedding(6, 8, dropout=0.0)
    with pytest.raises(ValueError, match="region_features are 7 wide, the model takes 6"):
        embed(torch.zeros(1, 2, 7), torch.zeros(1, 2, 5), torch.zeros(8))


def test_mlm_head_decodes_with_the_word_table() -> None:
    head, table = MlmHead(8, 20), torch.randn(20, 8)
    nn.init.normal_(head.bias)
    hidden = torch.randn(5, 8)
    inner = layer_norm(nn.functional.gelu(head.transform.dense(hidden)))
    torch.testing.assert_close(head(hidden, table), inner @ table.T + head.bias)
    assert head(hidden[:0], table).shape == (0, 20)  # no labelled word in the batch


def test_pooler_is_bounded() -> None:
    assert Pooler(8)(torch.randn(3, 8) * 100).abs().max() <= 1


def test_initialisation_is_berts() -> None:
    torch.manual_seed(0)
    table, linear, norm = nn.Embedding(200, 100), nn.Linear(100, 200), nn.LayerNorm(200)
    module = nn.Sequential(table, linear, norm)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 5, 6)
    init_bert(module)
    for weight in (table.weight, linear.weight):
        assert abs(weight.mean()) < 1e-3  # 0.02 / sqrt(20000) = 1.4e-4
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert (linear.bias == 0).all()
    assert (norm.weight == 1).all() and (norm.bias == 0).all()
