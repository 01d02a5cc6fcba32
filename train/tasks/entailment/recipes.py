"""Recipes of entailment with every model.

[code] marks released code, [choice] ours. ViLBERT's follow 12-in-1 (arXiv:1912.02315) and mmf; no
paper of the other models has the task, and theirs are our choice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.classification.recipes import make_recipes
from vlmill.train.tasks.classification.settings import ClassificationSettings
from vlmill.train.tasks.recipes.shared import milestones_optimizer
from vlmill.train.tasks.vqa.data_sets import MMF_STEPS, mmf_optimizer


@dataclass(frozen=True, kw_only=True)
class EntailmentRecipe(TaskRecipe):
    """Describes a run of entailment."""

    task: str = "entailment"
    settings: ClassificationSettings = field(default_factory=ClassificationSettings)


BASE = make_recipes(EntailmentRecipe, 3, "Entailment")


def entailment_vilbert_12in1() -> TaskRecipe:
    """Returns 12-in-1's single-task run of SNLI-VE [code]: 20 epochs of 256 at 2e-5, 56 tokens,
    binary cross-entropies of the three classes. Its head is one linear layer; ours is mmf's.
    """
    recipe = BASE["entailment-vilbert"]()
    (stage,) = recipe.stages
    stage = replace(
        stage,
        epochs=20,
        batch_size=256,
        feeding=replace(stage.feeding, max_tokens=56),
        optimizer=milestones_optimizer(2e-5),
    )
    return replace(
        recipe,
        name="entailment-vilbert-12in1",
        stages=(stage,),
        settings=ClassificationSettings(loss="binary"),
        about="SNLI-VE with ViLBERT, as in 12-in-1's code",
    )


def entailment_vilbert_mmf() -> TaskRecipe:
    """Returns mmf's run of SNLI-VE [code]: 60,000 steps of 480 at 5e-5, 128 tokens."""
    recipe = BASE["entailment-vilbert"]()
    (stage,) = recipe.stages
    stage = replace(
        stage,
        steps=MMF_STEPS,
        epochs=None,
        batch_size=480,
        feeding=replace(stage.feeding, max_tokens=128),
        optimizer=mmf_optimizer(5e-5, 6000),
    )
    return replace(
        recipe,
        name="entailment-vilbert-mmf",
        stages=(stage,),
        validate_every=1000,
        about="SNLI-VE with ViLBERT, as mmf does",
    )


RECIPES: Mapping[str, Callable[[], TaskRecipe]] = {
    **BASE,
    "entailment-vilbert-12in1": entailment_vilbert_12in1,
    "entailment-vilbert-mmf": entailment_vilbert_mmf,
}
