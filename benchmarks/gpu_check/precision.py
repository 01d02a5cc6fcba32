"""Compares losses in bfloat16 with those in float32, of the same weights, batches and draws."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.tables import TableSizes
from benchmarks.gpu_check.training import (
    TINY_MODEL,
    Work,
    make_accelerator,
    new_model,
    prepared,
    training_of,
)

from vlmill.models import preset
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.step import train_step

Losses = npt.NDArray[np.float64]

STEPS, TINY_STEPS = 50, 12
SMOOTHED = 10  # steps in a mean: a single batch's loss says little
# Of the smoothed losses. A product in bfloat16 rounds to 8 bits, 0.4 %; means over a batch and a
# window are far closer (24 steps on a CPU: 0.0002 at most), unless something is summed in 16 bits
# that has to be in 32.
LARGEST_DIFFERENCE, MEAN_DIFFERENCE = 0.01, 0.005


class LossesDiffer(ArithmeticError):
    """Is raised if the losses in bfloat16 differ from those in float32 by more, or less, than
    rounding does.
    """


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Holds relative differences of smoothed losses, over the steps."""

    largest: float
    mean: float

    @property
    def of_tolerance(self) -> float:
        """Returns the share of what is allowed; above 1 it is too much."""
        return max(self.largest / LARGEST_DIFFERENCE, self.mean / MEAN_DIFFERENCE)


def run(setting: Setting) -> dict[str, object]:
    """Runs the part. Raises LossesDiffer beyond the tolerance, and where nothing differs at all."""
    recipes = {
        recipe.variant: recipe for recipe in (regions_recipe(setting), pixels_recipe(setting))
    }
    models: dict[str, Any] = {}
    worst = 0.0
    for variant, recipe in recipes.items():
        (setting.folder / variant).mkdir()
        work = prepared(recipe, sizes_for(variant, tiny=setting.tiny), setting.folder / variant)
        exact, rounded = (losses_in(precision, work, setting) for precision in ("no", "bf16"))
        if exact == rounded:
            raise LossesDiffer(f"{variant}: not a bit differs, so nothing was in bfloat16")
        difference = compare(exact, rounded)
        worst = max(worst, difference.of_tolerance)
        models[variant] = {
            "largest": difference.largest,
            "mean": difference.mean,
            "first_loss": exact[0],
            "last_losses": [exact[-1], rounded[-1]],
        }
    if worst > 1:
        raise LossesDiffer(
            f"allowed {LARGEST_DIFFERENCE} at a step and {MEAN_DIFFERENCE} in the mean: {models}"
        )
    return {
        "value": round(max(model["largest"] for model in models.values()), 6),
        "unit": "largest relative difference of losses",
        "limit": LARGEST_DIFFERENCE,
        "fraction_of_limit": round(worst, 4),
        "mean_allowed": MEAN_DIFFERENCE,
        "steps": TINY_STEPS if setting.tiny else STEPS,
        "smoothed_over": SMOOTHED,
        "models": models,
    }


def regions_recipe(setting: Setting) -> Recipe:
    """Returns a recipe of ImageBERT, whose regions have three objectives, in six layers of 256."""
    size = TINY_MODEL | {"num_layers": 2} if setting.tiny else {"width": 256, "num_layers": 6}
    model = preset("imagebert-small", dropout=0.0, **size)
    return _sized(recipe_named("imagebert-small"), model, setting)


def pixels_recipe(setting: Setting) -> Recipe:
    """Returns a recipe of VLMo on images of 64 pixels, in six layers of 256."""
    if setting.tiny:
        model = preset("vlmo-small", **TINY_MODEL, num_layers=2, first_vl_layer=1, image_size=32)
    else:
        model = preset("vlmo-small", width=256, num_layers=6, first_vl_layer=4)
    recipe = _sized(recipe_named("vlmo-small"), model, setting)
    return change_recipe(recipe, [f"feeding.image_size={model.image_size}"])


def _sized(recipe: Recipe, model: Any, setting: Setting) -> Recipe:
    """Returns the recipe without dropout, whose random numbers a device may deal out in another
    order at another precision.
    """
    recipe = dataclasses.replace(recipe, model=model, standardise_features=False)
    size = 6 if setting.tiny else 64
    return change_recipe(recipe, ["steps=1000", f"batch_size={size}", "optimizer.lr=2e-4"])


def sizes_for(variant: str, *, tiny: bool) -> TableSizes:
    """Returns tables with regions, or with images for VLMo."""
    regions, side = ((10, 36), None) if variant != "vlmo" else (None, 80)
    if tiny:
        return TableSizes(
            pairs=24,
            vocabulary=60,
            longest=20,
            regions=regions and (4, 10),
            feature_dim=24,
            classes=9,
            image_px=side and 40,
        )
    return TableSizes(pairs=512, vocabulary=4000, regions=regions, image_px=side)


def losses_in(precision: Literal["no", "bf16"], work: Work, setting: Setting) -> list[float]:
    """Returns the loss of each of the first steps; the same weights and batches at any
    precision.
    """
    recipe = dataclasses.replace(work.recipe, precision=precision)
    accelerator = make_accelerator(recipe, setting.device)
    training = training_of(new_model(recipe), recipe, accelerator, pack=True)
    steps = TINY_STEPS if setting.tiny else STEPS
    return [
        train_step(number + 1, [work.batches.assembled(number)], training)["loss"]
        for number in range(steps)
    ]


def compare(exact: Sequence[float], rounded: Sequence[float]) -> Difference:
    """Returns relative differences of the smoothed losses. Raises ValueError for lists of two
    lengths.
    """
    if len(exact) != len(rounded):
        raise ValueError(f"{len(exact)} losses and {len(rounded)}: expected as many of both")
    reference, other = smoothed(exact), smoothed(rounded)
    relative = np.abs(other - reference) / np.abs(reference)
    return Difference(largest=float(relative.max()), mean=float(relative.mean()))


def smoothed(losses: Sequence[float], over: int = SMOOTHED) -> Losses:
    """Returns the means of ``over`` losses that follow each other. Raises ValueError for fewer."""
    if len(losses) < over:
        raise ValueError(f"{len(losses)} losses: expected at least {over}")
    return np.convolve(np.asarray(losses, dtype=np.float64), np.ones(over) / over, mode="valid")
