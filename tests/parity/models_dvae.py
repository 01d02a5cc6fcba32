"""Both picture tokenizers' recordings."""

from typing import Any

from tests.parity.golden import GoldenSet, Results

from vlmill.models.beit.dvae import DalleTokenizer, map_pixels
from vlmill.models.published import load_reference


def dvae(golden: GoldenSet, results: Results) -> None:
    """Logits and token ids; DALL-E's mapped pixels, too."""
    results.given("*.in.*")
    model: Any = load_reference("dvae", golden.weights, golden.config)
    is_dalle = isinstance(model, DalleTokenizer)
    for case in golden.cases:
        name = "image_0_1" if is_dalle else "image_normalised"
        pixels = golden.tensors[f"{case}.in.{name}"]
        results.check(f"{case}.out.logits", model(pixels))
        results.check(f"{case}.out.codebook_indices", model.tokens(pixels))
        if is_dalle:
            results.check(f"{case}.out.mapped_pixels", map_pixels(pixels))
