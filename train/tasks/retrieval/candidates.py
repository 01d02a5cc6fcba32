"""Selects which texts and images retrieval ranks, and reports the excluded ones.

I images, T texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reason_counts, reject
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.store.pairs import PairsDigest, pair_batches
from vlmill.train.loading.vocabulary import SPECIALS

STAGE = "evaluate_retrieval"  # in the rejects table


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Holds a row of the pairs table, as far as retrieval needs it."""

    pair_id: str
    image_id: str | None
    text: str
    split: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoadedPairs:
    """Holds the pairs that were requested, and the digest of their whole table."""

    pairs: tuple[Pair, ...]
    digest: str


def read_pairs(table: str, split: str | None = None) -> LoadedPairs:
    """Reads all pairs of a table, or only one split. Raises InputError for none."""
    digest, splits, pairs = PairsDigest(), set[str](), list[Pair]()
    for batch in pair_batches(table):
        digest.update(batch)
        splits |= {str(value) for value in batch.column("split").unique().to_pylist()}
        if split is not None:
            batch = batch.filter(pc.equal(batch.column("split"), split))
        columns = batch.select(["pair_id", "image_id", "text", "split"])
        pairs += [Pair(**row) for row in pa.Table.from_batches([columns]).to_pylist()]
    if not pairs:
        contents = f"its splits are {', '.join(sorted(splits))}" if splits else "an empty table"
        raise InputError(f"--pairs {table}: nothing to rank; {contents}")
    return LoadedPairs(pairs=tuple(pairs), digest=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Holds the ranked candidates: T texts with their ``tokens``, and I images.

    ``owners`` int64 [T] is each text's image.
    """

    pairs: tuple[Pair, ...]
    tokens: tuple[Ids, ...]
    image_ids: tuple[str, ...]
    owners: NDArray[np.int64]


Rejects = list[dict[str, object]]


def select_candidates(
    pairs: Sequence[Pair], tokens: Sequence[Ids], faults: Mapping[str, Reason]
) -> tuple[Candidates, Rejects]:
    """Keeps the pairs that can be scored, in their order, and a row of the rejects for each other.

    ``faults`` is the reject reason of an image, by its id. If a pair_id repeats, the first pair
    counts, as in training: a metric would count twice.
    """
    rankable, rejects, numbers, owners = [], list[dict[str, object]](), dict[str, int](), []
    previous_ids = set[str]()
    for pair, text in zip(pairs, tokens, strict=True):
        reason = Reason.DUPLICATE if pair.pair_id in previous_ids else _fault(pair, text, faults)
        previous_ids.add(pair.pair_id)
        if pair.image_id is None or reason is not None:
            reason = reason or Reason.NO_IMAGE
            rejects.append(reject(STAGE, pair.pair_id, reason, f"image {pair.image_id}"))
        else:
            rankable.append((pair, text))
            owners.append(numbers.setdefault(pair.image_id, len(numbers)))
    candidates = Candidates(
        pairs=tuple(pair for pair, _ in rankable),
        tokens=tuple(text for _, text in rankable),
        image_ids=tuple(numbers),
        owners=np.array(owners, dtype=np.int64),
    )
    return candidates, rejects


def _fault(pair: Pair, tokens: Ids, faults: Mapping[str, Reason]) -> Reason | None:
    if pair.image_id is None:
        return Reason.NO_IMAGE
    if pair.image_id in faults:
        return faults[pair.image_id]
    return None if len(tokens) > SPECIALS else Reason.NO_TEXT


def check_candidates(
    candidates: Candidates,
    rejects: Sequence[Mapping[str, object]],
    fold_images: int | None,
    samples: str = "",
) -> None:
    """Raises InputError if no pair is left, or the images do not fill complete folds.

    ``samples`` is the tables' word for images.
    """
    if not candidates.pairs:
        reasons = Counter(str(row["reason"]) for row in rejects)
        raise InputError(
            f"--pairs: none of {len(rejects)} pairs can be scored ({reason_counts(reasons)}"
            f"{samples and '; '}{samples}); give the --regions or --images of their images"
        )
    num_images = len(candidates.image_ids)
    if fold_images is not None and (fold_images < 1 or num_images % fold_images):
        raise InputError(
            f"--fold-images {fold_images} does not divide the {num_images} images into whole "
            "folds; give a divisor"
        )
