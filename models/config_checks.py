"""Checks configurations and defines what they share; nothing here imports torch.

Each check raises ValueError with the name of the field, its value and the valid values.
"""

import dataclasses
import difflib
import math
from collections.abc import Collection, Iterable
from typing import Any, Literal

MAX_SIZE = 1 << 30  # the product of two, such as a weight's size, fits into 64 bits
INIT_STD = 0.02  # BERT, arXiv:1810.04805, released code
# Of BERT-large.
LARGE: dict[str, Any] = {
    "width": 1024,
    "num_layers": 24,
    "num_heads": 16,
    "intermediate_width": 4096,
}
# Of models of a few million parameters, for trials on a CPU.
SMALL: dict[str, Any] = {
    "vocab_size": 4000,
    "width": 192,
    "num_heads": 4,
    "intermediate_width": 768,
    "num_positions": 64,
    # Without dropout attention runs in PyTorch's fused CPU kernel, which does not support it.
    "attention_dropout": 0.0,
    # BERT's 0.02 is made for a width of 768. At 192 attention starts so uniform that ImageBERT's
    # matching stays at chance for hundreds of steps (42 pairs: R@1 at chance after 300; with 0.07,
    # 0.9).
    "init_std": 0.07,
}

# The functions of `torch.nn.functional` by our names: GELU is the exact one, with the error
# function; "swish" is x * sigmoid(x).
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu"}

Fusion = Literal["mul", "sum"]
FUSIONS: tuple[Fusion, ...] = ("mul", "sum")


def check_activation(name: str) -> None:
    """Raises ValueError for an unknown activation."""
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")


def check_fusion(fusion: str) -> None:
    """Raises ValueError for an unknown fusion."""
    if fusion not in FUSIONS:
        raise ValueError(f"fusion={fusion!r}: expected one of {', '.join(FUSIONS)}")


def check_sizes(config: Any, *, from_zero: Collection[str] = ()) -> None:
    """Checks that int fields are integers from 1 to MAX_SIZE; fields in ``from_zero`` may be 0."""
    for field in dataclasses.fields(config):
        size = getattr(config, field.name)
        if field.type is int and type(size) is not int:
            raise ValueError(f"{field.name}={size!r}: expected a whole number")
        if field.type is int and size < (0 if field.name in from_zero else 1):
            raise ValueError(f"{field.name}={size}: expected a positive number")
        if field.type is int and size > MAX_SIZE and field.name != "seed":
            raise ValueError(f"{field.name}={size}: expected at most {MAX_SIZE}")


class HeadConfig:
    """Checks the sizes and the dropout of a task's head, for configurations to derive from."""

    def __post_init__(self) -> None:
        check_sizes(self)
        check_shares(self, "dropout")


def check_text_length(config: Any) -> None:
    """Raises ValueError for texts that are longer than the table of positions."""
    if config.max_text_tokens > config.num_positions:
        raise ValueError(
            f"max_text_tokens={config.max_text_tokens}, the position table has "
            f"num_positions={config.num_positions} rows"
        )


def check_shares(config: Any, *names: str) -> None:
    """Checks that the named fields are dropout rates: at least 0 and below 1."""
    for name in names:
        share = getattr(config, name)
        if not isinstance(share, float | int) or not 0 <= share < 1:
            raise ValueError(f"{name}={share!r}: expected a share from 0 to below 1")


def check_heads(config: Any, width: str = "width", num_heads: str = "num_heads") -> None:
    """Checks that the named width is a multiple of the named number of heads."""
    if getattr(config, width) % getattr(config, num_heads):
        raise ValueError(
            f"{width}={getattr(config, width)} is not a multiple of {num_heads}="
            f"{getattr(config, num_heads)}; each head needs an equal share of the width"
        )


def check_std(config: Any, name: str = "init_std") -> None:
    """Checks that the standard deviation of new weights is positive."""
    std = getattr(config, name)
    if not isinstance(std, float | int) or not 0 < std < math.inf:
        raise ValueError(f"{name}={std!r}: expected a number above 0")


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of an error message: the known name nearest to ``name``, and all names."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? There" if close else "there"
    return f"{meant} are {', '.join(known)}"
