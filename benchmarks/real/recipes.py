"""Defines the models of this benchmark and their training: minutes on one core.

Texts start from MiniLM: 384 wide, 6 layers, BERT's vocabulary. Regions are new. Pretraining has
the objectives of its paper; models that read pairs are aligned instead (`real.alignment`).
Retrieval is fine-tuned with all pairs of a step as negatives.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from real.alignment import Alignment
from real.regions import DIM
from vlmill.models.imagebert.config import ImageBertConfig, ImageBertRetrievalConfig
from vlmill.models.interbert.config import InterBertConfig, InterBertTasksConfig
from vlmill.models.vilbert.config import VilbertClassifierConfig, VilbertConfig, VilbertTasksConfig
from vlmill.models.vlbert.config import VlBertConfig
from vlmill.models.vlmo.config import VlmoConfig, retrieval
from vlmill.train.settings.parts import Feeding, Masking, Objectives, Optimizer
from vlmill.train.settings.spec import Recipe, Stage, TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.entailment.settings import EntailmentRecipe
from vlmill.train.tasks.recipes.shared import task_recipe
from vlmill.train.tasks.retrieval.settings import RetrievalRecipe, RetrievalSettings
from vlmill.train.tasks.vqa.settings import VqaRecipe, VqaSettings

MODELS = ("vilbert", "interbert", "imagebert", "vl-bert", "vlmo")
WIDTH, NUM_REGIONS, NUM_TOKENS = 384, 20, 24
POOLED = 1024  # as in both papers' code; half of it is zero after the ReLU
FEW_REGIONS = 8  # of models that read pairs
CLASSES = 1001  # ImageNet's, after the background
# MiniLM's sizes, and the parts that are the same in every region model.
TEXT: dict[str, Any] = {
    "width": WIDTH,
    "num_heads": 12,
    "intermediate_width": 4 * WIDTH,
    "dropout": 0.1,
    "attention_dropout": 0.0,  # PyTorch's fused CPU kernel does not support it
    "init_std": 0.05,  # of new weights; 0.02 is made for a width of 768
    "num_region_classes": CLASSES,
}
RUN: dict[str, Any] = {
    "standardise_features": True,
    "keep_checkpoints": 1,
    "save_every": 200,
    "log_every": 10,
    "workers": 0,
    "trackers": (),
}


# The feeding of region models; box 0 of an image is the full image already.
make_feeding = partial(Feeding, max_tokens=NUM_TOKENS, max_regions=NUM_REGIONS)

# ViLBERT with one co-attention layer, before MiniLM's last layer; the layers below it are frozen.
vilbert = partial(
    VilbertConfig,
    **TEXT,
    num_layers=6,
    visual_width=WIDTH,
    visual_num_layers=1,
    visual_num_heads=6,
    visual_intermediate_width=2 * WIDTH,
    visual_dropout=0.2,
    visual_attention_dropout=0.0,
    co_width=POOLED,
    co_num_heads=8,
    text_co_layers=(5,),
    visual_co_layers=(0,),
    head_dropout=0.2,
    frozen_text_layers=5,
)

# InterBERT: MiniLM's first layer interacts, the others extract from the text.
interbert = partial(
    InterBertConfig,
    **TEXT,
    num_interaction_layers=1,
    num_text_layers=5,
    num_visual_layers=1,
    modality_segments=False,  # as released; MiniLM has read texts in segment 0
    visual_num_heads=6,
    visual_intermediate_width=2 * WIDTH,
    visual_dropout=0.2,
    visual_attention_dropout=0.0,
    pooled_width=POOLED,
    head_dropout=0.2,
)

# ImageBERT on MiniLM's first three layers, with a pooler under the matching layer.
imagebert = partial(ImageBertConfig, **TEXT, num_layers=3, itm_pooler=True)

# VL-BERT on MiniLM's first three layers, with a head for matching (not published).
vl_bert = partial(
    VlBertConfig,
    **TEXT,
    num_layers=3,
    num_wavelengths=32,
    visual_scale_text=0.3,
    visual_scale_region=0.3,
    text_only=False,
    pooler=True,
    matching=True,
)

# VLMo from pixels, with random weights: no published image network of its kind is in the package
# index.
vlmo = partial(
    VlmoConfig,
    width=192,
    num_layers=6,
    num_heads=6,
    intermediate_width=768,
    first_vl_layer=5,
    image_size=112,
    max_text_tokens=NUM_TOKENS,
    relative_text_span=NUM_TOKENS,
    layer_scale=None,
    drop_path=0.0,
    init_std=0.05,
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Says how long and how fast a part of a run trains."""

    steps: int
    batch_size: int
    lr: float
    heads: tuple[str, ...] = ()  # parts whose rate is a fifth: MiniLM's own

    @property
    def optimizer(self) -> Optimizer:
        """Returns the optimiser."""
        return Optimizer(lr=self.lr, heads=self.heads, head_rate=0.2 if self.heads else 1.0)


