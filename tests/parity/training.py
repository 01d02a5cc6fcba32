"""Which function compares a set of the training rules: by family and kind."""

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


def by_kind(**handlers: Handler) -> Handler:
    """The handler of a family with sets of several kinds."""

    def handle(golden: GoldenSet, results: Results) -> None:
        if golden.kind not in handlers:
            raise NotComparable(
                f"{golden.root}/index.json: sets.{golden.name}.kind is {golden.kind!r}; of family "
                f"{golden.family} there are comparisons for {', '.join(handlers)}"
            )
        handlers[golden.kind](golden, results)

    return handle


TRAINING: dict[str, Handler] = {
    "vilbert": by_kind(optimiser=training_optim.vilbert),
    "vl-bert": by_kind(optimiser=training_optim.vlbert, rules=training_vlbert.pretraining_samples),
    "interbert": by_kind(optimiser=training_optim.interbert, rules=training_interbert.data_ops),
    "vlmo": by_kind(
        optimiser=training_optim.vlmo,
        rules=training_vlmo.rules,
        distributed=training_two_ranks.two_ranks,
    ),
}
