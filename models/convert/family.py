"""Defines the description of a family of published checkpoints, in a separate file for imports."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from vlmill.models.convert.keymap import Link


class Family(NamedTuple):
    """Describes how to convert one repository's checkpoints to vlmill models, and back.

    configs: the configuration classes of the models. configure: converts the repository's
    configuration (a mapping with its keys). build: builds a model from such a configuration. links:
    matches the model's tensors with the repository's. prepare: renames tensors of other layouts in
    use. ignored: patterns of names that are not loaded. fit: converts tensors of another resolution
    or length to the model's; raises ValueError if that is impossible. build_buffers: tensors that
    the repository stores and the model does not, because they follow from its sizes (position ids);
    they are exported with the weights. sizes: the configuration inferred from a state dict, if the
    state dict determines all of it.
    """

    configs: tuple[type[Any], ...]
    configure: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    links: Callable[[nn.Module], list[Link]]
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    ignored: tuple[str, ...] = ()
    fit: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] = lambda state, model: state
    build_buffers: Callable[[nn.Module], dict[str, Tensor]] = lambda model: {}
    sizes: Callable[[Mapping[str, Tensor]], Any] | None = None
