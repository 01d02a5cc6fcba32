"""Keeps the moving average of a model's weights (InterBERT's fine-tuning; rate 0.9999 there)."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vlmill.train.devices.foreach import lerp_
from vlmill.train.devices.gather import laid_out_like


class MovingAverage:
    """Keeps an average that follows a model's weights: shadow <- rate shadow + (1 - rate) weight.

    It starts as a copy of the weights and is not corrected for that. It follows the parameters
    called ``names``, or the parameters that are trained when it is made. A stage that freezes some
    of them changes nothing here: the average of a constant weight still converges to it.
    """

    def __init__(self, model: nn.Module, rate: float, names: Container[str] | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"rate={rate}: expected a number from 0 to 1")
        self.rate = rate
        self.shadow = {
            name: p.detach().clone()
            for name, p in model.named_parameters()
            if (p.requires_grad if names is None else name in names)
        }

    def follow(self, model: nn.Module) -> None:
        """Moves the average to the model's device, and shards it among processes like the model."""
        for name, parameter in self._followed(model):
            self.shadow[name] = laid_out_like(self.shadow[name], parameter.detach())

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Updates the average with the weights after an optimiser's step."""
        weights = [p.detach() for _, p in self._followed(model)]
        lerp_(list(self.shadow.values()), weights, 1 - self.rate)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Loads the average's weights into the model within the context, then restores its own."""
        weights = {name: p.detach().clone() for name, p in self._followed(model)}
        self._put(model, self.shadow)
        try:
            yield
        finally:
            self._put(model, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the average by parameter name."""
        return dict(self.shadow)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the state from :meth:`state_dict`. Raises ValueError for other names."""
        if strange := sorted(set(state) ^ set(self.shadow)):
            raise ValueError(
                f"the moving average belongs to another model; different: {', '.join(strange[:5])}"
            )
        for name, value in state.items():
            self.shadow[name].copy_(value)

    def _followed(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns the model's parameters in the order of ``shadow``."""
        parameters = dict(model.named_parameters())
        return ((name, parameters[name]) for name in self.shadow)

    @torch.no_grad()
    def _put(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._followed(model):
            parameter.copy_(weights[name])
