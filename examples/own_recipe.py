"""Prints a custom recipe for `train-vl pretrain --config`.

python examples/own_recipe.py > own.yaml
"""

from dataclasses import replace

from vlmill.models import preset
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.train.recipes import Feeding, Objectives, Optimizer, Recipe, Stage


def own_recipe() -> Recipe:
    """A small ImageBERT: many noisy pairs first, then few good ones at a lower rate."""
    noisy = Stage(
        name="noisy",
        sources=("lait", "cc"),  # of the column `source`; () takes all
        epochs=5,
        batch_size=64,
        feeding=Feeding(max_tokens=44, max_regions=36),
        objectives=Objectives(mlm=1.0, moc=1.0, mrfr=1.0, itm=1.0),
        optimizer=Optimizer(lr=5e-4),
    )
    good = replace(
        noisy,
        name="good",
        sources=("coco",),
        epochs=10,
        hard_negative_share=0.5,  # of the pairs that do not match; needs --negatives
        objectives=replace(noisy.objectives, mrfr=0.0),
        optimizer=Optimizer(lr=1e-4, schedule="cosine"),
    )
    return Recipe(
        name="own",
        variant="imagebert",
        model=preset("imagebert-small", num_layers=6),
        stages=(noisy, good),
        vocabulary_size=8000,
        validate_every=500,
        average=0.999,
    )


if __name__ == "__main__":
    print(to_yaml(own_recipe()), end="")
