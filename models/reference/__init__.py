"""Published checkpoints in the layouts of the official repositories, in and out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vlmill.models.reference.beit import BEIT
from vlmill.models.reference.bert import BERT
from vlmill.models.reference.dvae import DVAE
from vlmill.models.reference.family import Family
from vlmill.models.reference.files import read_state, unwrapped
from vlmill.models.reference.interbert import INTERBERT
from vlmill.models.reference.keymap import (
    CheckpointMismatch,
    Link,
    LoadTable,
    export_state,
    import_state,
)
from vlmill.models.reference.vilbert import VILBERT
from vlmill.models.reference.vlbert import VLBERT
from vlmill.models.reference.vlmo import VLMO

FAMILIES: dict[str, Family] = {
    "beit": BEIT,
    "bert": BERT,
    "dvae": DVAE,
    "interbert": INTERBERT,
    "vilbert": VILBERT,
    "vl-bert": VLBERT,
    "vlmo": VLMO,
}


def read_reference(
    family: str, source: Mapping[str, Any] | str | Path, config: Any
) -> tuple[nn.Module, LoadTable]:
    """A model with a published checkpoint's weights, in evaluation mode, and what became of them.

    family: a name of `FAMILIES`. source: a state dict, or the path of a ``.safetensors`` or
    PyTorch file; nothing in a file is executed. config: ours, or the repository's own as a mapping
    or the path of its JSON. What the checkpoint lacks stays as initialised and is in the table.

    Raises CheckpointMismatch (a ValueError) if a shape differs or nothing fits, ValueError for an
    unknown family, a configuration that does not hold together or an unreadable file, and
    FileNotFoundError.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
    parts = FAMILIES[family]
    if isinstance(config, str | Path):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    if isinstance(config, Mapping):
        config = parts.configure(config)
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrapped(source)
    model = parts.build(config).eval()
    state = parts.fit(parts.prepare(state), model)
    table = import_state(model, parts.links(model), state, ignored=parts.ignored)
    if table.mismatched:
        raise CheckpointMismatch(
            f"{len(table.mismatched)} tensors of the checkpoint have other shapes than this "
            f"{family} configuration; give the configuration that belongs to it",
            table,
        )
    if not table.loaded:
        raise CheckpointMismatch(f"nothing in the checkpoint is {family}'s", table)
    return model, table


def load_reference(
    family: str, state_dict_or_path: Mapping[str, Any] | str | Path, config: Any
) -> nn.Module:
    """`read_reference` without the table."""
    return read_reference(family, state_dict_or_path, config)[0]


def export_reference(family: str, model: nn.Module) -> dict[str, Tensor]:
    """The weights of ``model`` under the official repository's names.

    Raises ValueError for an unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
    parts = FAMILIES[family]
    return export_state(model.state_dict(), parts.links(model)) | parts.rebuilt(model)


__all__ = [
    "FAMILIES",
    "CheckpointMismatch",
    "Family",
    "Link",
    "LoadTable",
    "export_reference",
    "load_reference",
    "read_reference",
]
