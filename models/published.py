"""Loads and exports published checkpoints in the layouts of the official repositories."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vlmill.models.config_checks import nearest
from vlmill.models.convert.files import read_state, unwrap_network, unwrap_state
from vlmill.models.convert.keymap import (
    CheckpointMismatch,
    Family,
    Link,
    LoadTable,
    export_state,
    import_state,
    list_references,
)
from vlmill.models.registry import PAPERS
from vlmill.schemas.plain_json import read_json

FAMILIES: dict[str, Family] = {
    name: family for paper in PAPERS for name, family in paper.networks().families.items()
}


def read_reference(
    family: str, source: Mapping[str, Any] | str | Path, config: Any = None
) -> tuple[nn.Module, LoadTable]:
    """Returns a model with a published checkpoint's weights, in evaluation mode, and a table of
    them.

    family: a name of `FAMILIES`. source: a state dict, or the path of a ``.safetensors`` or PyTorch
    file; nothing in a file is executed. config: ours, or the repository's own as a mapping or the
    path of its JSON; None for family ``dvae``, whose weights determine it. Parameters that the
    checkpoint lacks keep their initial values and are in the table.

    Raises CheckpointMismatch (a ValueError) if a shape differs or no tensor matches, ValueError for
    an unknown family, another family's or an inconsistent configuration or an unreadable file, and
    FileNotFoundError.
    """
    parts = _family(family)
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    model = parts.build(_configuration(family, config, parts.prepare(state))).eval()
    links = parts.links(model)
    state = unwrap_network(state, parts.prepare, list_references(links))
    state = parts.fit(parts.prepare(state), model)
    table = import_state(model, links, state, ignored=parts.ignored)
    if table.mismatched:
        raise CheckpointMismatch(
            f"{len(table.mismatched)} tensors of the checkpoint have other shapes than this "
            f"{family} configuration; give the configuration that belongs to it",
            table,
        )
    if not table.loaded:
        raise CheckpointMismatch(f"the checkpoint has no tensor of {family}", table)
    return model, table


def find_family(config: Any) -> str | None:
    """Returns the family that publishes models of this configuration; None without one."""
    return next((name for name, parts in FAMILIES.items() if type(config) in parts.configs), None)


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"no family {name!r}; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def _configuration(family: str, config: Any, state: Mapping[str, Tensor]) -> Any:
    """Returns our configuration, from the published one or, if they determine it, the weights."""
    parts = FAMILIES[family]
    if isinstance(config, str | Path):
        config = _published(Path(config))
    if isinstance(config, Mapping):
        _expect_unquoted(config)
        try:
            config = parts.configure(config)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"config is not a configuration of {family}: {error!r}") from None
    if config is None and parts.sizes is not None:
        return parts.sizes(state)
    if not isinstance(config, parts.configs):
        names = ", ".join(kind.__name__ for kind in parts.configs)
        raise ValueError(
            f"config is a {type(config).__name__}; family {family} expects {names}, or the "
            "repository's own configuration as a mapping or the path of its JSON"
        )
    return config


def _expect_unquoted(config: Mapping[str, Any]) -> None:
    """Raises ValueError for an integer or a Boolean that is written as text.

    Networks' settings have lower-case names, except for the two headings above VL-BERT's; its other
    settings contain numbers as texts.
    """
    for key, value in config.items():
        if isinstance(value, Mapping) and key.lower() in ("network", "vlbert"):
            _expect_unquoted(value)
        is_number = isinstance(value, str) and re.fullmatch(r"-?\d+|true|false", value.lower())
        if is_number and key.islower():
            raise ValueError(f"config: {key}={value!r} is a string; write it without quotes")


def _published(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"config={path}: no such file; for a preset, give preset({path})")
    try:
        return read_json(path)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"config={path} is not JSON ({error}); load YAML and give the mapping"
        ) from None


def load_reference(
    family: str, state_dict_or_path: Mapping[str, Any] | str | Path, config: Any = None
) -> nn.Module:
    """Returns the model of `read_reference` without the table."""
    return read_reference(family, state_dict_or_path, config)[0]


def export_reference(
    family: str, model: nn.Module, *, without: Collection[str] = ()
) -> dict[str, Tensor]:
    """Returns the weights of ``model`` under the official repository's names.

    ``without``: trained tensors of ours that may be omitted. Raises ValueError for an unknown
    family, for other tensors that the layout lacks, and for a name in ``without`` that is not such
    a tensor.
    """
    parts = _family(family)
    links, tensors = parts.links(model), model.state_dict()
    homeless = tensors.keys() - {link.name for link in links}
    if missing := sorted(homeless - set(without)):
        raise ValueError(
            f"the layout of {family} has no key for {', '.join(missing)}; exclude them "
            ""
            "by name if the reader does not need them"
        )
    if placed := sorted(set(without) - homeless):
        raise ValueError(
            f"{placed[0]} cannot be excluded: only tensors without a key in the layout "
            ""
            f"of {family} can ({', '.join(sorted(homeless)) or 'nothing'})"
        )
    return export_state(tensors, links) | parts.build_buffers(model)


__all__ = [
    "FAMILIES",
    "CheckpointMismatch",
    "Family",
    "Link",
    "LoadTable",
    "export_reference",
    "find_family",
    "load_reference",
    "read_reference",
]
