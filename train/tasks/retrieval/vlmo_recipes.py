"""VLMo's dual encoder (arXiv:2111.02358, sec. 4.3): COCO first, Flickr30k from there.

The contrast is over all pairs of a step, on any number of processes and parts: on one card with 80
GB ``accumulation=12`` for base on COCO, ``accumulation=48`` for large. [code] marks the released
code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vlmill.models.vlmo.config import (
    VlmoConfig,
    retrieval,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.train.recipes.fine_tuning import for_trials, task_recipe, vlmo_task_optimizer
from vlmill.train.recipes.vlmo import EVERYWHERE, vlmo_feeding
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.retrieval.settings import RetrievalRecipe, RetrievalSettings

COCO, FLICKR = "coco", "flickr30k"
SIZE = 384  # pixels


@dataclass(frozen=True, kw_only=True)
class Run:
    """Holds the values that differ between data sets; ``steps``, or ``epochs`` by the paper."""

    make: Callable[..., VlmoConfig]
    rate: float
    drop_path: float
    batch_size: int = 3072
    steps: int | None = None
    epochs: float | None = None
    image_size: int = SIZE
    # Other captions of an image are negatives of it [code].
    same_picture_negatives: bool = True


def released(make: Callable[..., VlmoConfig], rate: float, coco: float, flickr: float) -> Any:
    """Returns the runs on both data sets, with these shares of dropped paths [code]."""
    return {
        COCO: Run(make=make, rate=rate, drop_path=coco, steps=3000),
        FLICKR: Run(make=make, rate=rate, drop_path=flickr, steps=1500),
    }


def by_paper(
    make: Callable[..., VlmoConfig],
    rates: tuple[float, float],
    coco: float,
    flickr_drop_path: float,
) -> Any:
    """Returns the paper's run: epochs of batches of 2,048; dropped paths are the code's."""
    fields: dict[str, Any] = {"make": make, "batch_size": 2048, "same_picture_negatives": False}
    return {
        COCO: Run(rate=rates[0], drop_path=0.2, epochs=coco, **fields),
        FLICKR: Run(rate=rates[1], drop_path=flickr_drop_path, epochs=40, **fields),
    }


RUNS: dict[str, dict[str, Run]] = {
    "base": released(vlmo_base, 3e-5, 0.2, 0.15),
    "base-plus": released(vlmo_base_plus, 3e-5, 0.2, 0.2),
    "large": released(vlmo_large, 2e-5, 0.2, 0.2),
    "base-paper": by_paper(vlmo_base_paper, (2e-5, 1e-5), 20, 0.15),
    "large-paper": by_paper(vlmo_large_paper, (1e-5, 1e-5), 10, 0.2),
}
FROM_PRETRAINING = ("base-plus",)  # on Flickr30k, too [code]
# The ablations of stages, objectives and experts (tables 3 and 4).
ABLATION = Run(
    make=vlmo_base_paper,
    rate=5e-5,
    drop_path=0.15,
    batch_size=1024,
    epochs=10,
    image_size=224,
    same_picture_negatives=False,
)


def make_run_recipe(name: str, run: Run, about: str, start: str) -> TaskRecipe:
    """Returns a run of the dual encoder."""
    stage = TrainingStage(
        name="retrieval",
        steps=run.steps,
        epochs=run.epochs,
        batch_size=run.batch_size,
        feeding=vlmo_feeding(image_size=run.image_size),
        loading=EVERYWHERE,
        optimizer=vlmo_task_optimizer(run.rate),
    )
    return task_recipe(
        RetrievalRecipe,
        name,
        "vlmo",
        retrieval(run.make(image_size=run.image_size, drop_path=run.drop_path)),
        ("vlmo",),
        stage,
        about,
        f"the images; --init: {start}",
        settings=RetrievalSettings(
            negatives="batch", same_picture_negatives=run.same_picture_negatives
        ),
        validation_pairs=5000,
        seed=1,
        precision="fp16",
    )


def retrieval_vlmo(size: str, data: str) -> TaskRecipe:
    """Returns the released recipe, or the one by the paper's text (``-paper``)."""
    plain = size.removesuffix("-paper")
    start = "a pretrained VLMo"
    if data == FLICKR and size not in FROM_PRETRAINING:
        start = f"the run of retrieval-vlmo-{size}-{COCO}"
    origin = "as released" if plain == size else "by the paper's text"
    dataset = {COCO: "COCO", FLICKR: "Flickr30k"}[data]
    about = f"Retrieval with VLMo {plain}, on {dataset}, {origin}"
    return make_run_recipe(f"retrieval-vlmo-{size}-{data}", RUNS[size][data], about, start)


def retrieval_vlmo_ablation() -> TaskRecipe:
    """Returns the run by which the paper's ablations are compared: 224 pixels, from pretraining."""
    about = "Retrieval with VLMo base, on Flickr30k at 224 pixels, as the ablations"
    return make_run_recipe(
        f"retrieval-vlmo-base-{FLICKR}-224", ABLATION, about, "a pretrained VLMo"
    )


def retrieval_vlmo_small() -> TaskRecipe:
    """Returns the recipe with a small VLMo, for trials on a CPU."""
    model = retrieval(vlmo_small())
    like = retrieval_vlmo("base", FLICKR)
    feeding = replace(
        vlmo_feeding(image_size=model.image_size),
        max_tokens=model.max_text_tokens,
        crop=(0.9, 1.0),
        augment=False,
        flip=0.0,
    )
    return for_trials(
        like,
        "retrieval-vlmo-small",
        model,
        "Retrieval with VLMo",
        lr=3e-4,
        batch_size=64,
        feeding=feeding,
        settings=RetrievalSettings(negatives="batch"),
        needs="the images; --init: a pretrained VLMo",
    )


VLMO_RECIPES: dict[str, Callable[[], TaskRecipe]] = {
    **{
        f"retrieval-vlmo-{size}-{data}": partial(retrieval_vlmo, size, data)
        for size, runs in RUNS.items()
        for data in runs
    },
    f"retrieval-vlmo-base-{FLICKR}-224": retrieval_vlmo_ablation,
}
