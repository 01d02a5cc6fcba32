"""Defines the runs of tasks: small models with each head, and tasks on texts alone."""

from dataclasses import dataclass
from functools import partial

from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.registry import task_recipe_named

BLIND = "blind"  # the arm that each of a task's is compared with
# How many more questions, as a share, a model has to answer than the one that sees no image.
MARGIN = 0.1
PRETRAINING, PRETRAINING_STEPS = ("batch_size=32",), 400
SPLITS = ("train_splits=[train]", "validation_splits=[test]")
FROM_BERT = ("starts_from=[bert]",)
# The baseline has no small recipe of its own: the trunk of ViLBERT's in one stream.
SINGLE_STREAM = (
    *("model.trunk.width=192", "model.trunk.num_layers=4", "model.trunk.num_heads=4"),
    *("model.trunk.intermediate_width=768", "model.trunk.num_positions=64"),
    *("model.trunk.dropout=0", "model.trunk.attention_dropout=0", "model.trunk.init_std=0.07"),
    *("model.dropout=0", "model.classifier_dropout=0.1", "epochs=null"),
    *("settings.min_questions=1", "vocabulary_size=4000", "standardise_features=true"),
    *("optimizer.kind=adamw", "optimizer.decay=matrices", "optimizer.schedule=linear"),
    *("optimizer.drops=[]", "optimizer.heads=[]", "optimizer.head_rate=1", "optimizer.lr=3e-4"),
    "workers=0",
)


@dataclass(frozen=True, kw_only=True)
class TaskArm:
    """A task's small recipe with ``changes`` to its fields.

    ``pretrained`` is the small recipe that its checkpoint to start from has gone through on the
    captions of the same images; None: weights are drawn. ``seeds`` are those that the full form
    trains with.
    """

    task: str
    name: str
    recipe: str
    steps: int
    pretrained: str | None = None
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)

    @property
    def reads_neighbours(self) -> bool:
        """Whether captions of near images are among its negatives."""
        settings = task_recipe_named(self.recipe).settings
        return getattr(settings, "negatives", "") == "alignment"

    @property
    def label(self) -> str:
        """As in ``vqa/vilbert``."""
        return f"{self.task}/{self.name}"


def task_recipe(arm: TaskArm, seed: int, steps: int) -> TaskRecipe:
    """The arm's recipe. Raises InputError for unknown fields."""
    count = (f"steps={steps}", f"seed={seed}", "keep_checkpoints=1")
    return change_recipe(task_recipe_named(arm.recipe), [*arm.changes, *SPLITS, *count])


def small_arm(
    task: str,
    name: str,
    recipe: str,
    pretrained: str | None,
    changes: tuple[str, ...] = (),
    *,
    steps: int,
    examples: int = 32,
    seeds: tuple[int, ...] = (0,),
) -> TaskArm:
    """An arm with so many ``examples`` a step."""
    return TaskArm(
        task=task,
        name=name,
        recipe=recipe,
        pretrained=pretrained,
        changes=(*changes, f"batch_size={examples}"),
        steps=steps,
        seeds=seeds,
    )


vqa_arm = partial(small_arm, "vqa", steps=600)
VILBERT, VLBERT, VLMO = "vqa-vilbert-small", "vqa-vl-bert-small", "vqa-vlmo-small"
SINGLE = "vqa-single-stream-from-bert"


def vqa_arms() -> tuple[TaskArm, ...]:
    """VQA with every head, from pretraining and from BERT, and blind."""
    return (
        vqa_arm("vilbert", VILBERT, "vilbert-small", seeds=(0, 1, 2)),
        vqa_arm(BLIND, VILBERT, "vilbert-small", ("blind=true",)),
        vqa_arm("vl-bert", VLBERT, "vl-bert-small"),
        vqa_arm("vilbert-from-bert", VILBERT, "bert-small", FROM_BERT),
        vqa_arm("single-stream-from-bert", SINGLE, "bert-small", SINGLE_STREAM),
        vqa_arm("vl-bert-from-bert", VLBERT, "bert-small", FROM_BERT),
        # Words for what is in pixels come later than for regions that a detector has described.
        vqa_arm("vlmo", VLMO, "vlmo-small", steps=2_400),
    )


def retrieval_arms() -> tuple[TaskArm, ...]:
    """Retrieval with every model. A blind one would find images by chance: none is trained."""
    return tuple(
        TaskArm(
            task="retrieval",
            name=name,
            recipe=f"retrieval-{name}-small",
            pretrained=f"{name}-small",
            steps=600,
            seeds=(0, 1, 2),
        )
        for name in ("vilbert", "interbert", "imagebert", "vlmo")
    )


def short_arms() -> tuple[TaskArm, ...]:
    """ViLBERT and the blind model from drawn weights, which a small world takes no longer for."""
    return (
        vqa_arm("vilbert", VILBERT, None, steps=150, examples=24),
        vqa_arm(BLIND, VILBERT, None, ("blind=true",), steps=150, examples=24),
    )
