"""Which function compares a set of the training rules: by family, then by the set's name."""

from collections.abc import Callable

from tests.parity import (
    training_interbert,
    training_optim,
    training_two_ranks,
    training_vlbert,
    training_vlmo,
)
from tests.parity.golden import GoldenSet, NotComparable
from tests.parity.results import Results

Handler = Callable[[GoldenSet, Results], None]


def by_name(**handlers: Handler) -> Handler:
    """The handler of a family with several sets."""

    def handle(golden: GoldenSet, results: Results) -> None:
        name = golden.name.rpartition("/")[2]
        if name not in handlers:
            raise NotComparable(f"no comparison for the training rules {golden.name}")
        handlers[name](golden, results)

    return handle


TRAINING: dict[str, Handler] = {
    "vilbert": by_name(optimizer_bertadam=training_optim.vilbert),
    "vl-bert": by_name(
        optimizer=training_optim.vlbert, data_pipeline=training_vlbert.pretraining_samples
    ),
    "interbert": by_name(optim=training_optim.interbert, data_ops=training_interbert.data_ops),
    "vlmo": by_name(
        optimiser=training_optim.vlmo,
        rules=training_vlmo.rules,
        randaugment=training_vlmo.randaugment,
        two_ranks=training_two_ranks.two_ranks,
    ),
}
