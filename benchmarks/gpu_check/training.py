"""Holds what the parts about training share: the variants' recipes, their batches, and a model to
train.

B pairs, T tokens, R regions.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.tables import TableSizes, write_tables
from torch import nn

from vlmill.models import VARIANTS, preset
from vlmill.train.devices import setup as devices
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.objectives.pretraining import label_counts
from vlmill.train.optim.groups import make_optimizer, settings_of_start
from vlmill.train.recipes import Recipe, Stage, change_recipe, recipe_named
from vlmill.train.run.inputs import open_sources
from vlmill.train.run.job import model_config
from vlmill.train.run.model import make_tokenizer
from vlmill.train.run.pretraining import make_step
from vlmill.train.run.step import Training
from vlmill.train.run.updates import Update, clip_whole

PAIRS = 1024  # several batches whose order, masks and negatives differ from epoch to epoch
TINY_PAIRS, TINY_BATCH = 24, 8
# What weights fix is larger than any length: torch.compile takes sizes that are equal in the first
# batch for one and the same.
TINY_MODEL = {"width": 40, "num_heads": 2, "intermediate_width": 48}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Holds a variant's published recipe at base size, and its tiny form.

    ``changes`` are fields of the recipe. ``batch_size`` is for a card of 80 GB.
    """

    recipe: str
    variant: str
    batch_size: int
    regions: tuple[int, int] | None = (10, 100)
    changes: tuple[str, ...] = ()
    tiny_model: dict[str, Any] = field(default_factory=dict)
    tiny_changes: tuple[str, ...] = ()


