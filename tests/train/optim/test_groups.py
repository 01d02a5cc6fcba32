import pytest
import torch
from accelerate import Accelerator
from tests.models.vlmo.test_model import tiny_config
from torch import Tensor, nn

from vlmill.models import VARIANTS, preset
from vlmill.models.beit.model import Beit
from vlmill.models.layers.attention import SelfAttention
from vlmill.models.published import FAMILIES
from vlmill.models.vlmo.config import text_stage
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.optim.adam import BertAdam, TransformersAdamW
from vlmill.train.optim.groups import is_decayed, is_trained, make_optimizer, names_from_bert
from vlmill.train.recipes import Optimizer, recipe_named
from vlmill.train.run.snapshot import restore_training_state, training_state


def test_kinds_of_optimizers_and_groups() -> None:
    model = nn.Linear(2, 3)
    made = make_optimizer(
        model.named_parameters(),
        Optimizer(lr=1.0, kind="bert-adam", decay="inverted", bert_rate=0.1),
        from_bert={"weight"},
    )
    assert isinstance(made, BertAdam)
    groups = {tuple(g["names"]): (g["lr"], g["weight_decay"]) for g in made.param_groups}
    assert groups == {("weight",): (0.1, 0.0), ("bias",): (1.0, 0.01)}
    other = make_optimizer(
        model.named_parameters(), Optimizer(lr=1.0, kind="transformers-adamw", decay="everything")
    )
    assert isinstance(other, TransformersAdamW)
    assert [g["weight_decay"] for g in other.param_groups] == [0.01]


def test_heads_have_a_rate_of_their_own_and_sgd_decays_in_the_gradient() -> None:
    model = nn.Sequential()
    model.body, model.answer_head = nn.Linear(2, 2), nn.Linear(2, 2)
    settings = Optimizer(lr=4e-5, heads=("answer_head.",), head_rate=2.5, weight_decay=0.0)
    groups = make_optimizer(model.named_parameters(), settings).param_groups
    rates = {name: group["lr"] for group in groups for name in group["names"]}
    assert rates == {
        name: pytest.approx(1e-4 if "head" in name else 4e-5)
        for name, _ in model.named_parameters()
    }
    weight = nn.Parameter(torch.ones(1, 1))
    settings = Optimizer(lr=0.1, kind="sgd", momentum=0.5, weight_decay=0.2)
    sgd = make_optimizer([("weight", weight)], settings)
    value, velocity = 1.0, 0.0
    for _ in range(3):
        weight.grad = torch.full((1, 1), 2.0)
        sgd.step()
        velocity = 0.5 * velocity + 2.0 + 0.2 * value
        value -= 0.1 * velocity
        assert weight.item() == pytest.approx(value)


def scripts_decay(name: str) -> bool:
    """The scripts of ViLBERT and InterBERT, on their names, with a checkpoint to start from."""
    return any(part in name for part in ("bias", "LayerNorm.bias", "LayerNorm.weight"))


@pytest.mark.parametrize("name", ["vilbert-small", "interbert-small"])
def test_the_inverted_decay_is_that_of_the_scripts(name: str) -> None:
    """Tensor by tensor, the parts of joined ones each; co-attention's norms have other names."""
    model = VARIANTS[name.removesuffix("-small")].model(preset(name))
    links = FAMILIES[name.removesuffix("-small")].links(model)
    theirs = {link.name: link.references for link in links}
    for ours, parameter in model.named_parameters():
        decays = {scripts_decay(part) for part in theirs[ours]}
        assert decays == {is_decayed(ours, parameter, "inverted")}, (ours, theirs[ours])


@pytest.mark.parametrize("name", ["vilbert-small", "vilbert-single-stream", "interbert-small"])
def test_a_share_of_the_rate_is_for_the_embeddings_and_layers_of_bert(name: str) -> None:
    """The scripts' list: five tensors of embeddings and sixteen a layer, as they name them."""
    variant = name.removesuffix("-small")
    with torch.device("meta"):
        model = VARIANTS[variant].model(preset(name))
    names = names_from_bert(model)
    layers = [n for n in names if n.startswith(("text_layers.", "interaction_layers.", "layers."))]
    assert len(names) - len(layers) == 5 and all(
        n.startswith("text_embedding.") for n in names.difference(layers)
    )
    # Six joined tensors fewer: weights and biases of query, key and value are one each.
    text_layers = [getattr(model, part, ()) for part in PARTS_FROM_BERT]
    assert len(layers) == (16 - 4) * sum(map(len, text_layers))


PARTS_FROM_BERT = ("text_layers", "interaction_layers", "layers")


