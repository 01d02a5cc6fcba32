"""Recipes of classification and entailment with every model, derived from its recipe of VQA.

[code] marks released code, [choice] ours. No paper of these models classifies by own labels: the
recipes are our choice but for Hateful Memes, which follows mmf. ViLBERT's recipes of entailment
follow the code of 12-in-1 and mmf; no paper of the other models has the task.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from vlmill.models.vilbert.config import VilbertClassifierConfig
from vlmill.train.settings.parts import Feeding
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.classification.settings import ClassificationRecipe, ClassificationSettings
from vlmill.train.tasks.entailment.settings import EntailmentRecipe
from vlmill.train.tasks.recipes.data_sets import (
    MMF_STEPS,
    mmf_optimizer,
    single_stream_small,
    vqa_imagebert,
    vqa_imagebert_small,
    vqa_interbert,
    vqa_interbert_small,
)
from vlmill.train.tasks.recipes.shared import from_bert, milestones_optimizer
from vlmill.train.tasks.recipes.vilbert import on_single_stream, vqa_vilbert, vqa_vilbert_small
from vlmill.train.tasks.recipes.vlbert import vqa_vl_bert, vqa_vl_bert_small
from vlmill.train.tasks.recipes.vlmo import vqa_vlmo, vqa_vlmo_small

R = TypeVar("R", bound=TaskRecipe)
HEAD_SIZES = ("num_labels", "num_answers")


def with_classifier(recipe: TaskRecipe) -> TaskRecipe:
    """Returns ViLBERT's recipe of VQA, or its baseline's, with mmf's classifier instead of the head
    with weight norm, at one rate.
    """
    (stage,) = recipe.stages
    optimizer = replace(stage.optimizer, heads=(), head_rate=1.0)
    model = VilbertClassifierConfig(
        trunk=recipe.model.trunk, num_labels=2, dropout=recipe.model.dropout
    )
    return replace(
        recipe,
        variant="vilbert-classifier",
        model=model,
        starts_from=(*recipe.starts_from, "vilbert-classifier"),
        stages=(replace(stage, optimizer=optimizer),),
    )


def single_stream_classifier_small() -> TaskRecipe:
    """Returns the recipe of VQA with a small single-stream baseline and mmf's classifier."""
    recipe = with_classifier(vqa_vilbert_small())
    return replace(
        recipe,
        name="vqa-single-stream-small",
        model=replace(recipe.model, trunk=single_stream_small()),
        starts_from=("vilbert-single-stream", "vilbert-tasks", "vilbert-classifier"),
        about="VQA with single-stream for trials on a CPU",
    )


# Every model's recipe of VQA, from which the recipes of its classes follow.
VQA: tuple[Callable[[], TaskRecipe], ...] = (
    lambda: with_classifier(vqa_vilbert()),
    lambda: with_classifier(on_single_stream(vqa_vilbert())),
    vqa_vl_bert,
    vqa_imagebert,
    vqa_interbert,
    lambda: vqa_vlmo("base"),
    lambda: vqa_vlmo("large"),
    lambda: with_classifier(vqa_vilbert_small()),
    single_stream_classifier_small,
    vqa_vl_bert_small,
    vqa_imagebert_small,
    vqa_interbert_small,
    vqa_vlmo_small,
)


def with_classes(kind: type[R], like: TaskRecipe, num_classes: int, title: str) -> R:
    """Returns a model's recipe of VQA as that of a task with ``num_classes`` outputs [choice].

    Texts are read in full, up to the model's maximum, and images are not mirrored, because a text
    may name sides.
    """
    (stage,) = like.stages
    feeding = replace(stage.feeding, flip=0.0, max_tokens=find_max_tokens(stage.feeding))
    sizes = {f.name: num_classes for f in fields(like.model) if f.name in HEAD_SIZES}
    task = str(kind.__dataclass_fields__["task"].default)
    shared = {f.name: getattr(like, f.name) for f in fields(like)}
    changes: dict[str, Any] = {
        "task": task,
        "name": like.name.replace("vqa", task, 1),
        "model": replace(like.model, **sizes),
        "stages": (replace(stage, name=task, feeding=feeding),),
        "about": f"{title} with {like.about.partition(' with ')[2].partition(', ')[0]}",
        "needs": f"{describe_images(feeding)}; --init{like.needs.partition('; --init')[2]}",
    }
    if not like.needs.partition("; --init")[1]:
        del changes["needs"]
    return kind(**({k: v for k, v in shared.items() if k != "settings"} | changes))


def find_max_tokens(feeding: Feeding) -> int | None:
    """Returns the largest number of tokens: ViLBERT's 16 of VQA become 40 [choice]."""
    return None if feeding.max_tokens is None else max(feeding.max_tokens, 40)


def describe_images(feeding: Feeding) -> str:
    """Returns which table of images or regions a recipe needs."""
    return "--images: the images" if feeding.kind == "pixels" else "regions of the images"


def make_recipes(
    kind: type[R], num_classes: int, title: str
) -> dict[str, Callable[[], TaskRecipe]]:
    """Returns the recipes of a task with every model, by name."""
    recipes = [with_classes(kind, make(), num_classes, title) for make in VQA]
    by_name: dict[str, TaskRecipe] = {recipe.name: recipe for recipe in recipes}
    plain = [n for n in by_name if not n.endswith("-small") and "-vlmo-" not in n]
    by_name |= {r.name: r for r in (from_bert(by_name[name]) for name in plain)}
    return {name: _always(recipe) for name, recipe in by_name.items()}


def _always(recipe: TaskRecipe) -> Callable[[], TaskRecipe]:
    return lambda: recipe


CLASSIFICATION = make_recipes(ClassificationRecipe, 2, "Classification")
ENTAILMENT = make_recipes(EntailmentRecipe, 3, "Entailment")


def classification_hateful_memes() -> TaskRecipe:
    """Returns mmf's run of Hateful Memes [code]: 22,000 steps of 32 at 1e-5, the checkpoint of the
    largest area under the ROC curve.
    """
    recipe = CLASSIFICATION["classification-vilbert"]()
    (stage,) = recipe.stages
    stage = replace(
        stage,
        steps=22_000,
        epochs=None,
        batch_size=32,
        feeding=replace(stage.feeding, max_tokens=128),
        optimizer=mmf_optimizer(1e-5, 2000),
    )
    return replace(
        recipe,
        name="classification-vilbert-hateful-memes",
        stages=(stage,),
        settings=ClassificationSettings(select_by="auroc"),
        validate_every=1000,
        about="Hateful Memes with ViLBERT, as mmf does",
    )


def entailment_vilbert_12in1() -> TaskRecipe:
    """Returns 12-in-1's single-task run of SNLI-VE [code]: 20 epochs of 256 at 2e-5, 56 tokens,
    binary cross-entropies of the three classes. Its head is one linear layer; ours is mmf's.
    """
    recipe = ENTAILMENT["entailment-vilbert"]()
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
    recipe = ENTAILMENT["entailment-vilbert"]()
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


RECIPES: dict[str, dict[str, Callable[[], TaskRecipe]]] = {
    "classification": {
        **CLASSIFICATION,
        "classification-vilbert-hateful-memes": classification_hateful_memes,
    },
    "entailment": {
        **ENTAILMENT,
        "entailment-vilbert-12in1": entailment_vilbert_12in1,
        "entailment-vilbert-mmf": entailment_vilbert_mmf,
    },
}
