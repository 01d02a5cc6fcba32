"""Defines the row of a model: its properties for other folders. Importing it needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Literal, NamedTuple


class Networks(NamedTuple):
    """Holds the parts of a paper's folder that need torch.

    models: the model classes by variant. families: the readers of published checkpoints, by name.
    from_bert: for each class that starts from BERT, the function that links its tensors to BERT's.
    derive: computes further tensors from BERT's, which links name. new_weights: how a class draws
    new weights, as pairs of a name pattern and a rule, if not from BERT's normal distribution.
    """

    models: Mapping[str, type[Any]]
    families: Mapping[str, Any] = {}
    from_bert: Mapping[type[Any], Callable[..., list[Any]]] = {}
    derive: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda state: {}
    new_weights: Mapping[type[Any], Sequence[tuple[str, str]]] = {}


def _no_networks() -> Networks:
    return Networks({})


def _keep_body(init_body: Any, recipe_body: Any) -> Any:
    return init_body


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Holds a model class with its configuration: ``variant.build(variant.config())``.

    The defaults describe a plain model on regions.
    """

    name: str
    config: type[Any]
    networks: Callable[[], Networks] = _no_networks  # of its paper
    pretrains: bool = True  # False: the model of a task: a trunk with other heads
    # Input: the one value of ``feeding.kind`` that it takes, and its objectives; empty: any value,
    # and any objective that it has a head for.
    kind: str = ""
    objectives: tuple[str, ...] = ()
    reads_text: bool = True
    reads_pixels: bool = False  # of full images; regions' features otherwise
    # The path of the inner model, and of its configuration, that reads words and regions. The
    # outer model computes the regions' features, or has a task's heads, or both. Empty: itself.
    body: str = ""
    makes_features: bool = False  # whether the outer model computes the regions' features
    # Of the regions that its published checkpoints read: the most likely class, or all classes.
    class_probs: Literal["argmax", "full"] = "argmax"
    # Scoring: the head that scores a pair of text and image, and the method that applies it to the
    # body's pooled vector.
    match_head: str = "match_head"
    match_logit: str = "match_logit"
    contrasts: bool = False  # whether it may have a contrastive head
    # How retrieval computes pairs: together, from streams that are computed once, or from pixels.
    scores_pairs: Literal["encoded", "streams", "pixels"] = "encoded"
    # The tasks that it has heads for, and the method by which it applies them to each task.
    heads: Mapping[str, str] = field(default_factory=dict)
    # Options of the body's ``embed_regions`` for texts other than captions (VCR's choices).
    choice_options: Mapping[str, Any] = field(default_factory=dict)
    # Start: the other variants that ``--init`` may have; sizes are then the recipe's.
    starts_from: tuple[str, ...] = ("bert",)
    # Its stages differ in sizes, which come from the recipe; ``--init`` must agree in these fields
    # only. Empty: the configuration is that of ``--init``.
    shared_sizes: tuple[str, ...] = ()
    # The fields of the body that a task takes from its recipe and not from ``--init``, and how it
    # adapts the body of ``--init`` to the recipe's.
    task_sizes: tuple[str, ...] = ()
    fit_body: Callable[[Any, Any], Any] = _keep_body

    @property
    def model(self) -> type[Any]:
        """Returns the model's class; its module is imported on first use."""
        return self.networks().models[self.name]

    def build(self, config: Any) -> Any:
        """Returns a new model of a configuration."""
        return self.model(config)

    def get_body(self, model_or_config: Any) -> Any:
        """Returns the part of a model, or of its configuration, that reads words and regions."""
        return attrgetter(self.body)(model_or_config) if self.body else model_or_config

    def with_body(self, config: Any, body: Any) -> Any:
        """Returns ``config`` with ``body`` as the configuration of its words and regions."""
        return _with_part(config, self.body, body) if self.body else body

    def with_sizes(self, config: Any, **sizes: int) -> Any:
        """Returns ``config`` with other sizes of the part that reads words and regions."""
        return self.with_body(config, replace(self.get_body(config), **sizes))


# A task's model: a trunk with other heads.
task_variant = partial(Variant, pretrains=False, body="trunk")
# The heads of a classifier of one image or several, with a text or without.
LABEL_HEADS = {
    **{"nlvr2": "pooled", "vqa": "labels"},
    **{"classification": "labels", "entailment": "labels"},
}


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Holds the row of a paper's folder. families: the names in `Networks.families`."""

    networks: Callable[[], Networks]
    variants: tuple[Variant, ...]
    presets: Mapping[str, Callable[..., Any]]
    families: tuple[str, ...] = ()
    # The networks that new models start from. The feed-forward parts of ``expert_starts`` can be
    # copied to several experts.
    starts: tuple[str, ...] = ()
    expert_starts: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Returns the package that holds the paper's modules."""
        return self.networks.__module__.rpartition(".")[0]


def _with_part(config: Any, path: str, part: Any) -> Any:
    """Returns a configuration with ``part`` at the end of a dotted path of fields."""
    name, _, inner = path.partition(".")
    return replace(
        config, **{name: _with_part(getattr(config, name), inner, part) if inner else part}
    )


def get_part(model: Any, path: str) -> Any:
    """Returns the attribute at the end of a dotted path; None if one of its names is missing."""
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), model)
