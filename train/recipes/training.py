"""Defines the training row of a variant, and the starts that several variants share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from vlmill.models.from_bert import initialise_from_bert
from vlmill.models.published import export_reference
from vlmill.models.registry import get_variant
from vlmill.runtime.console.command import print_status
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.objectives.pretraining import Losses, region_losses
from vlmill.train.recipes.rows import say_what_is_new
from vlmill.train.settings.parts import Feeding

Labels = Sequence[Sequence[int]]  # the word-piece ids of a task head's classes


def copy_weights(fresh: nn.Module, init: LoadedCheckpoint) -> None:
    """Continues the same model: copies all weights, by their names."""
    fresh.load_state_dict(init.model.state_dict())


def start_region_model(fresh: nn.Module, init: LoadedCheckpoint) -> None:
    """Continues the same model, or starts a new one from BERT."""
    if init.variant != "bert":
        copy_weights(fresh, init)
        return
    origins = initialise_from_bert(fresh, export_reference("bert", init.model))
    new = sorted(name for name, origin in origins.items() if not origin.names)
    count = len(origins)
    print_status(f"{count - len(new)} of {count} parameters are BERT's ({init.path})")
    say_what_is_new(new)


def start_trunk(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """Copies the trunk of a pretrained model, or of a fine-tuned one; heads are new."""
    trunk = get_variant(init.variant).get_body(init.model)
    fresh.trunk.load_state_dict(trunk.state_dict())
    say_what_is_new(sorted(n for n, _ in fresh.named_parameters() if not n.startswith("trunk.")))


def continue_pretrained(fresh: nn.Module, init: LoadedCheckpoint, labels: Labels) -> None:
    """Continues the whole model of pretraining in a task, its heads included."""
    fresh.load_state_dict(get_variant(init.variant).get_body(init.model).state_dict())


@dataclass(frozen=True, kw_only=True)
class VariantTraining:
    """Defines how a variant is trained; the defaults are the ones of a plain model on regions.

    losses: the losses of pretraining on a batch. feeding: the inputs of a published checkpoint at
    the end of its pretraining. start, start_task: how ``--init`` becomes the model of the first
    step of pretraining and of a task.
    """

    losses: Losses = region_losses
    feeding: Callable[[], Feeding] = Feeding
    start: Callable[[Any, LoadedCheckpoint], None] = start_region_model
    start_task: Callable[[Any, LoadedCheckpoint, Labels], None] = start_trunk
