"""Compiles each block of a model separately, with graphs that the blocks share."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch.fx.experimental import _config as fx_config

from vlmill.models.layers.experts import DropPath
from vlmill.models.layers.packing import Layout
from vlmill.train.devices.setup import BLOCKS

RECOMPILE_LIMIT = 32  # a block's code is shared by layers of several widths and routes


class TensorDropPath(DropPath):
    """Drop path whose rate is in a tensor.

    A rate that is a Python number becomes a constant of the graph, and every layer has another one.
    """

    keep_probability: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.drops = rate > 0
        self.register_buffer("keep_probability", torch.tensor(1.0 - rate), persistent=False)

    def forward(self, hidden: Tensor, layout: Layout, rows: slice) -> Tensor | None:
        """Returns the factors of a branch, as `DropPath` does."""
        if not self.training or not self.drops:
            return None
        probabilities = self.keep_probability.expand(layout.shape[0])
        keep = (torch.bernoulli(probabilities) / self.keep_probability).to(hidden.dtype)
        sequence_index = layout.sequence_of_rows()
        return keep[:, None, None] if sequence_index is None else keep[sequence_index[rows], None]


def compile_blocks(model: nn.Module, *, tiny: bool) -> None:
    """Compiles the model's blocks in place, for batches of all sizes.

    At tiny size the blocks are only traced: generating code takes minutes on a CPU.
    """
    options = {"backend": "aot_eager"} if tiny else {}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath):
                setattr(module, name, TensorDropPath(child.rate))
    for module in model.modules():
        if isinstance(module, BLOCKS):
            module.compile(dynamic=True, **options)


@contextmanager
def compiler_settings() -> Iterator[None]:
    """Sets what the compiled blocks need while they run.

    Sizes that are equal by chance in the first batch stay two sizes.
    """
    with (
        fx_config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        dynamo_config.patch(recompile_limit=RECOMPILE_LIMIT),
    ):
        yield