CONFIGS: dict[str, Any] = {
    "vilbert": vilbert,
    "interbert": interbert,
    "imagebert": imagebert,
    "vl-bert": vl_bert,
    "vlmo": vlmo,
}
VLMO_FEEDING = Feeding(
    kind="pixels", max_tokens=NUM_TOKENS, image_size=112, crop=(0.6, 1.0), augment=False, flip=0.5
)
# Of ViLBERT's paper, but predicted in matching pairs alone, and without hard negatives.
OBJECTIVES = {"vilbert": Objectives(mlm=1.0, moc=0.0, mrkl=1.0, mrfr=0.0, itm=1.0)}
GROUPS = Masking(
    words=0.1, regions=0.1, region_to_zero=1.0, word_rule="segments", region_rule="groups"
)
PRETRAINING = {"vilbert": Training(steps=200, batch_size=32, lr=2e-4)}
# MiniLM's layers that learn: the last one.
ALIGNED = {"interbert": ("text_layers.4",), "imagebert": ("layers.2",), "vl-bert": ("layers.2",)}
STEPS = {"interbert": 1400, "imagebert": 120, "vl-bert": 200}


def alignment(model: str, *, seed: int = 0) -> Alignment:
    """Returns the alignment of a model that reads pairs."""
    return Alignment(
        model=model,
        config=CONFIGS[model](region_width=DIM),
        feeding=make_feeding(max_regions=FEW_REGIONS),
        steps=STEPS[model],
        trained=ALIGNED[model],
        seed=seed,
    )


def pretraining(model: str, *, seed: int = 0, config: Any = None, **stage: Any) -> Recipe:
    """Returns a model's pretraining; ``stage`` are changes to its stage."""
    training = PRETRAINING[model]
    fields: dict[str, Any] = {
        "name": "pairs",
        "steps": training.steps,
        "batch_size": training.batch_size,
        "feeding": make_feeding(region_targets="distribution"),
        "objectives": OBJECTIVES[model],
        "masking": Masking(),
        "hard_negative_share": 0.0,
        "optimizer": training.optimizer,
    }
    return Recipe(
        name=f"real-{model}",
        variant=model,
        model=CONFIGS[model]() if config is None else config,
        stages=(Stage(**(fields | stage)),),
        about=f"{model} on real photographs",
        seed=seed,
        **RUN,
    )


TASK_VARIANTS = {
    "vilbert": "vilbert-tasks",
    "interbert": "interbert-tasks",
    "imagebert": "imagebert-retrieval",
    "vl-bert": "vl-bert",
    "vlmo": "vlmo",
}
RETRIEVAL = {
    "vilbert": Training(steps=700, batch_size=64, lr=5e-4, heads=("text_layers",)),
    "interbert": Training(steps=60, batch_size=12, lr=5e-5, heads=("layers",)),
    "imagebert": Training(steps=1200, batch_size=12, lr=1e-4),
    "vl-bert": Training(steps=1200, batch_size=12, lr=1e-4),
    "vlmo": Training(steps=200, batch_size=64, lr=5e-4),
}
# What a model that reads pairs still learns then, by parts of names; the others learn all.
LEARNT = {
    "interbert": (
        *("interaction_layers", "region_embedding", "visual_layers", "pooler"),
        *("match_head", "text_layers.4"),
    ),
    "imagebert": ("layers", "region_embedding", "pooler", "score_head", "match_head"),
    "vl-bert": ("layers", "region_vectors", "visual", "token", "pooler", "match_head"),
}