CASES = {
    "vilbert": Case(
        recipe="vilbert",
        variant="vilbert",
        batch_size=256,
        regions=(10, 36),
        tiny_model={
            "visual_width": 40,
            "visual_num_heads": 2,
            "visual_intermediate_width": 48,
            "co_width": 40,
            "co_num_heads": 2,
        },
    ),
    "vl-bert": Case(
        recipe="vl-bert-captions",
        variant="vl-bert",
        batch_size=256,
        tiny_model={"num_layers": 2, "num_wavelengths": 4},
    ),
    "interbert": Case(
        recipe="interbert",
        variant="interbert",
        batch_size=256,
        # The recipe's 36 are the released code's; the paper's detector gives up to 100.
        changes=("feeding.max_regions=100",),
        tiny_model={
            "num_interaction_layers": 1,
            "visual_num_heads": 2,
            "visual_intermediate_width": 48,
            "pooled_width": 40,
        },
    ),
    "imagebert": Case(
        recipe="imagebert-cc", variant="imagebert", batch_size=256, tiny_model={"num_layers": 2}
    ),
    "vlmo": Case(
        recipe="vlmo-base",
        variant="vlmo",
        batch_size=64,  # each pair is computed six times: alone, matched, mismatched and masked
        regions=None,
        tiny_model={"num_layers": 2, "first_vl_layer": 1, "image_size": 32},
        tiny_changes=("feeding.image_size=32",),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Holds a recipe whose model has the tables' sizes, and the batches of its only stage."""

    recipe: Recipe
    batches: PretrainBatches

    @property
    def stage(self) -> Stage:
        """Returns the recipe's only stage."""
        return self.recipe.stages[0]

    def with_batches_of(self, pairs: int) -> "Work":
        """Returns the same work with ``pairs`` in a batch."""
        stage = dataclasses.replace(self.stage, batch_size=pairs)
        return Work(
            recipe=dataclasses.replace(self.recipe, stages=(stage,)),
            batches=dataclasses.replace(self.batches, stage=stage),
        )


def table_sizes(case: Case, *, tiny: bool) -> TableSizes:
    """Returns sizes as large as what the published runs read, or as small as works."""
    has_images = case.regions is None
    if not tiny:
        return TableSizes(pairs=PAIRS, regions=case.regions, image_px=256 if has_images else None)
    return TableSizes(
        pairs=TINY_PAIRS,
        vocabulary=60,
        longest=24,
        regions=None if has_images else (6, 20),
        feature_dim=37,
        classes=41,
        image_px=40 if has_images else None,
    )


def recipe_of(case: Case, *, tiny: bool, changes: Sequence[str] = ()) -> Recipe:
    """Returns the case's recipe over all pairs there are, in bfloat16, with further ``changes``.

    Its rate is so low that random labels leave the weights where they are: speed is the same.
    """
    size = TINY_BATCH if tiny else case.batch_size
    every = ("sources=[]", "steps=1000", "precision=bf16", "optimizer.lr=1e-6")
    recipe = change_recipe(
        recipe_named(case.recipe), [*every, f"batch_size={size}", *case.changes, *changes]
    )
    if not tiny:
        return recipe
    model = preset(f"{case.variant}-small", **(TINY_MODEL | case.tiny_model))
    return change_recipe(dataclasses.replace(recipe, model=model), case.tiny_changes)


def work_of(case: Case, setting: Setting, changes: Sequence[str] = ()) -> Work:
    """Makes the case's batches of tables that are written for it."""
    recipe = recipe_of(case, tiny=setting.tiny, changes=changes)
    return prepared(recipe, table_sizes(case, tiny=setting.tiny), setting.folder)


def prepared(recipe: Recipe, sizes: TableSizes, folder: Path) -> Work:
    """Prepares what the recipe trains on, of random tables of these ``sizes``."""
    inputs = write_tables(folder, sizes)
    assert inputs.pairs is not None
    sources = open_sources(inputs, recipe)
    tokenizer = make_tokenizer(recipe, sources)
    feeding = recipe.stages[0].feeding
    prepare_samples(
        folder / "prepared",
        PreparationInputs(
            pairs=inputs.pairs,
            tokenizer=tokenizer,
            max_tokens=feeding.max_tokens or sizes.longest,
            images=sources.joined_images,
            takes_pairs=feeding.kind != "text",
            takes_texts=feeding.kind == "text" or bool(feeding.text_rows),
        ),
    )
    recipe = dataclasses.replace(recipe, model=model_config(recipe, tokenizer, sources))
    batches = PretrainBatches(
        samples=folder / "prepared",
        regions=sources.regions,
        images=sources.images,
        stage=recipe.stages[0],
        stage_number=0,
        seed=recipe.seed,
        lexicon=Lexicon.from_tokenizer(tokenizer),
        longest=recipe.max_text_tokens,
    )
    return Work(recipe=recipe, batches=batches)


def new_model(recipe: Recipe) -> nn.Module:
    """Makes the recipe's model with the weights of its seed."""
    torch.manual_seed(recipe.seed)
    model: nn.Module = VARIANTS[recipe.variant].model(recipe.model)
    return model


def make_accelerator(recipe: Recipe, device: torch.device) -> Accelerator:
    """Makes an accelerator of the recipe's precision on ``device``, whatever this process has
    computed in before.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(mixed_precision=recipe.precision, cpu=device.type == "cpu")
    if accelerator.device.type != device.type:
        raise RuntimeError(f"accelerate chose {accelerator.device}, wanted {device}")
    return accelerator


def training_of(
    model: nn.Module, recipe: Recipe, accelerator: Accelerator, *, pack: bool, casts: bool = True
) -> Training:
    """Makes a model ready for `train_step`, as `train-vl pretrain` has it in a single process.

    Without ``casts`` autocast casts each weight where it is used.
    """
    stage, dtype = recipe.stages[0], devices.COMPUTED_IN.get(recipe.precision)
    model.train()
    step = make_step(model, stage.objectives, pack=pack)
    module = devices.wrap_module(step, accelerator, shard=False)
    module.train()
    settings = settings_of_start(stage.optimizer, from_checkpoint=False)
    update = Update(
        optimizer=make_optimizer(model.named_parameters(), settings),
        rate=lambda _: settings.lr,
        clip_gradients=partial(clip_whole, largest=settings.clip),
    )
    return Training(
        step_module=module,
        count_labels=partial(label_counts, weights=stage.objectives),
        update=update,
        accelerator=accelerator,
        seed=recipe.seed,
        cast_weights=nullcontext
        if not casts or dtype is None
        else WeightCasts(module, dtype).applied,
    )


def compiled(training: Training, *, tiny: bool) -> Training:
    """Returns the training with its step compiled for any lengths.

    At tiny size it is traced alone: generating code takes minutes on a CPU.
    """
    module: nn.Module = training.step_module
    if tiny:
        module = torch.compile(module, dynamic=True, backend="eager")  # type: ignore[assignment]
    else:
        module = devices.compile_step(module)
    return dataclasses.replace(training, step_module=module, cast_weights=nullcontext)
