"""A network is found inside a larger checkpoint by the prefix that most of its names share."""

import pytest
import torch
from torch import Tensor

from vlmill.models.convert.names import KNOWN, canonical
from vlmill.models.convert.wrapped import unwrap_network

LAYER = "encoder.layer.0.attention.self.query.weight"
BERT = {
    "bert.embeddings.word_embeddings.weight": torch.ones(5, 2),
    f"bert.{LAYER}": torch.ones(2, 2),
    "cls.predictions.bias": torch.ones(5),
}


def prefixed(prefix: str, *more: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": t for name, t in BERT.items()} | dict.fromkeys(more, torch.ones(1))


@pytest.mark.parametrize("prefix", ["model.", "net.", "ema_model.module.", "a.b.c.d."])
@pytest.mark.parametrize("more", [(), ("criterion.weight", "optimizer.step")])
def test_the_prefix_of_most_names_is_removed(prefix: str, more: tuple[str, ...]) -> None:
    state = unwrap_network(prefixed(prefix, *more), canonical, KNOWN)
    assert state.keys() == {*BERT, *more}
    assert state["bert.embeddings.word_embeddings.weight"].shape == (5, 2)


def test_heads_stay_where_the_body_has_a_prefix_of_its_own() -> None:
    state = {f"net.{n}": t for n, t in BERT.items() if n.startswith("bert.")}
    state |= {"net.classifier.weight": torch.ones(2, 2)}
    names = unwrap_network(state, canonical, KNOWN).keys()
    assert names == {"bert.embeddings.word_embeddings.weight", f"bert.{LAYER}", "classifier.weight"}


def test_names_that_are_known_are_left_as_they_are() -> None:
    for state in (BERT, BERT | prefixed("teacher."), {LAYER: torch.ones(2, 2)}):
        assert unwrap_network(state, canonical, KNOWN) == state
    other = {f"visual.{n}": torch.ones(1) for n in range(5)}
    assert unwrap_network(other, canonical, KNOWN) == other and not unwrap_network(
        {}, canonical, KNOWN
    )


def test_a_network_and_its_average_are_not_chosen_between() -> None:
    state = prefixed("student.") | prefixed("teacher.")
    with pytest.raises(ValueError, match=r"2 times, under student. and teacher.; keep the tensors"):
        unwrap_network(state, canonical, KNOWN)