def test_query_key_and_value_are_clipped_each_for_itself() -> None:
    """As in the codes, where they are three tensors: a large key leaves the queries as they are."""
    layer = SelfAttention(4, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    weight = layer.qkv.weight
    assert weight.grad is not None
    weight.grad[4:8] = 100.0
    settings = Optimizer(lr=1.0, kind="bert-adam")
    make_optimizer(layer.named_parameters(), settings).step()
    assert torch.equal(weight.grad[:4], torch.full((4, 4), 0.01))
    assert torch.equal(weight.grad[8:], torch.full((4, 4), 0.01))
    torch.testing.assert_close(weight.grad[4:8].norm(), torch.tensor(1.0))


def test_which_vectors_are_decayed() -> None:
    weight, bias = torch.zeros(1, 1), torch.zeros(1)
    for decay, decayed in (("matrices", (1, 0)), ("inverted", (0, 1)), ("everything", (1, 1))):
        assert is_decayed("x.dense.weight", weight, decay) == bool(decayed[0])
        assert is_decayed("x.dense.bias", bias, decay) == bool(decayed[1])
        assert is_decayed("x.norm.weight", bias, decay) == bool(decayed[1])


def vlmo_decays(name: str, parameter: Tensor) -> bool:
    """VLMo's code, on its names: parts of names decide.

    The table of relative positions ("bias") is exempt; the experts' norms ("norm2_text.weight") and
    the scales of layers are not.
    """
    exempt = ("bias", "LayerNorm.weight", "norm.weight", "norm1.weight", "norm2.weight")
    return not any(part in name for part in exempt)


def beit_decays(name: str, parameter: Tensor) -> bool:
    """BEiT's code, on its names: no decay on vectors, positions and the class token."""
    return parameter.ndim > 1 and not name.endswith((".bias", "pos_embed", "cls_token"))


def test_vlmo_and_beit_are_decayed_as_in_their_codes() -> None:
    """On our names what the rules on the released names say, tensor by tensor."""
    sizes = {"width": 8, "num_layers": 2, "num_heads": 2, "intermediate_width": 8}
    positions = {"image_size": 32, "absolute_positions": True}
    vlmo = Vlmo(preset("vlmo-base", vocab_size=9, first_vl_layer=1, **sizes, **positions))
    beit = Beit(preset("beit-base", num_visual_tokens=5, **sizes, **positions))
    for family, model, rule in (("vlmo", vlmo, vlmo_decays), ("beit", beit, beit_decays)):
        links = FAMILIES[family].links(model)
        theirs = {link.name: link.references[0] for link in links}
        for name, parameter in model.named_parameters():
            decays = rule(theirs[name], parameter)
            assert is_decayed(name, parameter, family) == decays, (name, theirs[name])


def test_biases_and_layer_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(4, 3))
    optimizer = make_optimizer(model.named_parameters(), Optimizer(lr=1e-3))
    decayed, others = optimizer.param_groups
    assert [p.shape for p in decayed["params"]] == [(3, 2), (4, 3)]
    assert {tuple(p.shape) for p in others["params"]} == {(3,)}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert (decayed["betas"], decayed["eps"]) == ((0.9, 0.999), 1e-6)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.rand(4, 2)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = make_optimizer(model.named_parameters(), Optimizer(lr=1e-2))
    step(model, optimizer)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    state = {k: v.clone() for k, v in training_state(model, optimizer, Accelerator()).items()}
    step(model, optimizer)
    expected = model.weight.detach().clone()
    again = nn.Linear(2, 3)
    again.load_state_dict(weights)
    other = make_optimizer(again.named_parameters(), Optimizer(lr=1e-2))
    restore_training_state(again, other, state, Accelerator())
    step(again, other)
    assert torch.equal(again.weight, expected)


def test_the_text_stage_trains_what_the_released_code_does() -> None:
    model = Vlmo(text_stage(tiny_config()))
    assert model.config.max_text_tokens == 9 and not model.config.match
    (stage,) = recipe_named("vlmo-texts-base").stages
    names = [name for name, _ in model.named_parameters()]
    trained = {name for name in names if is_trained(name, stage)}
    assert "encoder.relative.table" in trained and "encoder.norm.weight" in trained
    assert "encoder.layers.0.experts.text.up.weight" in trained
    assert "encoder.layers.0.expert_norms.text.bias" in trained
    assert {"mlm_head.bias", "mlm_decoder.weight", "encoder.type_table.weight"} <= trained
    for part in ("attention", "experts.image", "expert_norms.image", "pooler", "patch_embedding"):
        assert not [name for name in trained if part in name]