def task_config(model: str, **changes: Any) -> Any:
    """Returns the model that ranks, with changes to its trunk."""
    config: Any = CONFIGS[model](**changes)
    if model == "vilbert":
        return VilbertTasksConfig(trunk=config, dropout=0.0)
    if model == "interbert":
        return InterBertTasksConfig(trunk=config, dropout=0.0)
    if model == "imagebert":
        return ImageBertRetrievalConfig(trunk=config, rank_by="score")
    return retrieval(config) if model == "vlmo" else config


def retrieval_feeding(model: str) -> Feeding:
    """Returns the feeding of a model's retrieval."""
    if model == "vlmo":
        return VLMO_FEEDING
    return make_feeding(max_regions=FEW_REGIONS if model in ALIGNED else NUM_REGIONS)


def fine_tuning(
    model: str,
    *,
    seed: int = 0,
    config: Any = None,
    settings: RetrievalSettings | None = None,
    **stage: Any,
) -> TaskRecipe:
    """Returns a model's fine-tuning for retrieval; ``stage`` are changes to its stage."""
    training = RETRIEVAL[model]
    fields: dict[str, Any] = {
        "name": "retrieval",
        "steps": training.steps,
        "batch_size": training.batch_size,
        "feeding": retrieval_feeding(model),
        "optimizer": training.optimizer,
        "trained": LEARNT.get(model, ()),
    }
    return task_recipe(
        RetrievalRecipe,
        f"real-retrieval-{model}",
        TASK_VARIANTS[model],
        task_config(model) if config is None else config,
        ("bert", model, TASK_VARIANTS[model]),
        TrainingStage(**(fields | stage)),
        f"Retrieval with {model} on real photographs",
        "",
        settings=settings or RetrievalSettings(negatives="batch"),
        seed=seed,
        **(RUN | ({"standardise_features": False} if model == "vlmo" else {})),
    )


# Of ViLBERT: its pretraining continues in a task, whose layers all learn.
TASKS = {
    "daquar": Training(steps=300, batch_size=32, lr=3e-4, heads=("text_layers",)),
    "nlvr": Training(steps=150, batch_size=32, lr=3e-4, heads=("text_layers",)),
    "snli-ve": Training(steps=300, batch_size=32, lr=3e-4, heads=("text_layers",)),
}
NUM_CLASSES = {"nlvr": 2, "snli-ve": 3}
FEWEST_QUESTIONS = 2  # of an answer of DAQUAR


def task_training(name: str, *, blind: bool = False, seed: int = 0) -> TaskRecipe:
    """Returns ViLBERT's fine-tuning for a task set; a ``blind`` one is shown no image."""
    training = TASKS[name]
    # A blind ViLBERT needs a region, too: the mean of none.
    feeding = make_feeding(max_tokens=40, whole_image="mean")
    stage = TrainingStage(
        name=name,
        steps=training.steps,
        batch_size=training.batch_size,
        feeding=feeding,
        optimizer=training.optimizer,
    )
    fields = RUN | {"blind": blind, "seed": seed}
    about = f"{name} with ViLBERT on real photographs"
    if name == "daquar":
        return task_recipe(
            VqaRecipe,
            f"real-{name}",
            "vilbert-tasks",
            VilbertTasksConfig(trunk=vilbert(), dropout=0.1, classifier_dropout=0.1),
            ("bert", "vilbert"),
            stage,
            about,
            "",
            settings=VqaSettings(loss="softmax", min_questions=FEWEST_QUESTIONS),
            **fields,
        )
    return task_recipe(
        EntailmentRecipe,
        f"real-{name}",
        "vilbert-classifier",
        VilbertClassifierConfig(trunk=vilbert(), num_labels=NUM_CLASSES[name]),
        ("bert", "vilbert"),
        stage,
        about,
        "",
        **fields,
    )
