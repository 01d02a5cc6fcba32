"""What a family of published checkpoints is; a file of its own, for families import it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from vlmill.models.convert.keymap import Link


class Family(NamedTuple):
    """Says how one repository's checkpoints become a model of ours, and back.

    configs: the classes of our configurations. configure: the repository's own configuration (a
    mapping with its keys) as ours. build: a model of such a configuration. links: which of the
    model's tensors is which of theirs. prepare: renames what a layout met in the wild calls
    otherwise. ignored: patterns of names that carry nothing to load. fit: brings tensors of another
    resolution or length to the model's; raises ValueError where that is impossible. rebuilt: what
    the repository stores and the model has no tensor for, because it follows from its sizes
    (position ids); exported beside the weights.
    sizes: the configuration that a state dict tells by itself, where it tells all.
    """

    configs: tuple[type[Any], ...]
    configure: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    links: Callable[[nn.Module], list[Link]]
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    ignored: tuple[str, ...] = ()
    fit: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] = lambda state, model: state
    rebuilt: Callable[[nn.Module], dict[str, Tensor]] = lambda model: {}
    sizes: Callable[[Mapping[str, Tensor]], Any] | None = None
