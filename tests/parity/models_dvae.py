"""Both image tokenizers' recordings."""

from typing import Any

from tests.parity.golden import GoldenSet
from tests.parity.networks import Case, open_model
from tests.parity.results import Results

from vlmill.models.beit.dvae import DalleTokenizer, map_pixels


def dvae(golden: GoldenSet, results: Results) -> None:
    """Logits and token ids; DALL-E's mapped pixels, too."""
    results.given("*.in.*")
    model: Any = open_model(golden)
    is_dalle = isinstance(model, DalleTokenizer)
    for name in golden.cases:
        case = Case(name, golden, results, model)
        pixels = case["in.image_0_1" if is_dalle else "in.image_normalised"]
        tokens = case.settle(
            "codebook_indices", model.tokens(pixels), "logits", lambda logits: logits.movedim(1, -1)
        )
        case.check(logits=model(pixels), codebook_indices=tokens)
        if is_dalle:
            case.check(mapped_pixels=map_pixels(pixels))
