"""Finds a checkpoint's network inside a larger one, by the prefix that most of its names share."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from torch import Tensor

MAX_PARTS = 4  # of a prefix: ``lightning.net.encoder.bert.``
Prepare = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


def unwrap_network(
    state: Mapping[str, Tensor], prepare: Prepare, known: Collection[str]
) -> dict[str, Tensor]:
    """Returns ``state`` with the names of the network that it wraps, if it is a wrapper.

    A training script may keep the network as an attribute (``net.bert.embeddings...``) next to
    other tensors (``criterion.weight``). If no tensor has a name in ``known`` after ``prepare``,
    the prefix of at least half of the names that makes the most of them known is removed. The
    other tensors keep their names.

    Raises ValueError if two prefixes fit equally (a network and its moving average).
    """
    if not state or _count_known(state, prepare, known):
        return dict(state)
    names = {name: tensor.to("meta") for name, tensor in state.items()}  # costs no memory
    counts = {
        prefix: _count_known(_without(names, prefix), prepare, known)
        for prefix, count in _count_prefixes(names).items()
        if 2 * count >= len(names)
    }
    best = max(counts.values(), default=0)
    fitting = sorted(prefix for prefix, count in counts.items() if count == best)
    if not best:
        return dict(state)
    if not all(prefix.startswith(fitting[0]) for prefix in fitting):
        raise ValueError(
            f"the checkpoint holds the network {len(fitting)} times, under "
            f"{' and '.join(fitting)}; keep the tensors of one"
        )
    return _without(state, fitting[0])


def _without(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _count_prefixes(names: Collection[str]) -> Counter[str]:
    """Counts the names under each dotted prefix of at most `MAX_PARTS` parts."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")[:-1][:MAX_PARTS]
        counts.update(".".join(parts[: end + 1]) + "." for end in range(len(parts)))
    return counts


def _count_known(state: Mapping[str, Tensor], prepare: Prepare, known: Collection[str]) -> int:
    return len(prepare(dict(state)).keys() & set(known))
