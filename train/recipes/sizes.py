"""The sizes of the recipes' models, from ``sizes.json``: a list of recipes needs no torch.

A test measures them again. ``python -m tests.train.recipes.test_sizes`` writes the file.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.plain_json import read_json
from vlmill.train.settings.spec import RunSettings

FILE = Path(__file__).with_name("sizes.json")


class ModelSize(NamedTuple):
    """Holds the number of parameters, and how many values the layers keep of a row for the backward
    pass (inputs and outputs of linear layers): of rows of texts, of images, and of both.
    """

    parameters: int
    texts: int
    images: int
    both: int


def find_size(recipe: RunSettings) -> ModelSize:
    """Returns the size of a recipe's model: from the file, or measured, which imports torch."""
    if (key := size_key(recipe)) in (sizes := read_sizes()):
        return sizes[key]
    from vlmill.train.recipes.measure import measure_model

    return ModelSize(*measure_model(recipe.variant, recipe.model))


def size_key(recipe: RunSettings) -> str:
    """Returns the variant and the start of its configuration's SHA-256."""
    plain = json.dumps(to_plain(recipe.model), sort_keys=True)
    return f"{recipe.variant} {hashlib.sha256(plain.encode()).hexdigest()[:12]}"


@cache
def read_sizes() -> dict[str, ModelSize]:
    """Returns the sizes in the file, by `size_key`."""
    return {k: ModelSize(*size) for k, size in read_json(FILE).items()}
